"""What is known of an execution, in one shape whatever the deployment tells. Pure.

The shape is that of ``GET /executions/{id}``. A deployment that has only the specified endpoints gives less: its
status, and what the reviews in Airflow have kept of its drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_crew_provider.api.status import text_or_none
from airflow_crew_provider.models import Execution, ExecutionState, Json, output_sha256
from airflow_crew_provider.review.drafts import text_of

LONGEST = 60_000  # characters of one text that are kept
LONGEST_OF_TASK = 10_000
MOST_TASKS, MOST_ROUNDS = 200, 30
TEXTS = ("output", "error", "draft", "question", "human_feedback", "crew")
OVER = ("completed", "error")
OF_ANOTHER_DAG = "The deployment says that another DAG has started it. Whoever may see that DAG finds it there."
# What a status does not say, as a sentence about the deployment ends.
UNTOLD = ("the inputs", "when each task ran", "what each task used")


@dataclass(frozen=True)
class Target:
    """Which execution is looked up, and where; `kickoff_id` is what to poll, which changes with each resume.

    What is looked up is shared by those who ask for the same in every field.
    """

    crew_conn_id: str
    execution_id: str
    kickoff_id: str
    view: str | None = None


@dataclass(frozen=True)
class Seen:
    """What the last look-up of an execution has found.

    :param found: None where nothing is known yet
    :param problem: why the last look-up failed; what was found is of before then
    :param at: when it was found, in epoch seconds
    :param has_details: whether the deployment is known to tell everything
    :param is_elsewhere: whether the problem is that another DAG has started the execution
    """

    found: Json | None = None
    problem: str = ""
    at: float = 0.0
    etag: str | None = None
    has_details: bool = False
    link: str = ""
    is_elsewhere: bool = False

    @property
    def is_final(self) -> bool:
        """Whether the execution is over, so that nothing is looked up any more."""
        state = self.found["state"] if self.found else ""
        return not self.problem and state in OVER

    def failed(self, problem: str) -> Seen:
        """Return what is known after a look-up without an answer."""
        return replace(self, problem=problem)


def of_dag(seen: Seen | None, dag_id: str) -> Seen | None:
    """Return what was found, unless the deployment names another DAG as the one that started the execution.

    A task may wait for any execution that its DAG names; what another DAG has started is for those who may see that.
    """
    meta = seen.found.get("meta") if seen and seen.found else None
    origin = meta.get("airflow") if isinstance(meta, dict) else None
    named = origin.get("dag_id") if isinstance(origin, dict) else None
    return seen if named in (None, dag_id) else Seen(problem=OF_ANOTHER_DAG, is_elsewhere=True)


def of_details(given: Json) -> Json:
    """Return details as they are kept: of bounded size, and each field of the type that the page expects."""
    tasks = [_cut(_typed(task), "output", LONGEST_OF_TASK) for task in _listed(given, "tasks", dict)]
    rounds = [_cut(_typed(each), "draft", LONGEST) for each in _listed(given, "rounds", dict)]
    inputs = given.get("inputs") if isinstance(given.get("inputs"), dict) else None
    lists = {"tasks": tasks[-MOST_TASKS:], "rounds": rounds[-MOST_ROUNDS:], "left_out": _listed(given, "left_out", str)}
    return _cut(_typed({**given, **lists, "inputs": inputs, "unknown": []}), "output", LONGEST)


def of_status(execution: Execution, target: Target) -> Json:
    """Return what one poll tells, in the shape of details."""
    state = execution.state
    rounds = [_asked(execution)] if state is ExecutionState.PENDING and execution.output is not None else []
    found: Json = {
        "execution_id": target.execution_id,
        "kickoff_ids": list(dict.fromkeys((target.execution_id, execution.kickoff_id))),
        "state": str(state),
        "usage": execution.usage,
        "work_seconds": execution.execution_time,
        "error": execution.error,
        "output": execution.output if state is ExecutionState.COMPLETED else None,
        "output_json": execution.output_json if state is ExecutionState.COMPLETED else None,
        "tasks": [_finished(task) for task in execution.tasks],
        "rounds": rounds,
        "current_task": execution.current_task or (execution.crew_task_id if rounds else None),
        "completed_tasks": execution.completed_tasks,
        "total_tasks": execution.total_tasks,
    }
    return {**of_details(found), "unknown": list(UNTOLD)}


def with_decisions(found: Json, decisions: Sequence[Json]) -> Json:
    """Return what is known, with what the reviews in Airflow have kept: who decided, and the draft."""
    rounds = [dict(each) for each in found["rounds"]]
    for number, decision in enumerate(decisions, 1):
        mine = [each for each in rounds if each.get("output_sha256") == decision.get("output_sha256")]
        # A draft that comes again unchanged is another round, decided in the same order.
        open_ones = [each for each in mine if "decision" not in each]
        if open_ones:
            open_ones[0]["decision"] = decision
        elif not mine:
            rounds.append({**_of_decision(decision, number), "decision": decision})
    if any("number" not in each for each in rounds):
        # The status has only the draft that waits now, which comes last.
        rounds.sort(key=lambda each: ("decision" not in each, (each.get("decision") or {}).get("decided_at") or ""))
        rounds = [{**each, "number": number} for number, each in enumerate(rounds, 1)]
    return {**found, "rounds": rounds[-MOST_ROUNDS:]}


def progress(found: Json) -> tuple[int, int] | None:
    """Return how many tasks are done and how many there are; None where that is not known."""
    states = [task.get("state") for task in found["tasks"]]
    counted = found.get("completed_tasks"), found.get("total_tasks")
    done, total = counted if counted[1] is not None else (states.count("completed"), len(states))
    if not isinstance(done, int) or not isinstance(total, int) or total <= 0:
        return None
    return min(done, total), total


def _asked(execution: Execution) -> Json:
    return {
        "task_id": execution.crew_task_id,
        "draft": execution.output,
        "question": execution.question,
        "output_sha256": output_sha256(execution.output),
    }


def _of_decision(decision: Json, number: int) -> Json:
    draft = text_of(decision.get("output"))
    kept = {name: decision.get(name) for name in ("output_sha256", "is_approve", "human_feedback", "decided_at")}
    return _cut({**kept, "task_id": decision.get("crew_task_id"), "draft": draft}, "draft", LONGEST)


def _finished(task: Any) -> Json:
    said = {"task_id": task.task_id, "agent": task.agent, "output": task.output, "seconds": task.execution_time}
    return {**said, "name": task.task_id, "state": "completed"}


def _listed(given: Json, name: str, kind: type) -> list[Any]:
    listed = given.get(name)
    return [each for each in listed if isinstance(each, kind)] if isinstance(listed, list) else []


def _typed(holder: Json) -> Json:
    """Return an object whose texts are strings, or none."""
    return {**holder, **{name: text_or_none(holder[name]) for name in TEXTS if name in holder}}


def _cut(holder: Json, name: str, most: int) -> Json:
    text = holder.get(name)
    return {**holder, name: text[:most], "cut": True} if isinstance(text, str) and len(text) > most else holder
