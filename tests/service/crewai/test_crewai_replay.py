"""Whatever of CrewAI a task uses, a process that begins it again makes no call a second time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_stub import CREWS, EngineStub
from sampling import sampled
from test_crewai_journal import Told

from crew_service.crewai import load
from crew_service.engine.crew import Completed, CrewFailed, CrewKilled, PendingQuestion, Step
from crew_service.engine.printed import Printed
from crew_service.engine.questions import OF_CALLS
from crew_service.engine.tool_rules import ONCE, JournalOptions, ToolRule

pytestmark = pytest.mark.slow
Player = Callable[..., EngineStub]
EXACT = ("plain", "guarded", "structured", "identical", "refusing", "limited", "cached", "delegating", "skilled")
MORE = (
    *("hierarchical", "planned", "reviewed", "Nested", "foreign", "blocks", "parts", "behind", "Catching"),
    *("awaited", "dated", "reasoning", "overflowing", "remembering", "instructed"),
    *("recalled", "recalled_after_a_review", "recalled_natively", "Recalled"),
)
SIDE_BY_SIDE = ("parallel", "beside")


def run(crew: EngineStub) -> tuple[str, int]:
    """Run a crew to its end, with one revision where it asks; return its output and how often it was killed."""
    answers = [lambda: crew.revise("again"), crew.approve]
    kills, goes_on = 0, crew.segment
    while True:
        try:
            outcome = goes_on()
        except CrewKilled:
            kills, goes_on = kills + 1, crew.segment  # with the decision that is stored
            continue
        if isinstance(outcome, Completed):
            return outcome.output, kills
        if isinstance(outcome, PendingQuestion):  # in the live dialect nobody is asked
            raise CrewFailed(OF_CALLS[outcome.kind].unasked(outcome, Printed()))
        goes_on = answers.pop(0)


def once(kind: str, folder: Path, *, dies_before: int) -> EngineStub:
    """Return a crew all of whose tools may run only once, and whose process dies before the call of that number."""
    options = JournalOptions((ToolRule("*", ONCE),), ("take", "toss") if kind[0].isupper() else ())
    folder.mkdir(exist_ok=True)
    crew = EngineStub(load(f"{CREWS / 'replayed.py'}:{kind}", options), folder / "log")
    crew.log.with_suffix(".kill").write_text(str(dies_before))
    return crew


def made(crew: EngineStub) -> Counter[str]:
    return Counter(json.dumps(entry) for entry in crew.entries())


def taken(crew: EngineStub) -> list[str]:
    return [entry["what"] for entry in crew.entries() if "tool" in entry]


def killed(play: Player, kind: str, calls: int) -> tuple[str, Counter[str]]:
    """Run a crew whose process dies before the call of that number."""
    crew = play(kind, "replayed.py")
    crew.log.unlink(missing_ok=True)
    for suffix in (".failed", ".kill"):
        crew.log.with_suffix(suffix).unlink(missing_ok=True)
    if calls:
        crew.log.with_suffix(".kill").write_text(str(calls))
    output, kills = run(crew)
    assert kills == bool(calls)
    return output, made(crew)


@pytest.mark.parametrize("kind", sampled(EXACT, 3))  # `make long` kills each kind before every call
def test_each_call_is_made_once_after_a_kill(play: Player, kind: str) -> None:
    whole = killed(play, kind, 0)
    calls = whole[1].total()
    assert calls >= 2
    assert killed(play, kind, calls // 2) == whole


@pytest.mark.long
@pytest.mark.parametrize("kind", [*EXACT, *MORE])
def test_each_call_is_made_once_after_every_kill(play: Player, kind: str) -> None:
    whole = killed(play, kind, 0)
    for before in range(1, whole[1].total()):
        assert killed(play, kind, before) == whole, before


@pytest.mark.long
@pytest.mark.parametrize("kind", SIDE_BY_SIDE)
def test_of_parallel_calls_at_most_one_in_progress_is_repeated(play: Player, kind: str) -> None:
    output, whole = killed(play, kind, 0)
    for before in (2, whole.total() - 1):
        again, calls = killed(play, kind, before)
        assert again == output
        assert calls.keys() >= whole.keys()
        assert (calls - whole).total() <= 1


@pytest.mark.parametrize(("kind", "before"), [("fresh", 4), ("knowing", 5)])
def test_after_a_new_prompt_tools_are_known_by_their_arguments(play: Player, kind: str, before: int) -> None:
    _, whole = killed(play, kind, 0)
    _, calls = killed(play, kind, before)
    tools = {call: count for call, count in calls.items() if "tool" in json.loads(call)}
    assert set(tools.values()) == {1}
    assert (calls - whole).total() == 2, "the model was asked anew"


@pytest.mark.long
def test_a_changed_tool_is_still_known_by_its_arguments(play: Player) -> None:
    whole = killed(play, "described", 0)[1]
    _, calls = killed(play, "described", 2)
    assert [json.loads(call).get("model") for call in (calls - whole).elements()] == ["only"], "the model is asked anew"


def test_what_a_memory_has_answered_is_known(play: Player) -> None:
    """Else the prompt would be another one, and the model be asked anew."""
    assert killed(play, "remembering", 3) == killed(play, "remembering", 0)


def test_an_answer_a_providers_client_converted_is_not_converted_again(play: Player) -> None:
    whole = killed(play, "instructed", 0)
    assert whole[1]['{"converts": "the answer"}'] == 1
    assert killed(play, "instructed", whole[1].total() - 1) == whole


def test_an_object_answer_with_json_aliases_is_not_requested_again(play: Player) -> None:
    whole = killed(play, "named", 0)
    assert whole[1]['{"checks": "Ada"}'] == 1
    assert killed(play, "named", whole[1].total() - 1) == whole


def test_nobody_waits_for_the_rate_limit_of_unmade_requests(play: Player) -> None:
    _, calls = killed(play, "paced", 3)
    assert {call for call in calls if "waits" in call} == set()
    _, calls = killed(play, "paced", 0)
    assert {call for call in calls if "waits" in call}, "else this proves nothing"


def test_a_rate_limit_holds_in_each_round_of_a_review(play: Player) -> None:
    crew = play("paced_in_rounds", "replayed.py")
    crew.segment()
    crew.revise("again")
    assert [entry["waits"] for entry in crew.entries() if "waits" in entry] == [True, True]


HEARD = ("plain", "delegating", "HeardAlone")
HEARD_ALIKE = ("parallel", "limited", "awaited", "cached", "recalled", "remembering", "reasoning", "Nested")


@pytest.mark.parametrize("kind", [*HEARD, *(pytest.param(each, marks=pytest.mark.long) for each in HEARD_ALIKE)])
def test_nobody_hears_of_a_step_a_second_time(play: Player, kind: str) -> None:
    """What a process has not told before it was killed may be lost."""

    def told(dies_before: int) -> tuple[int, Counter[str]]:
        heard = play(kind, "replayed.py").log.with_suffix(".events")
        heard.unlink(missing_ok=True)
        made = killed(play, kind, dies_before)[1].total()
        return made, Counter(heard.read_text().splitlines())

    calls, whole = told(0)
    assert whole
    for before in range(2, calls):
        _, found = told(before)
        assert (whole - found).total() <= 3, before
        again = found - whole
        assert all("started" in event for event in again), "of tools that were under way, and run again"
        assert again.total() <= 2, before


def test_a_model_error_is_not_repeated_and_earlier_work_stays(play: Player) -> None:
    """CrewAI begins the task anew after the error; a process that comes later meets none."""
    output, whole = killed(play, "retried", 0)
    for before in (2, 4, whole.total() - 1):
        again, calls = killed(play, "retried", before)
        assert again == output
        assert calls <= whole


@pytest.mark.long
def test_recorded_run_once_calls_are_not_remade_with_other_arguments(
    tmp_path: Path,
) -> None:
    crew = once("rephrasing", tmp_path, dies_before=2)
    with pytest.raises(CrewFailed, match=": the crew has not repeated an earlier call to it"):
        run(crew)
    assert len(crew.calls(of="tool")) == 1


def test_run_once_tools_called_in_parallel_are_not_repeated(tmp_path: Path) -> None:
    crew = once("parallel", tmp_path, dies_before=2)
    with suppress(CrewFailed):  # where the other one was under way
        run(crew)
    assert max(Counter(crew.calls(of="tool")).values()) == 1


def test_parallel_tasks_with_identical_texts_keep_their_own_calls(tmp_path: Path) -> None:
    crew = once("Posts", tmp_path, dies_before=5)
    assert run(crew) == ("post on apples, post on bananas", 1)
    assert sorted(taken(crew)) == ["apples", "bananas"]


@pytest.mark.parametrize("which", ["task", "task async", "crew", "crew async", "step", "alone"])
def test_a_failing_callback_within_a_flow_rejects_no_answer(play: Player, which: str) -> None:
    """What continues the execution takes the method's calls from the journal."""
    crew = play("Unheard", "replayed.py")
    crew.inputs["topic"] = which
    with pytest.raises(CrewFailed, match="no one listens") as failed:
        crew.segment()
    assert failed.value.refused is None


def test_a_tools_call_names_its_agent_among_parallel_ones(play: Player) -> None:
    crew = play("Pair", "replayed.py")
    assert run(crew) == ("both", 0)
    begun = [each for each in crew.seen if isinstance(each, Step) and each.kind == "tool" and each.state == "running"]
    assert {(each.agent, str(each.arguments)) for each in begun} == {
        (f"Clerk of {topic}", f'{{"what": "{topic}"}}') for topic in ("apples", "bananas")
    }


@pytest.mark.long
def test_an_upgrade_during_review_reruns_no_run_once_tool_unasked(tmp_path: Path) -> None:
    """Earlier releases told tasks apart by their own texts alone, which swapped those of crews side by side."""
    crew = once("ReviewedPosts", tmp_path, dies_before=99)
    waiting = crew.segment()
    del waiting.state["nested"]["places"]
    crew.journal = {
        number: replace(entry, key=f"earlier:{number}", part="earlier/1 round 0")
        for number, entry in crew.journal.items()
    }
    outcome: Any = crew.choose("approve")
    assert isinstance(outcome, PendingQuestion)
    assert outcome.text == "the crew has not repeated an earlier call to it"
    assert taken(crew) == ["bananas"]


# With the number of the last model's call, and what runs in the whole execution.
RECALLED = {
    "recalled": (9, "ab"),
    "recalled_after_a_review": (11, "ab"),
    "recalled_natively": (9, "ab"),
    "Recalled": (21, "aabb"),
    "recalled_as_text": (9, "ab"),
    "recalled_by_each": (14, "aabb"),
    "recalled_by_delegation": (6, "a"),
}


@pytest.mark.parametrize("kind", sampled(RECALLED, 3))
def test_an_equal_call_of_a_later_task_stays_cached(tmp_path: Path, kind: str) -> None:
    last, ran = RECALLED[kind]
    whole, again = (once(kind, tmp_path / name, dies_before=dies) for name, dies in (("whole", 99), ("killed", last)))
    output, _ = run(whole)
    assert ("".join(sorted(taken(whole))), len(whole.entries())) == (ran, last + 1)
    assert run(again) == (output, 1)
    assert made(again) == made(whole), "each call is made once"


def test_small_results_and_those_that_run_once_are_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from crewai import Agent

    from crew_service.crewai import journal, tool_caches

    monkeypatch.setenv("OPENAI_API_KEY", "for-tests-only")
    rules = journal.Journal([], 0, [ToolRule("pay", ONCE)], Told())
    monkeypatch.setattr(journal, "_journals", [rules])
    monkeypatch.setattr(tool_caches, "MOST", 100)
    agents = [Agent(role="r", goal="g", backstory="b", llm="gpt-4o-mini", cache=True) for _ in range(2)]
    results = {("search", "large"): "x" * 80, ("search", "small"): (1, 2), ("pay", "{}"): "p" * 20, ("look", ""): None}
    caches = tool_caches.ToolCaches()
    caches.begin("task", agents)
    for (tool, arguments), result in results.items():
        agents[0].tools_handler.cache.add(tool=tool, input=arguments, output=result)
    stored = caches.with_results({"task_id": "task", "point": {"lost": "a field"}}, agents, [])
    assert [result[:3] for result in stored["point"]["tool_results"]] == [[0, "pay", "{}"], [0, "search", "small"]]
    assert stored["point"]["lost"] == "a field"
    assert "1 of them are not kept" in caplog.text
    gone = {"point": {"tool_results": [[0, "look", "", '{"class": "gone:Gone"}'], [7, "look", "", "1"]]}}
    later = [Agent(role="r", goal="g", backstory="b", llm="gpt-4o-mini", cache=True)]
    for output in ({}, {"point": None}, {"point": {"lost": "a field"}}, gone, stored):
        caches.put_back(output, later)
    cache = later[0].tools_handler.cache
    found = {(tool, arguments): cache.read(tool=tool, input=arguments) for tool, arguments in results}
    assert found == {**results, ("search", "large"): None}
