"""An outcome crosses from the triggerer to a worker as it is, and nothing malformed is taken for one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import shortened
from airflow_crew_provider.wait.watch import GAVE_UP, KINDS, LONGEST_MESSAGE, PENDING, Outcome


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_arrives(kind: str) -> None:
    sent = Outcome(kind, "k-1", "a message", "t-1", {"cost_usd": 1})
    event = {"kind": kind, "kickoff_id": "k-1", "message": "a message", "crew_task_id": "t-1", "usage": {"cost_usd": 1}}
    assert sent.to_event() == event
    assert Outcome.from_event(sent.to_event()) == sent


def test_an_error_is_sent_only_if_there_is_one() -> None:
    given_up = Outcome(GAVE_UP, "k-1", "away", error={"class": "CrewServerError", "args": [503]})
    assert given_up.to_event()["error"] == given_up.error
    assert Outcome.from_event(given_up.to_event()) == given_up
    assert Outcome.from_event({**given_up.to_event(), "error": "away"}).error is None


def test_what_is_missing_is_empty() -> None:
    for event in ({"kind": PENDING, "kickoff_id": "k"}, {"kind": PENDING, "kickoff_id": "k", "message": None}):
        assert Outcome.from_event(event) == Outcome(PENDING, "k", "", None)
    assert Outcome.from_event({"kind": PENDING, "kickoff_id": "k", "message": 5}).message == "5"
    assert Outcome.from_event({"kind": PENDING, "kickoff_id": "k", "usage": "7 tokens"}).usage is None


@pytest.mark.parametrize(
    "event",
    [
        None,
        "pending",
        {},
        {"kind": "pending"},
        {"kickoff_id": "k"},
        {"kind": "success", "kickoff_id": "k"},
        {"kind": "pending", "kickoff_id": 5},
        {"kind": "pending", "kickoff_id": "k", "crew_task_id": 5},
    ],
)
def test_all_else_is_an_error_that_shows_it(event: Any) -> None:
    with pytest.raises(CrewProtocolError) as error:
        Outcome.from_event(event)
    assert str(error.value) == f"The trigger's event cannot be read: {event}"


def test_of_a_huge_event_the_error_shows_the_beginning() -> None:
    with pytest.raises(CrewProtocolError) as error:
        Outcome.from_event("x" * 500)
    assert str(error.value) == "The trigger's event cannot be read: " + "x" * 200


def test_a_message_is_cut_at_its_longest_and_says_so() -> None:
    assert shortened("x" * LONGEST_MESSAGE, LONGEST_MESSAGE) == "x" * LONGEST_MESSAGE
    cut = shortened("x" * (LONGEST_MESSAGE + 1), LONGEST_MESSAGE)
    assert (len(cut), cut[-20:]) == (LONGEST_MESSAGE, "x… (2001 characters)")
    assert Outcome("failed", "k", "x" * 5000).message == shortened("x" * 5000, LONGEST_MESSAGE)
