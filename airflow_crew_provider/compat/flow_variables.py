"""A task's side of questions of Flows: the Variables that the inbox wrote, read in a worker or a triggerer."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import Variable, mask_secret
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.encryption import unseal
from airflow_crew_provider.compat.task_state import found_or_none
from airflow_crew_provider.core import flow_questions
from airflow_crew_provider.core.flow_questions import FlowQuestions, FlowRun
from airflow_crew_provider.core.flow_webhooks import AnswerAddress, FlowQuestion

AFTER_ANSWER = timedelta(days=1)  # by then a webhook that is sent again is refused for its age


def open_question(crew_conn_id: str, ids: list[str]) -> FlowQuestion | None:
    """Return the newest question of an execution that is not answered, by any of its ids."""
    for execution_id in ids:
        kept = FlowQuestions.of(_read(flow_questions.questions_key(crew_conn_id, execution_id)))
        for question in reversed(kept.questions):
            if address_of(crew_conn_id, question.id) is not None:
                return question
    return None


async def aopen_question(crew_conn_id: str, ids: list[str]) -> FlowQuestion | None:
    """Do what `open_question` does without blocking the event loop."""
    return await sync_to_async(open_question)(crew_conn_id, ids)


def address_of(crew_conn_id: str, request_id: str) -> AnswerAddress | None:
    """Return how a question is answered; None if it did not come by the inbox, or is answered."""
    address = flow_questions.read_answer(_read(flow_questions.answer_key(crew_conn_id, request_id)))
    for secret in address.secrets if address else ():
        mask_secret(secret)
    return address


def is_used_up(crew_conn_id: str, request_id: str) -> bool:
    """Whether a question came by the inbox and was answered."""
    return _read(flow_questions.answer_key(crew_conn_id, request_id)) == flow_questions.USED


def used_up(crew_conn_id: str, request_id: str) -> None:
    """Remove how a question is answered; that there was one stays known, so that no repeated webhook asks again."""
    key = flow_questions.answer_key(crew_conn_id, request_id)
    Variable.set(key, flow_questions.USED, description=flow_questions.description(datetime.now(UTC), AFTER_ANSWER))


def note_run(run: FlowRun) -> None:
    """Note that a DAG run started an execution, or waits for it, so that its questions are removed with the run."""
    Variable.set(run.key, json.dumps(run.as_dict()), description=run.description)


def _read(key: str) -> str | None:
    text: str | None = found_or_none(lambda: Variable.get(key))
    return unseal(text) if text else text
