"""The text of a question that is asked again, in Airflow's own model and a database of its own."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

hitl = pytest.importorskip("airflow.models.hitl", reason="needs Airflow 3.1")

from airflow.models import import_all_models  # noqa: E402
from sqlalchemy import create_engine, event  # noqa: E402
from sqlalchemy.orm import Session  # noqa: E402

from airflow_crew_provider.compat import version  # noqa: E402
from airflow_crew_provider.review import refusal_notice  # noqa: E402
from airflow_crew_provider.stored_names import EXECUTION_KEY  # noqa: E402

pytestmark = pytest.mark.skipif(
    version.has_form_per_attempt(), reason="since Airflow 3.4, the task that asks again sends the whole text"
)
PARAMS = {"human_feedback": {"value": "", "description": None, "schema": {}}}
TEXT = "The draft."


@pytest.fixture(autouse=True)
def nothing_listens() -> None:
    """Remove what the plugin has registered, if another test in this process has loaded it."""
    if event.contains(hitl.HITLDetail, "before_update", refusal_notice._before_update):
        event.remove(hitl.HITLDetail, "before_update", refusal_notice._before_update)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(version, "RELEASE", (3, 3))
    engine = create_engine("sqlite://")
    import_all_models()  # what the table of questions refers to
    hitl.HITLDetail.metadata.create_all(engine)
    refusal_notice.explain_refusals()
    with Session(engine) as session:
        yield session
    engine.dispose()


def task_instance(session: Session, *, pushed: str) -> Any:
    """Return the id of a task instance that has pushed an XCom of this name."""
    tables = hitl.HITLDetail.metadata.tables
    id_type = hitl.HITLDetail.__table__.c.ti_id.type.python_type  # Airflow 3.1 has text here
    ti_id = id_type(str(uuid.uuid4()))
    place = {"dag_id": "dag", "run_id": "run", "task_id": str(ti_id), "map_index": -1}
    session.execute(tables["task_instance"].insert().values(id=ti_id, pool="default_pool", pool_slots=1, **place))
    pushes = {"dag_run_id": 1, "key": pushed, "value": {}, "timestamp": datetime.now(UTC)}
    session.execute(tables["xcom"].insert().values(**place, **pushes))
    return ti_id


def question(
    session: Session,
    option: str = "revise",
    params: Any = None,
    params_of_form: Any = PARAMS,
    pushed: str = EXECUTION_KEY,
    **more: Any,
) -> Any:
    """Return a question that Ann has answered."""
    detail = hitl.HITLDetail(
        ti_id=task_instance(session, pushed=pushed),
        options=["approve", "revise"],
        subject="Review",
        body=TEXT,
        params=params_of_form,
        **more,
    )
    session.add(detail)
    session.commit()
    answered(session, detail, option, params)
    return detail


def answered(session: Session, detail: Any, option: str, params: Any) -> None:
    detail.responded_by, detail.responded_at = {"id": "7", "name": "Ann"}, datetime.now(UTC)
    detail.chosen_options, detail.params_input = [option], params or {}
    session.flush()


def asks_again(session: Session, detail: Any) -> str:
    """Do to the answer what Airflow's execution API does when a task asks again."""
    detail.responded_by = detail.responded_at = detail.chosen_options = None
    detail.params_input = {}
    session.add(detail)
    session.flush()
    return str(detail.body)


@pytest.mark.row("A13")
@pytest.mark.parametrize(
    ("option", "params", "reason"),
    [
        ("revise", {"feedback": "Shorter."}, "its fields are `feedback`, but the form has `human_feedback`"),
        ("revise", {"human_feedback": " "}, "it requests a revision without saying what to change"),
        ("revise", {}, "it requests a revision without saying what to change"),
        ("approve", {"human_feedback": "", "edited_draft": " "}, "the edited draft is empty"),
    ],
)
def test_an_answer_that_is_removed_is_explained(session: Session, option: str, params: Any, reason: str) -> None:
    fields = {**PARAMS, "edited_draft": {"value": "Draft."}} if "edited_draft" in params else PARAMS
    body = asks_again(session, question(session, option, params, params_of_form=fields))
    assert body == f"**The last answer by `Ann` was not accepted because {reason}.**\n\n{TEXT}"


@pytest.mark.row("A13")
def test_only_the_last_reason_is_shown_until_an_accepted_answer(session: Session) -> None:
    detail = question(session, "revise", {"feedback": "Shorter."})
    asks_again(session, detail)
    answered(session, detail, "revise", {"human_feedback": ""})
    assert asks_again(session, detail).count("was not accepted") == 1
    answered(session, detail, "revise", {"human_feedback": "Shorter."})
    assert asks_again(session, detail) == TEXT


@pytest.mark.parametrize("params", [PARAMS, {"human_feedback": ""}], ids=["described", "values only"])
def test_other_operators_questions_with_such_a_field_keep_their_text(session: Session, params: Any) -> None:
    detail = question(session, "revise", {"human_feedback": ""}, params_of_form=params, pushed="return_value")
    assert asks_again(session, detail) == TEXT


def test_questions_of_other_operators_keep_their_text(session: Session) -> None:
    detail = question(session, "revise", {"feedback": "Shorter."})
    detail.params = {}
    session.flush()
    assert asks_again(session, detail) == TEXT


def test_what_cannot_be_explained_hinders_nothing(session: Session) -> None:
    detail = question(session, "revise", {"human_feedback": ""})
    detail.options = 5  # as no release stores them
    session.flush()
    assert asks_again(session, detail) == TEXT


def test_a_process_without_airflows_models_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, refusal_notice.MODELS)
    refusal_notice.explain_refusals()
    assert not event.contains(hitl.HITLDetail, "before_update", refusal_notice._before_update)


@pytest.mark.row("A26")
def test_nothing_listens_where_the_reasking_task_brings_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "RELEASE", (3, 4))
    refusal_notice.explain_refusals()
    assert not event.contains(hitl.HITLDetail, "before_update", refusal_notice._before_update)
