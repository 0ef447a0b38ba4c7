"""What Airflow keeps of a Flow's questions: under which name, for how long, and how it is read back."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_crew_provider.inbox import rows as questions
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.inbox.rows import (
    MOST_QUESTIONS,
    FlowRun,
    address_in,
    is_over,
    kept_until,
    questions_in,
    with_question,
)

NOW = datetime(2026, 11, 20, 12, 0, 0, 5, tzinfo=UTC)
SAID = "Inbox of the crew provider, kept until "


def question(number: int) -> FlowQuestion:
    return FlowQuestion(f"q-{number}", "check", "Fine?", "Draft", ["yes", "no"], ["f"], "f")


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose own time is not UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_names_depend_on_connection_and_id_and_never_change() -> None:
    digest = hashlib.sha256(b'["crew_flow", "e-1"]').hexdigest()[:40]
    assert questions.questions_key("crew_flow", "e-1") == f"crew_flow_questions_{digest}"
    assert questions.answer_key("crew_flow", "e-1") == f"crew_flow_secret_{digest}"


def test_a_variable_says_until_when_it_is_kept(far_east: None) -> None:
    assert kept_until(NOW) == SAID + "2027-01-19T12:00:00+00:00"
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert kept_until(elsewhere) == kept_until(NOW)
    assert kept_until(NOW, timedelta(days=1)) == SAID + "2026-11-21T12:00:00+00:00"


@pytest.mark.parametrize("key", ["crew_flow_questions_1", "crew_flow_secret_1"])
def test_a_variable_is_over_after_its_time(key: str, far_east: None) -> None:
    said = kept_until(NOW)
    ends = datetime(2027, 1, 19, 12, tzinfo=timezone(timedelta(hours=0)))
    assert is_over(key, said, ends) is False
    assert is_over(key, said, (ends + timedelta(seconds=1)).astimezone(timezone(timedelta(hours=-5)))) is True


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("other", SAID + "2020-01-01T00:00:00+00:00"),
        ("crew_flow_questions_1", None),
        ("crew_flow_questions_1", ""),
        ("crew_flow_questions_1", "2020-01-01T00:00:00+00:00"),
        ("crew_flow_questions_1", "A note of mine"),
    ],
)
def test_a_variable_of_others_is_never_over(key: str, said: str | None) -> None:
    assert is_over(key, said, NOW) is False


def test_without_anything_stored_there_is_no_question_and_no_address() -> None:
    assert questions_in(None) == []
    assert address_in(None) is None


def test_questions_return_oldest_first_and_the_newest_are_kept() -> None:
    kept = "null"
    for number in range(MOST_QUESTIONS + 2):
        kept = json.dumps(with_question(questions_in(json.loads(kept)), question(number)))
    assert questions_in(json.loads(kept)) == [question(number) for number in range(2, MOST_QUESTIONS + 2)]


def test_an_address_is_read_back_until_it_is_used_up() -> None:
    address = AnswerAddress("https://x.example/r", "token", "f")
    assert address_in(json.loads(json.dumps(address.as_dict()))) == address
    assert address_in(questions.USED) is None


RUN = FlowRun("crew_flow", "e-1", "dag", "run")


def test_a_run_is_stored_under_its_own_name_and_restored() -> None:
    digest = hashlib.sha256(b'["crew_flow", "e-1", "dag", "run"]').hexdigest()[:40]
    assert RUN.key == f"crew_flow_run_{digest}"
    assert RUN.description == "Inbox of the crew provider, for run of dag; removed within a day of its end"
    assert is_over(RUN.key, RUN.description, NOW) is False
    assert FlowRun.of(json.loads(json.dumps(RUN.as_dict()))) == RUN


@pytest.mark.parametrize("value", [None, "", "gAAAA", 5, {}, {"dag_id": "dag"}, ["crew_flow", "e-1"]])
def test_what_is_not_a_run_is_none(value: Any) -> None:
    assert FlowRun.of(value) is None
