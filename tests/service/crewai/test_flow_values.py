"""What a Flow's next process is given is what the last one had, or the execution ends and says what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from threading import Lock
from typing import Any

import pytest
from crewai.flow import Flow
from engine_stub import CREWS, EngineStub
from pydantic import BaseModel

from crew_service.crewai import codec, flow_state, flow_values, load
from crew_service.engine.crew import Completed, CrewFailed, CrewKilled, TaskDone

pytestmark = pytest.mark.row("S45")
Player = Callable[..., EngineStub]


def flow(play: Player, name: str) -> EngineStub:
    run = play(name, "kept.py")
    run.inputs = {"log": str(run.log)}
    return run


def output(outcome: Any) -> str:
    assert isinstance(outcome, Completed)
    return outcome.output


@pytest.mark.long
def test_a_state_with_aliases_is_the_same_after_a_question(play: Player) -> None:
    run = flow(play, "CamelFlow")
    run.segment()
    assert output(run.answer("yes")) == "coffee 1"


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("inputs", [{}, {"topic": "tea"}])
def test_a_default_that_its_own_type_would_refuse_is_kept(play: Player, inputs: Any) -> None:
    run = play("OutlineFlow", "kept.py")
    run.inputs = inputs
    assert run.segment().output == f"None on {inputs.get('topic', 'nothing')}"
    assert output(run.answer("yes")) == f"None, None, {inputs.get('topic', '')}"


NOT_KEPT = ("a client", "a class of a function", "a function")


def over_a_kill(run: EngineStub) -> Any:
    run.inputs["way"] = "kill"
    with pytest.raises(CrewKilled):
        run.segment()
    return run.segment()


@pytest.mark.long
def test_a_state_is_unchanged_after_a_kill_and_a_question(play: Player) -> None:
    run = flow(play, "AskingStateFlow")
    run.inputs["kind"] = "everything"
    over_a_kill(run)
    assert run.done[-1]["output"] == "same"
    assert output(run.answer("yes")) == "same"
    assert run.calls() == ["fill"]


def test_what_is_shared_within_a_state_stays_shared(play: Player) -> None:
    run = flow(play, "SharingFlow")
    over_a_kill(run)
    assert output(run.answer("yes")) == "a!? b"


@pytest.mark.long
def test_a_result_is_the_same_after_a_kill(play: Player) -> None:
    run = flow(play, "ResultFlow")
    run.inputs["kind"] = "everything"
    assert output(over_a_kill(run)) == "same"
    assert run.calls() == ["make"]


@pytest.mark.long
def test_a_result_is_the_same_after_two_questions(play: Player) -> None:
    run = flow(play, "AskingResultFlow")
    run.inputs["kind"] = "everything"
    run.segment()
    run.answer("yes")
    assert output(run.answer("yes")) == "same same"


@pytest.mark.long
@pytest.mark.parametrize("name", ["StateFlow", "ResultFlow"])
def test_unstorable_values_harm_no_flow_staying_in_one_process(play: Player, name: str) -> None:
    run = flow(play, name)
    run.inputs["kind"] = "a client"
    assert output(run.segment()) == "same"


WHERE = {"AskingStateFlow": "'thing", "AskingResultFlow": "of its method 'make'", "CrewInMethodFlow": "'make'"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "a client") for name in WHERE), *(("AskingStateFlow", kind) for kind in NOT_KEPT[1:])]
)
def test_nobody_is_asked_if_the_answer_could_not_be_used(play: Player, name: str, kind: str) -> None:
    run = flow(play, name)
    run.inputs["kind"] = kind
    with pytest.raises(CrewFailed, match=f"nobody was asked.*{WHERE[name]}"):
        run.segment()


@pytest.mark.long
@pytest.mark.parametrize(("name", "where"), [("StateFlow", "'thing"), ("ResultFlow", "'make'")])
def test_after_a_kill_the_error_names_what_was_not_kept(play: Player, name: str, where: str) -> None:
    run = flow(play, name)
    run.inputs["kind"] = "a client"
    with pytest.raises(CrewFailed, match=where):
        over_a_kill(run)
    assert run.calls() in (["fill"], ["make"])


@pytest.mark.long
def test_the_error_says_what_would_be_kept(play: Player) -> None:
    run = flow(play, "AskingResultFlow")
    run.inputs["kind"] = "a client"
    with pytest.raises(CrewFailed, match=r"'lock' in the return value .* \(_thread.lock\) .* only the text '<unlocked"):
        run.segment()


def test_what_would_be_kept_shows_no_partial_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self) -> None:
            self.lock = Lock()

        def __str__(self) -> str:
            return f"<Client {'.' * 52} api_key=sk-a-key-of-a-model>"

    monkeypatch.setenv("OF_A_MODEL_API_KEY", "sk-a-key-of-a-model")
    shown = flow_values.stored(Client(), packages=(), name="make")["problem"]
    assert ("sk-a" in shown, "api_key=***" in shown) == (False, True), shown


def test_a_state_that_has_not_changed_is_not_sent_again(play: Player) -> None:
    run = flow(play, "ResultFlow")
    run.inputs["kind"] = "a date"
    run.segment()
    assert [bool(each.flow_state) for each in run.seen if isinstance(each, TaskDone)] == [True, False]


@pytest.mark.long
def test_fields_that_a_changed_project_adds_get_their_defaults(play: Player) -> None:
    run = flow(play, "CamelFlow")
    run.segment()
    run.crew = load(f"{CREWS / 'kept.py'}:GrownFlow")
    assert output(run.answer("yes")) == "coffee 1 by nobody"


@pytest.mark.long
def test_a_state_incompatible_with_a_changed_project_fails_in_words(play: Player) -> None:
    run = flow(play, "CamelFlow")
    run.segment()
    run.crew = load(f"{CREWS / 'kept.py'}:LooseAgainFlow")
    with pytest.raises(CrewFailed, match=r"The Flow has changed: its state cannot be restored"):
        run.answer("yes")


@pytest.mark.long
@pytest.mark.row("S55")
def test_a_large_state_is_stored_once(play: Player) -> None:
    run = flow(play, "LargeFlow")
    run.inputs["kind"] = "10"
    assert output(over_a_kill(run)) == str((10 << 20) + 1)
    assert len(json.dumps(run.done)) < 10_000
    assert run.calls() == ["fill"]


@pytest.mark.long
@pytest.mark.row("S55")
def test_a_state_that_is_too_large_is_not_kept(play: Player) -> None:
    run = flow(play, "LargeFlow")
    run.inputs["kind"] = "70"
    assert output(run.segment()) == str((70 << 20) + 1)
    run = flow(play, "LargeFlow")
    run.inputs["kind"] = "70"
    with pytest.raises(CrewFailed, match="its state takes 70 MiB, and at most 64 MiB are kept"):
        over_a_kill(run)


@pytest.mark.row("S55")
def test_a_state_too_large_even_compressed_stays_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_state, "LONGEST_KEPT", 1 << 20)
    flow = Flow[dict[str, Any]]()
    flow.state["thing"] = Random(0).randbytes(3 << 20)
    state = flow_state.FlowState(flow, None, codec.loaded_packages())
    assert state.changed()
    for _ in range(2):
        assert state.changed() is None
        assert state.problem == "its state takes 4 MiB compressed, and at most 1 MiB are kept"
    flow.state["thing"] = b""
    assert state.changed()
    assert state.problem is None


@pytest.mark.long
@pytest.mark.row("S55")
def test_results_too_large_together_fail_before_anybody_is_asked(play: Player) -> None:
    with pytest.raises(CrewFailed, match=r"nobody was asked: .* takes 70 MiB, and at most 48 MiB are kept"):
        flow(play, "ManyLargeResults").segment()


@pytest.mark.long
def test_a_crew_asks_nobody_if_an_output_cannot_be_kept(play: Player) -> None:
    quiet = play("quiet_crew", "kept.py")
    assert output(quiet.segment()) == "second v1"
    asking = play("asking_crew", "kept.py")
    with pytest.raises(
        CrewFailed, match=r"nobody was asked.*task 'first', '_lock' in its field 'pydantic' .*_thread.lock"
    ):
        asking.segment()


@pytest.mark.long
def test_an_unstorable_crew_output_is_reported_in_a_new_process(play: Player) -> None:
    run = play("quiet_crew", "kept.py")
    run.segment()
    run.done = run.done[:1]
    lost = run.crew.lost(run.done, {})
    assert lost is not None, "an execution that continues it is refused"
    with pytest.raises(CrewFailed, match=f"cannot continue in a new process: {re.escape(lost)}") as failed:
        run.segment()
    assert "of the output of the task 'first', '_lock' in its field" in str(failed.value)


@pytest.mark.long
def test_this_release_accepts_answers_to_stored_0_2_0_questions(play: Player) -> None:
    run = flow(play, "CamelFlow")
    run.segment()
    assert run.waiting
    stored = run.waiting.state
    question = {name: value for name, value in stored["waiting"][0].items() if name != "kept"}
    stored["waiting"] = [{**question, "method_output": "coffee", "metadata": {}}]
    stored["memory"]["_method_outputs"] = [{"method": "draft", "output": "coffee", "answer": None}]
    stored["state"] = {"id": run.execution_id, "log": str(run.log), "draft_text": "tea", "work_count": 7}
    run.flow_state = None
    assert output(run.answer("yes")) == "tea 7"


@pytest.mark.long
def test_this_release_replays_results_stored_by_0_2_0(play: Player) -> None:
    run = flow(play, "ResultFlow")
    run.inputs["kind"] = "a model"
    run.segment()
    state = {"id": "x", "log": str(run.log), "kind": "everything", "way": "", "thing": None}
    data = {"text": "a", "number": 3}
    result = {"model": ["crew_of_kept", "LastPage"], "data": data}
    run.done, run.flow_state = [{**run.done[0], "point": {"result": result, "state": state}}], None
    assert output(run.segment()) == repr(LastPage(**data))
    assert run.calls() == ["make"]


class LastPage(BaseModel):
    text: str
    number: int
