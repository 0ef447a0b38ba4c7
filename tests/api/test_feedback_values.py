"""What an answer is made of: the flag, a record that came as a text, and the outcome of a Flow that is meant."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_crew_provider.api.answers import (
    ReviewAnswer,
    approval_meant,
    feedback_to_send,
    outcome_meant,
    strict_bool,
    was_taken,
)
from airflow_crew_provider.api.values import record_of, record_or_none
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import EditedOutput
from airflow_crew_provider.stored_names import ALREADY, NOT_SENT


@pytest.mark.parametrize(
    ("given", "read"),
    [(True, True), ("true", True), (" TRUE\n", True), (False, False), ("false", False), (" False ", False)],
)
def test_the_flag_is_a_bool_or_its_word(given: Any, read: bool) -> None:
    assert strict_bool(given) is read


@pytest.mark.parametrize("given", [None, 0, 1, "", "yes", "None", "1", [True]])
def test_anything_else_is_refused_as_a_flag(given: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        strict_bool(given)
    assert str(error.value) == f"is_approve is {given!r}, neither true nor false; nothing was sent"


@pytest.mark.parametrize("given", ["", " \n"])
def test_a_rejection_needs_a_text(given: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        feedback_to_send(False, given)
    assert str(error.value) == "A rejection needs human_feedback that says what to change; nothing was sent"


def test_feedback_that_agrees_with_the_flag_is_sent_unchanged() -> None:
    assert feedback_to_send(False, "Shorter") == "Shorter"
    assert feedback_to_send(True, " fine ") == " fine "


@pytest.mark.parametrize("given", [{"a": None}, '{"a": null}', "{'a': None}"])
def test_a_record_may_come_as_json_or_template_text(given: Any) -> None:
    assert record_of(given, "review") == {"a": None}
    assert record_or_none(given) == {"a": None}


@pytest.mark.parametrize(
    ("given", "kind"),
    [(None, "NoneType"), ("None", "NoneType"), ("[1]", "list"), ("{", "str"), ("f()", "str"), ("(" * 100_000, "str")],
)
def test_what_is_no_record_is_refused_by_its_kind(given: Any, kind: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        record_of(given, "review")
    assert str(error.value) == f"review must be a record, not {kind}; nothing was sent"
    assert record_or_none(given) is None


@pytest.mark.parametrize(
    ("outcomes", "approves", "rejects"),
    [
        (["approved", "rejected"], "approved", "rejected"),
        (["rework", "LOOKS_GOOD"], "LOOKS_GOOD", "rework"),
        (["approved"], "approved", None),
        (["approved", "rework", "drop"], "approved", None),
        (["approved", "ok", "drop"], None, None),
        (["publish", "drop"], None, None),
        ([], None, None),
    ],
)
def test_an_outcome_is_meant_where_only_one_can_be(
    outcomes: list[str], approves: str | None, rejects: str | None
) -> None:
    assert outcome_meant(True, outcomes) == approves
    assert outcome_meant(False, outcomes) == rejects


@pytest.mark.parametrize(
    ("outcome", "outcomes", "meant"),
    [
        ("approved", ["approved", "rejected"], True),
        ("rejected", ["approved", "rejected"], False),
        ("rejected", ["rejected", "looks_good"], False),
        ("approved", ["approved", "rework", "drop"], None),
        ("approved", ["approved"], None),
        ("publish", ["publish", "drop"], None),
    ],
)
def test_a_choice_between_an_approval_and_one_other_says_which(
    outcome: str, outcomes: list[str], meant: bool | None
) -> None:
    assert approval_meant(outcome, outcomes) is meant


APPROVED = {"execution_id": "e-1", "crew_task_id": "t-1", "is_approve": True, "output_sha256": "h"}


@pytest.mark.parametrize("text", ["My text.", ""])
def test_an_approval_may_carry_a_text_instead_of_the_draft(text: str) -> None:
    answer = ReviewAnswer.of({**APPROVED, "edited_output": text})
    assert answer.edit == EditedOutput(text, "h")
    assert answer.request["edited_output"] == text
    assert ReviewAnswer.of(APPROVED).edit is None
    assert "edited_output" not in ReviewAnswer.of(APPROVED).request


@pytest.mark.parametrize(
    "more",
    [
        {"edited_output": 5},
        {"edited_output": "x", "is_approve": False, "human_feedback": "Shorter."},
        {"edited_output": "x", "output_sha256": None},
        {"edited_output": "x", "is_approve": None, "outcome": "publish"},
    ],
)
def test_an_edited_draft_without_the_shown_drafts_approval_is_refused(more: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        ReviewAnswer.of({**APPROVED, **more})
    said = "edited_output must be a string and requires approval of a draft; nothing was sent"
    assert str(error.value) == said


@pytest.mark.parametrize("name", ["execution_id", "crew_task_id"])
def test_a_record_as_an_id_of_an_answer_is_refused(name: str) -> None:
    ids = {"execution_id": "e-1", "crew_task_id": "draft_task"}
    with pytest.raises(CrewInvalidInput, match=f"^{name} must be an id, but is a record: pass its field '{name}'"):
        ReviewAnswer.of({**ids, name: {"kickoff_id": "k-1", **ids}, "is_approve": True})


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ({"status": "resumed", "taken": True}, True),
        ({"status": "resumed", "taken": False}, False),
        ({"status": ALREADY, "taken": True}, True),
        ({"status": "resumed"}, True),
        ({"status": ALREADY}, False),
        ({"status": NOT_SENT}, False),
        ({}, True),
    ],
)
def test_an_older_resumes_status_shows_whether_its_answer_was_taken(sent: Any, taken: bool) -> None:
    assert was_taken(sent) is taken
