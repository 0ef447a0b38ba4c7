"""The inbox's side of questions of Flows: the connection that proves a webhook, and where questions are stored.

It runs in the API server. Questions stand in Variables, which a task can read whichever of its ids the service
reported: which task will wait for a question need not be known when it arrives. A Variable is shown to whoever may
read Variables, so its value is encrypted before Airflow stores it. A question is stored, then the tasks that wait for
it are resumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

from airflow.models.variable import Variable
from airflow.utils.session import create_session
from fastapi import APIRouter, BackgroundTasks, Depends, HTTPException, Path, Request
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError

from airflow_crew_provider.api.addresses import base_url, hosts, is_allowed
from airflow_crew_provider.compat.encryption import NotDecrypted, seal, unseal
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.flows import questions, webhooks
from airflow_crew_provider.flows.questions import FlowQuestions, FlowRun
from airflow_crew_provider.flows.webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.inbox import store
from airflow_crew_provider.inbox.app import KNOWN, TAKEN, Answer, answered, json_body, raw_body, resume_tasks
from airflow_crew_provider.inbox.store import DeferredTask, alive, connection_of
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import FLOW_PREFIX, FLOW_RUN_KEY
from airflow_crew_provider.wait.watch import PENDING, Outcome

TRIES = 3


@dataclass(frozen=True)
class FlowSender:
    """A deployment whose webhooks are accepted, by its connection."""

    crew_conn_id: str
    base_url: str
    secret: str = field(repr=False)
    callback_hosts: tuple[str, ...] = ()


def sender(crew_conn_id: str) -> FlowSender | None:
    """Look up the sender; None without such a connection, or without a secret in it."""
    found, extra = connection_of(crew_conn_id) or (None, {})
    secret = str(extra.get("flow_webhook_secret") or "").strip()
    if found is None or not secret:
        return None
    try:
        base, allowed = base_url(found.host, found.port, found.schema), hosts(extra.get("callback_hosts"))
    except ValueError:  # not disclosed to the sender
        return None
    return FlowSender(crew_conn_id, base, secret, allowed)


def store_question(crew_conn_id: str, question: FlowQuestion, address: AnswerAddress, now: datetime) -> bool:
    """Store a question and how it is answered, once; False if it is already known."""
    for _ in range(TRIES):
        # Two at once: the second finds what the first has stored.
        with suppress(IntegrityError):
            return _store(crew_conn_id, question, address, now)
    raise RuntimeError("The question could not be stored: too many arrive at once")


def _store(crew_conn_id: str, question: FlowQuestion, address: AnswerAddress, now: datetime) -> bool:
    key = questions.answer_key(crew_conn_id, question.id)
    with create_session(scoped=False) as session:
        if session.scalar(select(Variable.key).where(Variable.key == key)):
            return False
        said = questions.description(now)
        session.add(Variable(key=key, val=seal(questions.stored_answer(address)), description=said))
        session.flush()
        for each in sorted(set(question.ids)):
            _add(session, questions.questions_key(crew_conn_id, each), question, said)
    return True


def _add(session: Any, key: str, question: FlowQuestion, said: str) -> None:
    kept = session.scalars(select(Variable).where(Variable.key == key).with_for_update()).one_or_none()
    text = seal(FlowQuestions.of(unseal(kept.get_val()) if kept else None).asking(question))
    if kept is None:
        session.add(Variable(key=key, val=text, description=said))
    else:
        kept.set_val(text)
        kept.description = said
    session.flush()


def sweep(now: datetime) -> int:
    """Remove questions whose DAG runs or whose time is over; return how many rows."""
    with create_session(scoped=False) as session:
        said = dict(session.execute(select(Variable.key, Variable.description).where(*_named(FLOW_PREFIX))).all())
        late = {key for key in said if questions.is_over(key, said[key], now)}
        over = late | (_of_ended_runs(session, now) & said.keys())
        if over:
            gone = delete(Variable).where(Variable.key.in_(over))
            session.execute(gone.execution_options(synchronize_session=False))
    return len(over)


def _named(prefix: str) -> tuple[Any, Any]:
    return Variable.key > prefix, Variable.key < prefix + "zzz"


def _of_ended_runs(session: Any, now: datetime) -> set[str]:
    """Return the names of what belongs to DAG runs that are gone or over, and to no other."""
    found = (FlowRun.of(row.get_val()) for row in session.scalars(select(Variable).where(*_named(FLOW_RUN_KEY))))
    runs = [run for run in found if run]
    kept = alive(session, ((run.dag_id, run.run_id) for run in runs), now)
    ended = {run for run in runs if (run.dag_id, run.run_id) not in kept}
    needed = {(run.crew_conn_id, run.execution_id) for run in runs if run not in ended}
    return {name for run in ended for name in (run.key, *_questions_of(session, run, needed))}


def _questions_of(session: Any, run: FlowRun, needed: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the names of the questions of an execution, under all its ids, and of their answers.

    :param needed: executions, with their connections, for which another DAG run waits
    """
    key = questions.questions_key(run.crew_conn_id, run.execution_id)
    kept = session.scalars(select(Variable).where(Variable.key == key)).one_or_none()
    with suppress(NotDecrypted):  # its time ends some day
        for question in FlowQuestions.of(unseal(kept.get_val()) if kept else None).questions:
            if needed.isdisjoint((run.crew_conn_id, each) for each in question.ids):
                yield questions.answer_key(run.crew_conn_id, question.id)
                yield from (questions.questions_key(run.crew_conn_id, each) for each in question.ids)


# --- the webhook ---


FOREIGN_HOST = Answer(422, "the callback_url is at a host that the connection does not allow")
NO_QUESTION = Answer(200, "this asks nothing, nothing changes")

router = APIRouter()


def flow_sender(connection: Annotated[str, Path(max_length=250)]) -> FlowSender:
    """Return the deployment of the connection, if its webhooks are taken."""
    found = sender(connection)
    if found is None:
        raise _unproven()
    return found


def _unproven() -> HTTPException:
    return HTTPException(401, "Unknown address, or the signature is not valid or too old")


@router.post("/flow/{connection}")
def flow_question(
    sender: Annotated[FlowSender, Depends(flow_sender)],
    raw: Annotated[bytes, Depends(raw_body)],
    request: Request,
    afterwards: BackgroundTasks,
) -> dict[str, str]:
    """A Flow waits for a person: the webhook that the console signs."""
    if not webhooks.is_signed(sender.secret, request.headers, raw, now=time.time()):
        raise _unproven()
    try:
        asked = webhooks.read(json_body(raw))
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None
    if asked is None:
        return answered(NO_QUESTION)
    answer = take(sender, *asked)
    if answer is TAKEN:
        afterwards.add_task(wake, sender, asked[0])
    return answered(answer)


def take(sender: FlowSender, question: FlowQuestion, address: AnswerAddress) -> Answer:
    """Store a question, once; one whose answer would go to a foreign host is refused."""
    url = address.callback_url
    if url is not None and not is_allowed(url, sender.base_url, sender.callback_hosts):
        return FOREIGN_HOST
    return TAKEN if store_question(sender.crew_conn_id, question, address, datetime.now(UTC)) else KNOWN


async def wake(sender: FlowSender, question: FlowQuestion) -> None:
    """Resume the tasks that wait for this execution."""

    def waiting() -> list[DeferredTask]:
        return store.waiting_for(question.ids)

    def event_for(waiting: DeferredTask) -> Json | None:
        kickoff_id = waiting.kwargs.get("kickoff_id")
        same = waiting.kwargs.get("crew_conn_id") == sender.crew_conn_id and kickoff_id in question.ids
        if not same or waiting.kwargs.get("wait_past_pending"):
            return None
        return Outcome(PENDING, str(kickoff_id), crew_task_id=question.id).to_event()

    await resume_tasks(waiting, event_for)
