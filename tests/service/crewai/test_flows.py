"""Flows behind the service: methods run, people decide between two segments, and nothing is done twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_stub import EngineStub

from crew_service.crewai import load
from crew_service.engine.crew import Completed, CrewFailed, CrewKilled, PendingReview

Player = Callable[..., EngineStub]


def flow(play: Player, name: str) -> EngineStub:
    return play(name, "flows.py")


def waits(outcome: Any) -> tuple[str, str, str | None, list[str] | None]:
    assert isinstance(outcome, PendingReview)
    return outcome.task_id, outcome.output, outcome.question, outcome.outcomes


def test_outcome_gates_loops_and_text_gates_give_the_right_output(play: Player) -> None:
    run = flow(play, "BriefingFlow")
    offered = ["publish", "rework", "drop"]
    assert waits(run.segment()) == ("draft", "Draft 1 on ducks", "May this go out?", offered)
    assert waits(run.choose("rework", "shorter")) == (
        "draft",
        "Draft 2 on ducks, after: shorter",
        "May this go out?",
        offered,
    )
    assert waits(run.choose("publish")) == ("place", "Choose a place", "Where to?", [])
    outcome = run.answer("the board")
    assert isinstance(outcome, Completed)
    assert outcome.output == "Draft 2 on ducks, after: shorter, sent to the board"
    assert run.finished() == ["begin", "draft", "draft", "place", "send"]
    assert run.calls() == ["begin", "draft", "draft", "place", "send"]


def test_data_lost_with_the_earlier_process_is_named_as_cause(play: Player) -> None:
    run = flow(play, "ForgetfulFlow")
    assert isinstance(run.segment(), PendingReview)
    with pytest.raises(CrewFailed, match=r"no attribute 'cart'\. The execution continued in a new process"):
        run.answer("yes")


def test_parallel_gates_are_asked_in_turn_and_block_nothing_else(play: Player) -> None:
    run = flow(play, "ReviewFlow")
    first = run.segment()
    assert waits(first)[0] in ("facts", "style")
    assert run.finished() == ["figures", "table"]
    answers = {"facts": lambda: run.choose("approved"), "style": lambda: run.answer("fine")}
    second = answers.pop(waits(first)[0])()
    assert waits(second)[0] in answers
    outcome = answers[waits(second)[0]]()
    assert outcome.output == "published with facts=approved, style=fine and ['figures']"
    assert sorted(run.calls()) == ["facts", "figures", "publish", "style", "table"]


def test_a_person_slower_than_the_machine_is_no_longer_asked(play: Player) -> None:
    outcome = flow(play, "RacingFlow").segment()
    assert isinstance(outcome, Completed)
    assert outcome.output == "finished by the machine's way"


def test_inputs_are_state_fields_and_those_without_defaults_are_required(play: Player) -> None:
    needy = flow(play, "NeedyFlow")
    assert (needy.crew.kind, needy.crew.inputs, needy.crew.required) == ("flow", ["depth", "topic"], ["topic"])
    needy.inputs = {"topic": "ducks", "depth": 2}
    outcome = needy.segment()
    assert isinstance(outcome, Completed)
    assert outcome.output_json == {"topic": "ducks", "depth": 2}
    plain = flow(play, "made")
    assert (plain.crew.inputs, plain.crew.required) == (["topic"], [])
    plain.inputs = {"who": "Ada"}
    assert plain.segment().output == "about something for Ada"


def test_inputs_misfitting_the_state_fail_the_execution_naming_the_field(play: Player) -> None:
    needy = flow(play, "NeedyFlow")
    needy.inputs = {"topic": "ducks", "depth": "deep"}
    with pytest.raises(CrewFailed, match="depth"):
        needy.segment()


def test_a_persisted_state_is_where_another_execution_starts_from(play: Player) -> None:
    first = flow(play, "CountingFlow")
    assert first.segment().output == "ducks 1"
    assert first.choose("yes").output == "ducks 2"
    second = flow(play, "CountingFlow")
    second.execution_id, second.restore_from, second.inputs = "another-execution", first.execution_id, {}
    assert second.segment().output == "ducks 3"


@pytest.mark.parametrize(
    ("name", "reason"), [("CountingFlow", "no state with that id"), ("BriefingFlow", "no @persist")]
)
def test_a_missing_state_is_not_silently_ignored(play: Player, name: str, reason: str) -> None:
    run = flow(play, name)
    run.restore_from = "an-unknown-state"
    with pytest.raises(CrewFailed, match=reason):
        run.segment()


def test_crews_inside_a_flow_run_and_their_tokens_are_counted(play: Player) -> None:
    run = flow(play, "CrewsFlow")
    outcome = run.segment()
    assert isinstance(outcome, Completed)
    assert outcome.output_json == {"text": "research v1 + writing v1"}
    assert run.finished() == ["research", "write_up", "check", "finish"]


def test_a_flow_goes_on_from_its_last_finished_method(play: Player) -> None:
    run = flow(play, "InterruptedFlow")
    run.log.with_name(run.log.name + ".go").touch()
    run.segment()
    run.done = run.done[:1]  # the second method had not finished when the service was killed
    outcome = run.segment()
    assert outcome.output == "of the first ['first']"
    assert run.calls() == ["first", "second", "second"]


def test_finished_methods_are_replayed_in_the_order_of_their_ends(play: Player) -> None:
    run = flow(play, "FirstFlow")
    run.segment()
    assert run.finished() == ["fast", "slow", "first", "last"]
    run.done = run.done[:2]
    run.segment()
    assert sorted(run.calls()) == ["first fast", "first fast", "last slow", "last slow"]


def test_what_crewai_does_around_a_finished_method_happens_once(play: Player) -> None:
    run = play("AroundFlow", "around.py")
    with pytest.raises(CrewKilled):
        run.segment()
    assert waits(run.segment())[0] == "hold.letter"
    draft = waits(run.choose("approve"))
    held = "<draft of <notes>, checked: well done, letter v1, draft=go+check=well done, True, 3>"
    assert draft == ("review", f"Log: {run.log} {held}", "Send?", ["send", "drop"])
    with pytest.raises(CrewKilled):
        run.choose("send", "Be kind")
    assert waits(run.segment())[0] == "end.letter"
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    said = "draft=go+check=well done+review=send"
    assert outcome.output == f"Log: {run.log} {held}; Be kind, letter v1, {said}, True, 5"
    finished = ["begin", "draft", "check", "hold", "review", "end"]
    assert run.finished() == run.calls(of="method_execution_finished") == finished
    assert run.calls(of="asked") == ["draft", "check"]
    assert run.calls(of="after") == ["begin", "draft", "check", "hold", "end"], "CrewAI calls it after no question"
    assert run.calls(of="saved") == [[run.execution_id, name] for name in finished]
    assert run.calls(of="learned") in ([1], []), "early versions of CrewAI do not learn after a pause"
    for each in (run.calls(), run.calls(of="before"), run.calls(of="method_execution_started")):
        assert [name for name in each if name in ("begin", "draft", "check")] == ["begin", "draft", "check"]


def test_a_continued_flow_saves_its_state_under_its_own_id(play: Player) -> None:
    run = play("AroundFlow", "around.py")
    with pytest.raises(CrewKilled):
        run.segment()
    failed, run.execution_id = run.execution_id, "second"
    assert waits(run.segment())[0] == "hold.letter"
    finished = ["begin", "draft", "check"]
    assert run.calls(of="saved") == [[some_id, name] for some_id in (failed, "second") for name in finished]
    assert run.calls(of="after") == finished
    run.choose("approve")
    with pytest.raises(CrewKilled):
        run.choose("send", "Be kind")
    run.execution_id = "third"
    run.segment()
    assert run.calls(of="saved")[-2:] == [["second", "review"], ["third", "review"]]


@pytest.mark.long
def test_a_flow_continues_from_what_an_earlier_release_stored(play: Player) -> None:
    run = play("AroundFlow", "around.py")
    run.log.with_name(run.log.name + ".hold").touch()
    run.segment()
    del run.done[1]["point"]["answer"]
    draft = waits(run.choose("approve"))[1]
    assert draft.endswith(" <draft of <notes>, checked: well done, letter v1, check=well done, True, 3>")
    with pytest.raises(CrewKilled):
        run.choose("send", "Be kind")
    del run.done[-1]["point"]
    assert waits(run.segment())[0] == "end.letter"
    assert run.choose("approve").output.endswith("; Be kind, letter v1, check=well done+review=send, True, 5")


@pytest.mark.long
def test_a_finished_method_no_longer_run_is_named(play: Player) -> None:
    run = flow(play, "FirstFlow")
    run.segment()
    run.done[0]["task_id"] = "gone"
    with pytest.raises(CrewFailed, match=r"The Flow has changed: its method 'gone'"):
        run.segment()


def test_a_flows_crews_ask_a_person_and_rerun_nothing_finished(play: Player) -> None:
    run = flow(play, "CrewAsksFlow")
    ways = ["approve", "revise"]
    question = "Do you approve the answer from the task writing?"
    assert waits(run.segment()) == ("research.writing", "writing v1", question, ways)
    assert waits(run.choose("revise", "shorter")) == ("research.writing", "writing v2 (shorter)", question, ways)
    place = run.choose("approve")
    assert waits(place) == ("place", "writing v2 (shorter) in round 1", "Where to?", [])
    assert waits(run.answer("the board"))[0] == "send.letter"
    assert waits(run.choose("revise", "warmer"))[:2] == ("send.letter", "letter v2 (warmer)")
    assert waits(run.choose("approve"))[:2] == ("send.letter", "letter v1"), "what was said is of the first letter"
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output == "writing v2 (shorter) in round 1; letter v2 (warmer) and letter v1"
    assert run.finished() == ["begin", "research", "place", "send"]
    letters = ["letter", "letter", "sent letter v2 (warmer)", "letter", "sent letter v1"]
    assert run.calls() == ["begin", "research", "writing", "writing", *letters]


@pytest.mark.row("S1")
@pytest.mark.parametrize("round_", [0, 1], ids=["equal texts", "other texts"])
def test_after_a_kill_a_loops_next_draft_is_asked_about(play: Player, round_: int) -> None:
    run = flow(play, "ChaptersFlow")
    run.inputs["round"] = round_
    run.segment()
    assert waits(run.choose("revise", "warmer"))[:2] == ("write.chapter", "chapter v2 (warmer)")
    assert waits(run.choose("approve"))[:2] == ("write.chapter", "chapter v1")
    assert waits(run.segment())[:2] == ("write.chapter", "chapter v1"), "as if it had been killed before it asked"
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output == "chapter v2 (warmer) and chapter v1"
    assert run.calls() == ["begin", "chapter", "chapter", "chapter"]


def test_an_answer_is_never_used_for_a_different_text(play: Player) -> None:
    run = flow(play, "FicklePlan")
    assert waits(run.segment())[0] == "plan.plan"
    with pytest.raises(CrewFailed, match="'plan' started is not the one whose question a person answered"):
        run.choose("approve")


def test_reviews_survive_switching_between_0_2_0_and_this_release(play: Player) -> None:
    run = flow(play, "CrewAsksFlow")
    run.segment()
    assert run.waiting
    nested = run.waiting.state["nested"]
    draft = nested["drafts"][nested["asked"]]
    texts = json.dumps(["writing", draft["description"], draft["expected_output"]])
    assert nested["asked"] == f"research/{hashlib.sha256(texts.encode()).hexdigest()[:16]}/1"
    del nested["places"]
    run.journal.clear()
    assert waits(run.choose("approve"))[0] == "place"
    assert run.calls() == ["begin", "research", "writing"]


@pytest.mark.long
@pytest.mark.row("S54")
def test_an_awaited_crews_async_callback_gets_the_remembered_approved_answer(play: Player) -> None:
    run = play("AwaitedFlow", "flows.py")
    run.segment()
    assert run.calls() == ["letter"]
    run.choose("revise", "warmer")
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output == "letter v2 (warmer)"
    assert [call for call in run.calls() if call not in ("letter", "nobody")] == [
        "sent letter v2 (warmer)",
        "letter v2 (warmer)",
    ]


def test_parallel_tasks_with_identical_texts_keep_their_own_answers(play: Player) -> None:
    run = play("ReviewedPosts", "replayed.py")
    assert waits(run.segment())[:2] == ("work.post", "post on bananas")
    assert waits(run.choose("approve"))[:2] == ("work.post", "post on apples")
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output == "post on apples, post on bananas"


def test_feedback_is_kept_while_a_parallel_draft_is_asked_about(play: Player) -> None:
    run = flow(play, "ParallelLetters")
    assert waits(run.segment())[:2] == ("write.note", "note v1")
    assert waits(run.choose("revise", "warmer"))[:2] == ("write.letter", "letter v1")
    assert waits(run.choose("approve"))[:2] == ("write.note", "note v2 (warmer)")
    assert waits(run.choose("revise", "shorter"))[:2] == ("write.note", "note v3 (warmer) (shorter)")
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output == "letter v1 and note v3 (warmer) (shorter)"
    assert sorted(run.calls()) == ["letter", "note", "note", "note"]


def test_a_revision_that_nobody_reviews_ends_the_round(play: Player) -> None:
    run = flow(play, "SeldomReviewed")
    assert waits(run.segment())[:2] == ("write.letter", "letter v1")
    assert waits(run.choose("revise", "warmer"))[:2] == ("write.note", "note v1")
    outcome = run.choose("approve")
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith(" and note v1")


def test_a_planned_crew_in_a_flow_keeps_its_first_plan(play: Player) -> None:
    run = play("ReviewedPlan", "replayed.py")
    kill = run.log.with_suffix(".kill")
    kill.write_text("3")  # after the tool call of the first task
    with pytest.raises(CrewKilled):
        run.segment()
    assert waits(run.segment())[0] == "work.one"
    kill.write_text("4")  # in the second task
    with pytest.raises(CrewKilled):
        run.choose("approve")
    assert isinstance(run.segment(), Completed)
    made = [entry.get("model", entry.get("tool")) for entry in run.entries()]
    assert made == [None, "one", "take", "one", "two", "take", "two"]  # None: the planner's task has no name


EXAMPLE = Path(__file__).parents[3] / "example_dags/crews/briefing_flow.py"


def test_the_example_flow_carries_both_reviews_to_its_end(tmp_path: Path) -> None:
    run = EngineStub(load(f"{EXAMPLE}:BriefingFlow"), tmp_path / "log")
    run.inputs = {"topic": "ducks"}
    assert "ducks" in run.segment().output
    assert "Name the sources." in run.choose("rework", "Name the sources.").output
    assert waits(run.choose("approved"))[3] == ["publish", "keep", "drop"]
    assert waits(run.choose("publish"))[2:] == ("Who should read it?", [])
    assert run.answer("the board").output.endswith("Name the sources.\n\nPublished for the board.")
