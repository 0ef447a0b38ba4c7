"""What a Flow's next process is given is what the last one had, or the execution ends and says what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_stub import EngineStub

from crew_service.engine.crew import Completed

pytestmark = pytest.mark.row("S45")
Player = Callable[..., EngineStub]


def flow(play: Player, name: str) -> EngineStub:
    run = play(name, "kept.py")
    run.inputs = {"log": str(run.log)}
    return run


def output(outcome: Any) -> str:
    assert isinstance(outcome, Completed)
    return outcome.output


def test_a_state_with_aliases_is_the_same_after_a_question(play: Player) -> None:
    run = flow(play, "CamelFlow")
    run.segment()
    assert output(run.answer("yes")) == "coffee 1"


def test_a_persisted_state_with_aliases_is_restored(play: Player) -> None:
    first = flow(play, "CamelFlow")
    first.segment()
    first.answer("yes")
    second = flow(play, "CamelFlow")
    second.execution_id, second.restore_from, second.inputs = "another", first.execution_id, {}
    second.segment()
    assert output(second.answer("yes")) == "coffeecoffee 2"


def test_the_inputs_are_the_names_that_a_kickoff_can_use(play: Player) -> None:
    run = flow(play, "CamelFlow")
    assert run.crew.inputs == ["draftText", "log", "workCount", "works"]
    run.inputs |= {"draftText": "tea and ", "works": 4}
    run.segment()
    assert output(run.answer("yes")) == "tea and coffee 5"
