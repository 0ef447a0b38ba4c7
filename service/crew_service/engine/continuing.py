"""The data that an execution takes over from a failed one, and the reasons why some executions cannot be continued.

Finished tasks keep their outputs. If something external failed, the failed task continues with its journal. If the
task's own answer was rejected, replaying the journal would only repeat that answer, so the task starts over and keeps
only the decisions on its drafts and the calls to tools that may run only once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import Connection, Row

from crew_service.engine import output_files, usage
from crew_service.engine.crew import Crew, CrewFailed, TaskOutput
from crew_service.engine.decisions import Refused, UnknownExecution
from crew_service.engine.files import hashes
from crew_service.engine.questions import Question, question_in
from crew_service.storage import chains, files, flow_states, integrity, queries
from crew_service.storage.states import State

Finished = list[tuple[TaskOutput, str | None]]  # tasks, with their digests
Unusable = Callable[[Finished, dict[str, Any]], str | None]
OVER_TOKENS = "tokens"  # stored instead of the data to take over
NOT_ENDED = "it has not ended"
WHY_NOT = {
    State.QUEUED: NOT_ENDED,
    State.RUNNING: NOT_ENDED,
    State.WAITING: NOT_ENDED,
    State.COMPLETED: "it has completed",
    State.STOPPED: "it was stopped",
}


class CannotContinue(Refused):
    """The execution cannot be continued, and nothing was started; the message states why."""

    def __init__(self, execution_id: str, reason: str) -> None:
        super().__init__(f"Execution {execution_id} cannot be continued: {reason}.")


class AlreadyContinued(Refused):
    def __init__(self, kickoff_id: str) -> None:
        super().__init__(f"Execution {kickoff_id} already continues this execution.")
        self.kickoff_id = kickoff_id


def failure_of(error: Exception | None, question: Question | None) -> dict[str, Any]:
    """Return the data to store with a failure, for an execution that may continue this one."""
    failed = error if isinstance(error, CrewFailed) else CrewFailed()
    return {
        "refused": failed.refused,
        "unanswered": list(failed.unanswered),
        "gate": question and question.stored(),
    }


def unusable(crew: Crew, finished: Finished, state: dict[str, Any]) -> str | None:
    """Return why the crew cannot go on after these tasks, as a clause; None if it can.

    :param state: the crew's data from the last question that was answered
    """
    if name := _changed(crew, [(task["task_id"], digest) for task, digest in finished]):
        return f"its finished task {name!r} is not among the crew's current tasks"
    return crew.lost([task for task, _ in finished], state)


def _changed(crew: Crew, finished: list[tuple[str, str | None]]) -> str | None:
    """Return the first finished task that has since been changed, moved or removed; None if there is none."""
    known = {task.id: task.digest for task in crew.tasks}
    in_order = [task.id for task in crew.tasks] if crew.kind != "flow" else [name for name, _ in finished]
    for place, (name, digest) in enumerate(finished):
        if digest is None or known.get(name) != digest or in_order[place : place + 1] != [name]:
            return name
    return None


def find(
    connection: Connection,
    some_id: str,
    inputs: dict[str, Any],
    hashes_given: dict[str, str],
    *,
    sees: Callable[[Row[Any]], bool],
) -> Row[Any]:
    """Return the last execution in a chain; nobody else can continue it during this transaction.

    :raises UnknownExecution: if there is no such execution, or the caller cannot see it
    :raises AlreadyContinued: if another execution already continues it
    :raises CannotContinue: if it cannot be continued
    """
    last = chains.last(connection, some_id)
    if last is None or not sees(last[1]):
        raise UnknownExecution("no such execution")
    named, head = last
    if head.state != State.FAILED and head.state != State.STOPPED and head.id != named:
        raise AlreadyContinued(head.kickoff_id)
    if head.state != State.FAILED:
        raise CannotContinue(head.id, WHY_NOT[head.state])
    row = queries.by_id(connection, head.id)
    assert row is not None
    if problem := _problem(row, inputs, hashes_given):
        raise CannotContinue(row.id, problem)
    return row


def _problem(row: Row[Any], inputs: dict[str, Any], hashes_now: dict[str, str]) -> str | None:
    if not integrity.is_readable(row) or row.failure is None:
        return "it was unreadable, or an earlier release of this service ended it"
    if chains.CONTINUED_BY in row.failure:
        return f"it was continued by execution {row.failure[chains.CONTINUED_BY]}, which has been deleted"
    if OVER_TOKENS in row.failure:
        return "it has used more tokens than allowed"
    if _canonical(row.inputs) != _canonical(inputs):
        return "it was started with different inputs"
    if hashes(row.files or ()) != hashes_now:
        return "it was started with different files"
    return None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def take_over(connection: Connection, row: Row[Any], *, into: str, unusable: Unusable) -> dict[str, Any]:
    """Move a failed execution's data to a new execution; return the columns of the new one.

    :raises CannotContinue: if a finished task was changed or cannot be reused, or if an earlier release of the service
        might claim the new execution
    """
    finished = [(each.task, each.digest) for each in chains.finished(connection, row.id)]
    if not all(integrity.is_task(task) for task, _ in finished):
        raise CannotContinue(row.id, "a finished task cannot be read")
    answered = row.failure["gate"]
    if problem := unusable(finished, question_in(answered).state if answered else {}):
        raise CannotContinue(row.id, problem)
    if not chains.keep_out_earlier(connection):
        raise CannotContinue(row.id, "an earlier release of the service is using the same database and might claim it")
    steps = chains.take_results(connection, row.id, [task["task_id"] for task, _ in finished], into=into)
    refused, unanswered = row.failure["refused"], row.failure["unanswered"]
    steps += chains.take_journal(connection, row.id, into=into, refused=refused, unanswered=unanswered, after=steps)
    output_files.settle(connection, row.id)  # while its own rounds say what was approved
    files.hand_on(connection, row.id, into=into)
    flow_states.hand_on(connection, row.id, into=into)
    chains.close(connection, row.id, continued_by=into)
    return {
        "continued_from": row.id,
        "restore_from": row.restore_from,
        "gate": answered,
        "completed_tasks": len(finished),
        "last_task": row.last_task,
        "steps": steps,
        "earlier_usage": usage.handed_on(row),
    }
