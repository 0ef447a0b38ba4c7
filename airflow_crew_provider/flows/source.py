"""A task's side of questions of Flows: the Variables that the inbox wrote, read in a worker or a triggerer."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import Variable, mask_secret
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.encryption import unseal
from airflow_crew_provider.compat.task_state import found_or_none, task_identity
from airflow_crew_provider.compat.version import has_inbox
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.flows import questions
from airflow_crew_provider.flows.questions import FlowQuestions, FlowRun
from airflow_crew_provider.flows.webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution, ExecutionState

log = logging.getLogger(__name__)

AFTER_ANSWER = timedelta(days=1)  # by then a webhook that is sent again is refused for its age


def open_question(crew_conn_id: str, ids: list[str]) -> FlowQuestion | None:
    """Return the newest question of an execution that is not answered, by any of its ids."""
    for execution_id in ids:
        kept = FlowQuestions.of(_read(questions.questions_key(crew_conn_id, execution_id)))
        for question in reversed(kept.questions):
            if address_of(crew_conn_id, question.id) is not None:
                return question
    return None


def address_of(crew_conn_id: str, request_id: str) -> AnswerAddress | None:
    """Return how a question is answered; None if it did not come by the inbox, or is answered."""
    address = questions.read_answer(_read(questions.answer_key(crew_conn_id, request_id)))
    for secret in address.secrets if address else ():
        mask_secret(secret)
    return address


def is_used_up(crew_conn_id: str, request_id: str) -> bool:
    """Whether a question came by the inbox and was answered."""
    return _read(questions.answer_key(crew_conn_id, request_id)) == questions.USED


def used_up(crew_conn_id: str, request_id: str) -> None:
    """Remove how a question is answered; that there was one stays known, so that no repeated webhook asks again."""
    key = questions.answer_key(crew_conn_id, request_id)
    Variable.set(key, questions.USED, description=questions.description(datetime.now(UTC), AFTER_ANSWER))


def note_run(context: Any, hook: CrewHook, execution_id: str) -> None:
    """Note which DAG run started an execution or waits for it, if it may be a Flow's.

    The inbox removes its questions with the DAG run.
    """
    try:
        if hook.connection.flow_webhook_secret and has_inbox():
            task = task_identity(context)
            run = FlowRun(hook.crew_conn_id, execution_id, task["dag_id"], task["run_id"])
            Variable.set(run.key, json.dumps(run.as_dict()), description=run.description)
    except Exception as error:
        log.warning("Questions of execution %s may be kept after this DAG run: %s", execution_id, error)


def _read(key: str) -> str | None:
    text: str | None = found_or_none(lambda: Variable.get(key))
    return unseal(text) if text else text


class FlowSource:
    """What a Flow has asked by signed webhook: a live status shows the pause and no question.

    Where the connection has no secret of such webhooks, none can have arrived.
    """

    def __init__(self, hook: CrewHook) -> None:
        self._hook = hook

    def read(self, kickoff_id: str, reply: Execution | CrewError) -> Execution | CrewError:
        """Return the question of a paused Flow whose status does not show it."""
        if not self._lacks_question(reply):
            return reply
        try:
            return _with(reply, open_question(self._hook.crew_conn_id, _ids(reply)))
        except Exception:
            return _without_question(reply)

    async def aread(self, kickoff_id: str, reply: Execution | CrewError) -> Execution | CrewError:
        """Do what `read` does without blocking the event loop."""
        return await sync_to_async(self.read)(kickoff_id, reply) if self._lacks_question(reply) else reply

    async def was_asked(self, kickoff_id: str) -> bool:
        """Whether a question has arrived that is not answered."""
        if self._hook.connection.flow_webhook_secret is None:
            return False
        with suppress(Exception):  # as if none had arrived
            return await sync_to_async(open_question)(self._hook.crew_conn_id, [kickoff_id]) is not None
        return False

    def _lacks_question(self, reply: Execution | CrewError) -> bool:
        paused = isinstance(reply, Execution) and reply.state is ExecutionState.PENDING and not reply.crew_task_id
        return paused and self._hook.connection.flow_webhook_secret is not None


def _without_question(reply: Execution | CrewError) -> Execution | CrewError:
    log.warning("The questions that arrived by webhook could not be read; polling continues", exc_info=True)
    return reply


def _ids(reply: Execution | CrewError) -> list[str]:
    assert isinstance(reply, Execution)
    return list(dict.fromkeys(each for each in (reply.kickoff_id, reply.flow_id) if each))


def _with(reply: Execution | CrewError, question: FlowQuestion | None) -> Execution | CrewError:
    assert isinstance(reply, Execution)
    return reply if question is None else question.as_execution(reply.kickoff_id, reply.raw)
