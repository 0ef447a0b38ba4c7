"""What Airflow shows of rendered fields, to whoever may see the DAG: no draft, no feedback, no output."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.serialization.helpers import serialize_template_field
from airflow_stand_ins import PENDING, Supervisor, parked

from airflow_crew_provider.api.values import RenderedRecord, rendered
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
from airflow_crew_provider.task_groups.crew import CrewResultOperator

pytestmark = pytest.mark.row("A57")
SECRET = "The merger is off. "
DRAFT = {**PENDING, "output": SECRET * 300, "output_sha256": output_sha256(SECRET * 300), "tasks": [{"output": SECRET}]}
DONE = {**DRAFT, "state": "completed", "usage": {"total_tokens": 5}}
REVIEW = {"execution_id": "execution-1", "crew_task_id": "t", "is_approve": False, "human_feedback": SECRET}
MADE = {
    "pending": lambda given: CrewReviewOperator(task_id="t", pending=given),
    "previous": lambda given: CrewReviewOperator(task_id="t", pending=DRAFT, previous=given),
    "review": lambda given: CrewResumeOperator(task_id="t", review=given),
    "completed": lambda given: CrewUsageApprovalOperator(task_id="t", completed=given, max_total_tokens=9),
    "records": lambda given: CrewResultOperator(task_id="t", records=[given, None, [given]]),
}
GIVEN = {"pending": DRAFT, "previous": REVIEW, "review": REVIEW, "completed": DONE, "records": DONE}


def shown(operator: Any) -> str:
    """Return what Airflow stores of all fields, by each of its ways."""
    fields = [serialize_template_field(getattr(operator, name), name) for name in operator.template_fields]
    return json.dumps([fields, task_runner._serialize_rendered_fields(operator)])


@pytest.mark.parametrize("form", [lambda given: given, json.dumps, str], ids=["XCom", "JSON", "Python"])
@pytest.mark.parametrize("name", MADE)
def test_airflow_stores_no_draft_in_rendered_fields(context: dict[str, Any], name: str, form: Any) -> None:
    operator = MADE[name](form(GIVEN[name]))
    operator.render_template_fields(context)
    assert SECRET.strip() not in shown(operator)
    assert "of execution execution-1" in shown(operator)


@pytest.mark.parametrize("form", [lambda given: given, json.dumps, str], ids=["XCom", "JSON", "Python"])
def test_airflow_stores_no_signature_in_rendered_fields(context: dict[str, Any], form: Any) -> None:
    signature = uuid4().hex
    address = f"https://bucket.example/report.pdf?X-Amz-Date=20261120&X-Amz-Signature={signature}"
    operator = CrewKickoffOperator(task_id="t", inputs={}, files=form({"report": address, "page": "/page.pdf"}))
    operator.render_template_fields(context)
    said = json.dumps(task_runner._serialize_rendered_fields(operator))
    assert signature not in said
    assert "https://bucket.example/report.pdf?***" in said
    assert address in str(operator.files)


def test_a_subclass_and_a_callback_read_it_as_a_mapping(context: dict[str, Any]) -> None:
    operator: Any = MADE["pending"](DRAFT)
    operator.render_template_fields(context)
    assert operator.pending == DRAFT
    assert (operator.pending["output"], operator.pending.get("none"), "tasks" in operator.pending) == (
        DRAFT["output"],
        None,
        True,
    )
    assert {**operator.pending} == DRAFT


def test_the_line_says_what_it_is() -> None:
    digest = DRAFT["output_sha256"]
    assert str(rendered(DRAFT)) == f"draft of execution execution-1, 5,700 characters, sha256 {digest}"
    assert str(rendered(DONE)) == f"output of execution execution-1, 5,700 characters, sha256 {digest}"
    assert str(rendered(REVIEW)) == "review of execution execution-1"
    assert str(rendered({"output": {"a": object()}, "output_sha256": SECRET})).startswith("draft, ")
    assert rendered("{{ x }}") == "{{ x }}"
    assert rendered(rendered(DRAFT)) == DRAFT


def test_the_tasks_work_as_with_plain_records(context: dict[str, Any], supervisor: Supervisor) -> None:
    for name in ("completed", "records"):
        operator: Any = MADE[name](json.dumps(DONE) if name == "completed" else DONE)
        operator.render_template_fields(context)
        result = operator.execute(context)
        assert result == DONE
        assert type(result) is dict, "XCom keeps plain JSON"
    review: Any = CrewReviewOperator(task_id="t", pending=DRAFT, previous={**REVIEW, "output": "Before."})
    review.render_template_fields(context)
    parked(lambda: review.execute(context))
    assert SECRET.strip() in supervisor.asked[0].body
    assert isinstance(review.pending, RenderedRecord)


ANSWERED = {"responded_at": datetime(2026, 11, 20, 12, tzinfo=UTC), "responded_by_user": {"id": "7", "name": "Ann Lee"}}


@pytest.mark.parametrize("name", ["a review", "a Flow's question", "a usage approval"])
def test_listeners_like_openlineage_never_report_anybodys_text(
    context: dict[str, Any], supervisor: Supervisor, name: str
) -> None:
    utils = pytest.importorskip("airflow.providers.openlineage.utils.utils", reason="needs OpenLineage's provider")

    def told(operator: Any) -> str:
        return json.dumps(dict(utils.TaskInfo(operator)), default=str)

    more = {"question": SECRET, "outcomes": [SECRET, "no"]} if name == "a Flow's question" else {}
    if name != "a usage approval":
        made: Any = CrewReviewOperator(task_id="t", pending={**DRAFT, **more}, allow_edit=True, assigned_users=["ann"])
        given = {"human_feedback": SECRET} if more else {"human_feedback": SECRET, "edited_draft": SECRET}
        answer = {**ANSWERED, "chosen_options": [SECRET if more else "revise"], "params_input": given}
    else:
        made = CrewUsageApprovalOperator(task_id="t", completed=DONE, max_total_tokens=1)
        answer = {**ANSWERED, "chosen_options": ["approve"], "params_input": {}}
    made.render_template_fields(context)
    asked = copy.copy(made)
    kept = parked(lambda: asked.execute(context))
    assert supervisor.asked[0].body
    made.execute_complete(context, answer, **kept)
    for operator in (asked, made):
        said = told(operator)
        assert [each for each in (SECRET.strip(), "Ann Lee") if each in said] == []
