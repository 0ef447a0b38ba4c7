"""Code of a crew's own that catches exceptions around what asks a person: the person is asked all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from engine_stub import EngineStub

from crew_service.engine.crew import Completed, CrewFailed, PendingReview
from scripts.stack.waiting import FACTOR

Player = Callable[..., EngineStub]
pytestmark = pytest.mark.row("S33")


def careful(play: Player, name: str, topic: str = "ducks") -> EngineStub:
    run = play(name, "careful.py")
    run.inputs["topic"] = topic
    limit = threading.Timer(60 * FACTOR, run.cancelled.set, ["it hangs"])
    limit.daemon = True
    limit.start()
    return run


CAUGHT = ["catches", "awaits", "catches_all", "retries", "raises_another", "in_a_thread", "beside"]
WAYS = [*CAUGHT, "in_a_tool", "in_a_tool_beside", "without_hooks"]
OFTEN = ("catches", "in_a_thread", "beside", "in_a_tool", "without_hooks")  # the others end in the same way


@pytest.mark.parametrize("way", [way if way in OFTEN else pytest.param(way, marks=pytest.mark.long) for way in WAYS])
def test_a_flow_whose_method_catches_exceptions_waits_and_goes_on(play: Player, way: str) -> None:
    run = careful(play, "CarefulFlow", way)
    asked = run.segment()
    assert isinstance(asked, PendingReview), asked
    assert (asked.task_id.partition(".")[2], asked.output) == ("letter", "letter v1")
    assert "fallback" not in run.calls()
    assert "other" not in run.calls() or way == "beside"
    revised = run.choose("revise", "shorter")
    assert isinstance(revised, PendingReview), revised
    assert revised.output == "letter v2 (shorter)"
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output == "got letter v2 (shorter)"
    assert run.calls().count("letter") == 2
    assert "fallback" not in run.calls()


def test_a_person_sees_what_hooks_made_of_a_nested_answer(play: Player) -> None:
    run = careful(play, "CarefulFlow", "redacts")
    assert run.segment().output == "letter v*"
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output == "got letter v*"


@pytest.mark.long
@pytest.mark.parametrize("way", ["outside_of_the_method", "in_another_flow"])
def test_a_flow_asking_without_a_person_fails_whatever_it_catches(play: Player, way: str) -> None:
    with pytest.raises(CrewFailed, match=r"asks a person|requests terminal input"):
        careful(play, "CarefulFlow", way).segment()


@pytest.mark.long
@pytest.mark.parametrize("way", ["asks", "asks_with_a_timeout"])
def test_a_flow_that_asks_a_person_waits_whatever_it_catches(play: Player, way: str) -> None:
    run = careful(play, "CarefulFlow", way)
    asked: Any = run.segment()
    timeout = 60 if way == "asks_with_a_timeout" else None
    assert (asked.kind, asked.text, asked.of_flow["timeout"]) == ("question", "Which one?", timeout)
    assert "fallback" not in run.calls() or timeout  # the one with a timeout catches what stops it, too


def test_a_flow_chatting_at_a_terminal_fails_whatever_it_catches(play: Player) -> None:
    run = careful(play, "CarefulFlow", "chats")
    with pytest.raises(CrewFailed, match=r"has no terminal; ask a person with self\.ask\(\) or @human_feedback"):
        run.segment()
    assert "fallback" not in run.calls()


@pytest.mark.long
@pytest.mark.parametrize("name", ["careful_tool", "careful_tool_beside"])
def test_an_asking_crew_in_a_tool_always_fails_the_execution(play: Player, name: str) -> None:
    with pytest.raises(CrewFailed, match="asks a person"):
        careful(play, name).segment()


@pytest.mark.long
def test_hooks_asking_at_a_terminal_fail_before_the_tool_runs(play: Player) -> None:
    run = careful(play, "asks_in_a_hook")
    with pytest.raises(CrewFailed, match="The crew requests terminal input"):
        run.segment()
    assert run.calls() == []


@pytest.mark.long
def test_a_crew_or_flow_with_its_own_kickoff_waits(play: Player) -> None:
    crew = careful(play, "careful_crew")
    assert isinstance(crew.segment(), PendingReview)
    assert crew.calls() == ["draft"]
    assert crew.approve().output == "draft v1"
    flow = careful(play, "WrappingFlow")
    assert isinstance(flow.segment(), PendingReview)
    assert isinstance(flow.answer("yes"), Completed)
