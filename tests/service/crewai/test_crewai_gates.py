"""A person decides between two segments, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_stub import EngineStub

from crew_service.engine.crew import CrewFailed, ReviewDecision, Round, Step, TaskStarted, TokensUsed

Player = Callable[..., EngineStub]


def test_two_gates_and_revisions_end_correctly_without_repeated_model_calls(play: Player) -> None:
    crew = play("two_gates")
    assert crew.segment().output == "outline v1"
    assert crew.revise("shorter").output == "outline v2 (shorter)"
    assert crew.revise("funnier").output == "outline v3 (shorter) (funnier)"
    assert crew.approve().output == "draft v1"
    assert crew.finished() == ["outline"]
    assert crew.done[0]["output"] == "outline v3 (shorter) (funnier)"
    assert crew.revise("name sources").output == "draft v2 (name sources)"
    assert crew.approve().output == "final v1"
    assert crew.finished() == ["outline", "draft", "final"]
    assert crew.calls() == ["outline"] * 3 + ["draft"] * 2 + ["final"]


def test_a_revision_continues_from_earlier_answers_and_their_feedback(play: Player) -> None:
    crew = play("two_gates")
    crew.segment()
    crew.revise("shorter")
    crew.revise("funnier")
    turns = crew.entries()[-1]["turns"]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert turns[2]["content"] == "outline v1"
    assert "shorter" in turns[3]["content"]
    assert turns[4]["content"] == "outline v2 (shorter)"
    assert "funnier" in turns[5]["content"]


def test_tasks_after_a_gate_get_its_approved_output_as_context(play: Player) -> None:
    crew = play("two_gates")
    crew.segment()
    crew.revise("shorter")
    crew.approve()
    assert "outline v2 (shorter)" in crew.entries()[-1]["turns"][-1]["content"]
    crew.approve()
    final = crew.entries()[-1]["turns"][-1]["content"]
    assert "outline v2 (shorter)" in final
    assert "draft v1" in final


def test_an_edited_answer_becomes_task_output_and_later_context(play: Player) -> None:
    crew = play("with_callbacks")
    crew.segment()
    crew.approve("a draft of my own")
    assert crew.done[0]["output"] == "a draft of my own"
    assert crew.calls(of="task callback") == ["a draft of my own"]
    assert Path(f"{crew.log}.txt").read_text() == "a draft of my own"
    assert "a draft of my own" in crew.entries()[-2]["turns"][-1]["content"]


def test_tokens_are_summed_over_segments_counting_a_shared_model_once(play: Player) -> None:
    crew = play("two_gates")
    crew.segment()
    crew.revise("shorter")
    crew.approve()
    crew.approve()
    assert crew.used == {"total_tokens": 44, "prompt_tokens": 40, "completion_tokens": 4}


def test_a_gate_on_the_last_task_returns_the_approved_output(play: Player) -> None:
    crew = play("last_gate")
    crew.segment()
    crew.revise("shorter")
    assert crew.approve().output == "final v2 (shorter)"
    assert crew.finished() == ["draft", "final"]


def test_a_gated_tasks_callbacks_and_file_follow_its_approval(play: Player) -> None:
    crew = play("with_callbacks")
    crew.segment()
    crew.revise("shorter")
    file = Path(f"{crew.log}.txt")
    assert not file.exists()
    assert crew.calls(of="task callback") == []
    outcome = crew.approve()
    assert file.read_text() == "draft v2 (shorter)"
    assert crew.calls(of="task callback") == ["draft v2 (shorter)"]
    assert crew.calls(of="crew callback") == ["draft v2 (shorter)", "final v1"]
    assert outcome.output == "<final v1>", "the after-kickoff callback has the last word"
    assert "DUCKS" in crew.entries()[-2]["turns"][-1]["content"], "the before-kickoff callback has the first"


def test_a_decision_may_be_repeated_after_its_task_was_stored(play: Player) -> None:
    crew = play("two_gates")
    crew.segment()
    crew.approve()
    crew.waiting, crew.rounds = None, ()
    assert crew.segment().output == "draft v1"
    assert crew.finished() == ["outline"]


def test_an_execution_goes_on_from_its_last_finished_task(play: Player) -> None:
    crew = play("asynchronous")
    crew.segment()
    crew.done.pop()
    crew.journal.clear()
    assert crew.segment().output == "joined v1"
    assert sorted(crew.calls()) == ["joined", "joined", "left", "right", "right"]


def test_the_running_task_is_reported_with_agent_and_filled_inputs(play: Player) -> None:
    crew = play("two_gates")
    crew.segment()
    assert crew.seen[0] == TaskStarted("outline", "Writer of ducks")
    used = {"total_tokens": 11, "prompt_tokens": 10, "completion_tokens": 1}
    others = ("cached_prompt_tokens", "cache_creation_tokens", "long_calls", "uncounted_calls")
    by_task = {"outline": {"scribe": {**used, **dict.fromkeys(others, 0)}}}
    asked, told, answered = crew.seen[1:]
    assert isinstance(asked, Step)
    assert isinstance(answered, Step)
    assert (asked.state, asked.agent, asked.usage) == ("running", "Writer of ducks", None)
    assert told == TokensUsed(11, used, by_task), "what is recorded has been counted"
    assert (answered.state, answered.number, answered.usage) == ("done", asked.number, by_task["outline"]["scribe"])


def test_a_crew_changed_under_its_executions_fails_clearly(play: Player) -> None:
    crew = play("two_gates")
    crew.done = [{"task_id": "prologue", "agent": "Writer", "output": "once", "execution_time": 1.0}]
    with pytest.raises(CrewFailed, match=r"The crew has changed: .* prologue, but .* outline"):
        crew.segment()


def test_a_decision_on_a_missing_task_fails_clearly(play: Player) -> None:
    crew = play("two_gates")
    crew.gate = ReviewDecision("epilogue", True, (Round("once", "Approved."),), {})
    with pytest.raises(CrewFailed, match=r"The crew has changed: its tasks no longer match the decision on epilogue"):
        crew.segment()


def test_a_crew_inside_a_crew_cannot_ask_a_person_unnoticed(play: Player) -> None:
    with pytest.raises(CrewFailed, match="asks a person"):
        play("nested").segment()


def test_a_gate_needs_a_person_even_if_hooks_are_cleared(play: Player) -> None:
    crew = play("without_hooks")
    assert crew.segment().output == "draft v1"
    assert crew.revise("shorter").output == "draft v2 (shorter)"
    assert crew.approve().output == "final v1"
    assert crew.calls() == ["draft", "draft", "final"]


def test_a_gate_holds_although_a_hook_replaces_the_callback(play: Player) -> None:
    crew = play("with_another_callback")
    assert crew.segment().output == "draft v1"
    assert crew.calls(of="task callback") == crew.calls(of="crew callback") == []


def test_callbacks_that_a_hook_sets_follow_each_task(play: Player) -> None:
    crew = play("with_another_callback")
    crew.segment()
    crew.approve()
    assert crew.finished() == ["draft", "final"]
    assert crew.calls(of="task callback") == crew.calls(of="crew callback") == ["draft v1", "final v1"]


@pytest.mark.parametrize("kind", ["redacted", "RedactingCrew"])
def test_a_person_sees_the_answer_that_hooks_have_replaced(play: Player, kind: str) -> None:
    crew = play(kind)
    assert crew.segment().output == "the *** plan"
    assert crew.approve().output == "the *** plan"
    assert crew.done[0]["output"] == "the *** plan"
