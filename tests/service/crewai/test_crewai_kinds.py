"""The kinds of crews that CrewAI knows, each with a gate in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from crewai import Task
from crewai import TaskOutput as CrewAIOutput
from crewai.tasks.conditional_task import ConditionalTask
from crewai.tasks.output_format import OutputFormat
from engine_stub import CREWS, EngineStub
from pydantic import BaseModel, Field
from sampling import sampled

from crew_service.crewai import codec, flow_values, load, task_outputs
from crew_service.engine.crew import Completed, CrewFailed, PendingReview, StepDone, TaskInfo, TaskOutput
from crew_service.storage.json_values import tidy
from crew_service.targets import BadTarget

Player = Callable[..., EngineStub]


def test_output_models_give_json_and_come_back_as_models(play: Player) -> None:
    crew = play("models")
    assert crew.segment().output == '{"x": 3, "why": "there"}'
    outcome = crew.approve()
    assert crew.done[0]["output_json"] == {"x": 3, "why": "there"}
    assert crew.finished() == ["place", "sure", "answer"], "the condition has read the model of a stored output"
    assert isinstance(outcome, Completed)
    assert outcome.output_json == {"x": 4, "why": "here"}


@pytest.mark.parametrize("name", sampled(["named", "tagged", "doubled"], 3))
@pytest.mark.parametrize("has_point", [True, False], ids=["stored now", "stored by release 0.2.0"])
def test_objects_their_model_refuses_as_json_are_unchanged_across_processes(
    play: Player, name: str, has_point: bool
) -> None:
    crew = play(name)
    waiting = crew.segment()
    assert isinstance(waiting, PendingReview)
    if not has_point:
        waiting.state["task"].pop("point", None)
    crew.approve()
    assert crew.finished() == ["made", "sure"]
    assert crew.calls() == ["made", "sure", "end"]
    crew.approve()
    assert crew.finished() == ["made", "sure", "end"]


class Always(BaseModel):
    full_name: str = Field(alias="fullName")
    age: int = 0

    def model_post_init(self, context: Any) -> None:
        raise ValueError("not twice")


def test_a_stored_object_failing_validation_is_rebuilt_from_its_fields() -> None:
    task = Task(description="d", expected_output="e", output_pydantic=Always)
    kept = {"task_id": "t", "agent": "a", "output": "Ada, 36", "output_json": {"full_name": "Ada", "age": 36, "old": 1}}
    found: Any = task_outputs.restored(task, cast("TaskOutput", kept)).pydantic
    assert isinstance(found, Always)
    assert (found.full_name, found.age) == ("Ada", 36)
    assert found.model_dump() == {"full_name": "Ada", "age": 36}


@pytest.mark.row("S45")
@pytest.mark.parametrize("declares", [True, False], ids=["declared", "set by a guardrail"])
@pytest.mark.parametrize(
    "given", [{"x": 1}, {"on": date(2026, 1, 1)}, {"pair": (1, 2)}, {"by": {3: 4}}, {"x": float("nan")}], ids=repr
)
def test_an_outputs_dict_is_the_same_in_every_process(given: dict[str, Any], declares: bool) -> None:
    task = Task(description="d", expected_output="e", output_json=Always if declares else None)
    as_declared = OutputFormat.JSON if declares else OutputFormat.RAW
    output = CrewAIOutput(description="d", raw="r", agent="a", json_dict=given, output_format=as_declared)
    kept = tidy(json.loads(json.dumps(task_outputs.stored("t", task, output, 1.0))))
    assert repr(task_outputs.restored(task, kept).json_dict) == repr(given)


OUTPUTS = {
    "a role in YAML": lambda task: CrewAIOutput(description="d", name="d", expected_output="e", agent="Writer\n"),
    "skipped": lambda task: task.get_skipped_task_output(),
    "named by a hook": lambda task: CrewAIOutput(description="other", name="n", agent="a", output_format="pydantic"),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_outputs_texts_are_the_same_in_every_process(kind: str) -> None:
    task = ConditionalTask(description="d", expected_output="e", output_json=Always, condition=bool)
    output = OUTPUTS[kind](task)
    kept = tidy(json.loads(json.dumps(task_outputs.stored("t", task, output, 1.0))))
    assert task_outputs.restored(task, kept).model_dump() == output.model_dump()


def test_an_edited_object_is_checked_as_its_model_reads_it(play: Player) -> None:
    crew = play("named")
    crew.segment()
    crew.approve('{"fullName": "Grace"}')
    assert crew.done[0]["output_json"] == {"fullName": "Grace"}
    assert crew.done[1]["output"] == "", "the second task was skipped, because the object is another one"
    assert isinstance(crew.approve(), Completed)
    crew = play("named")
    crew.segment()
    with pytest.raises(CrewFailed, match="does not fit the model of its task: fullName: Field required"):
        crew.approve('{"full_name": "Grace"}')


def test_a_tasks_failed_tools_are_known_in_the_next_process(play: Player) -> None:
    pytest.importorskip("crewai.tools.tool_failure", reason="this version does not report them")
    crew = play("with_a_failed_tool")
    crew.segment()
    assert crew.approve().output == "[True, False]"
    assert "messages" not in crew.done[0]["point"], "prompts and the results of tools"


def test_an_edited_object_fits_its_model_or_ends_the_execution(play: Player) -> None:
    crew = play("models")
    crew.segment()
    crew.approve('{"x": 7, "why": "mine"}')
    assert crew.done[0]["output_json"] == {"x": 7, "why": "mine"}
    crew = play("models")
    crew.segment()
    crew.approve('```json\n{"x": 8, "why": "fenced"}\n```')
    assert crew.done[0]["output_json"] == {"x": 8, "why": "fenced"}
    crew = play("models")
    crew.segment()
    with pytest.raises(CrewFailed, match="The approved output does not fit the model of its task"):
        crew.approve('{"x": "no number"}')


def test_a_result_in_a_code_fence_is_an_object() -> None:
    fenced = '```json\n{"a": 1}\n```'
    answer = CrewAIOutput(description="d", raw=fenced, agent="a")
    assert [flow_values.json_object(each) for each in (fenced, answer, "```\n[1]\n```")] == [{"a": 1}, {"a": 1}, None]


def test_asynchronous_tasks_run_and_are_stored_in_crew_order(play: Player) -> None:
    crew = play("asynchronous")
    assert crew.segment().output == "joined v1"
    assert crew.finished() == ["left", "right"]
    assert crew.approve().output == "tail v1"
    assert crew.finished() == ["left", "right", "joined", "tail"]
    assert sorted(crew.calls()) == ["joined", "left", "right", "tail"]


def test_skipped_conditional_tasks_count_as_finished_and_stay_skipped(play: Player) -> None:
    crew = play("conditional")
    assert crew.segment().output == "gate v1"
    assert [(task["task_id"], task["output"]) for task in crew.done] == [("draft", "draft v1"), ("extra", "")]
    assert crew.approve().output == "gate v1"
    assert crew.finished() == ["draft", "extra", "gate", "end"]
    assert crew.calls() == ["draft", "gate"]


def test_the_manager_of_a_hierarchical_crew_gets_the_feedback(play: Player) -> None:
    crew = play("hierarchical")
    assert crew.segment().output == "draft v1"
    assert crew.revise("shorter").output == "draft v2 (shorter)"
    assert crew.approve().output == "final v1"
    assert crew.calls() == ["draft", "draft", "final"]


def test_a_person_decides_on_what_the_guardrails_let_through(play: Player) -> None:
    crew = play("guarded")
    assert crew.segment().output == "DRAFT V1"
    crew.approve()
    assert crew.done[0]["output"] == "DRAFT V1"


def test_a_crews_plan_is_made_once_and_kept_over_gates(play: Player) -> None:
    crew = play("planned")
    crew.segment()
    crew.revise("shorter")
    crew.approve()
    assert crew.calls() == [None, "draft", "draft", "final"], "the planner is asked once"
    assert "PLAN1" in crew.entries()[2]["turns"][1]["content"]
    assert "PLAN2" in crew.entries()[3]["turns"][1]["content"]


def test_a_crew_with_memory_goes_on_remembering_after_a_gate(play: Player) -> None:
    crew = play("with_memory")
    crew.segment()
    assert crew.approve().output == "final v1"
    final = next(entry for entry in crew.entries() if entry.get("call") == "final")
    assert "Result: draft v1" in str(final["turns"]), "what the first segment remembered"


def test_an_object_from_a_callback_becomes_the_outputs_json(play: Player) -> None:
    done = play("with_a_replaced_output").segment()
    assert (done.output, done.output_json) == ('{"total": 3}', {"total": 3})


@pytest.mark.long
@pytest.mark.row("S48")
@pytest.mark.parametrize(
    ("name", "output", "output_json"),
    [
        ("hook_gives_nothing", "draft v1", None),
        ("hook_gives_nothing_after_something", '{"was": "draft v1"}', {"was": "draft v1"}),
        ("hook_gives_something_after_nothing", "DRAFT V1", None),
        ("hook_gives_a_model", '{"x": 3, "why": "there"}', {"x": 3, "why": "there"}),
        ("hook_gives_a_model_with_a_field_raw", '{"raw": "r", "x": 3}', {"raw": "r", "x": 3}),
        ("hook_gives_a_list", '["draft v1", {"x": 3, "why": "ünten"}]', None),
        ("hook_gives_a_number", "3", None),
        ("hook_gives_a_list_later", '["draft v1", 3]', None),
    ],
)
def test_a_result_is_json_or_the_crews_own_answer(play: Player, name: str, output: str, output_json: Any) -> None:
    done = play(name).segment()
    assert (done.output, done.output_json) == (output, output_json)


def test_steps_are_reported_and_the_users_callback_is_called_too(play: Player) -> None:
    crew = play("with_a_tool")
    assert crew.segment().output == "It is 7."
    steps = [progress for progress in crew.seen if isinstance(progress, StepDone)]
    assert steps == [StepDone(thought="Thought: I add", tool="add", tool_input='{"a": 3, "b": 4}', result="7")]
    assert crew.calls(of="step") == ["add"]


def test_a_crewbase_class_with_its_yaml_files_is_a_crew(play: Player) -> None:
    crew = play("Newsroom", "newsroom.py")
    assert crew.crew.inputs == ["log", "topic"]
    assert replace(crew.crew.tasks[1], digest="") == TaskInfo(
        "check_task", "Checker", "Check it. Log: {log} .\n", human_input=True
    )
    assert crew.segment().output == "check_task v1"
    assert crew.approve().output == "print_task v1"


def test_a_module_level_crew_is_fresh_in_every_segment(play: Player) -> None:
    crew = play("instance")
    crew.segment()
    assert crew.revise("shorter").output == "outline v2 (shorter)"
    assert crew.approve().output == "draft v1"


def test_tasks_with_missing_or_duplicate_names_get_distinct_ids(play: Player) -> None:
    crew = play("nameless")
    assert [task.id for task in crew.crew.tasks] == ["task_1", "same", "same_3"]
    crew.segment()
    assert crew.finished() == ["task_1", "same", "same_3"]


def test_braces_that_crewai_does_not_fill_are_no_inputs(play: Player) -> None:
    assert play("json_braces").crew.inputs == ["topic"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("waits_and_runs_beside", "cannot be asynchronous"),
        ("with_checkpoints", "has checkpoint= set"),
        ("of_a_stranger", "its agent is a Stranger"),
        ("SomeFlow", "a Flow without methods"),
        ("SomeFlow_instance", "a Flow without methods"),
        ("nothing", "of type NoneType"),
        ("number", "of type int"),
        ("missing", "has no 'missing'"),
        ("broken", "ValueError: no key"),
        ("leaves", "exited with code 3"),
    ],
)
def test_an_unservable_target_is_refused_in_one_sentence_naming_it(name: str, reason: str) -> None:
    target = f"{CREWS / 'samples.py'}:{name}"
    with pytest.raises(BadTarget) as refusal:
        load(target)
    assert target in str(refusal.value)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("target", ["no_such.py:crew", "no.such.module:crew", "crewai.nowhere:crew"])
def test_a_module_that_is_not_there_is_named(target: str) -> None:
    with pytest.raises(BadTarget, match=r"there is no (file|module)") as refusal:
        load(target)
    assert target in str(refusal.value)


EXAMPLE = Path(__file__).parents[3] / "example_dags/crews/article_crew.py"


def test_the_example_crew_carries_topic_and_feedback_to_its_end(tmp_path: Path) -> None:
    crew = EngineStub(load(f"{EXAMPLE}:article_crew"), tmp_path / "log")
    crew.inputs = {"topic": "heat pumps"}
    assert "heat pumps" in crew.segment().output
    assert "Name the sources.\nAll of them." in crew.revise("Name the sources.\nAll of them.").output
    outcome = crew.approve()
    assert "heat pumps" in outcome.output
    assert "Name the sources.\nAll of them." in outcome.output


def test_an_input_makes_the_example_crew_skip_its_review(tmp_path: Path) -> None:
    crew = EngineStub(load(f"{EXAMPLE}:article_crew"), tmp_path / "log")
    crew.inputs = {"topic": "heat pumps", "review": "no"}
    assert isinstance(crew.segment(), Completed)


@pytest.mark.parametrize(
    "stored",
    [
        {"class": "builtins:print", "items": ["called"]},
        {"class": "subprocess:getoutput", "items": ["called"]},
        {"class": "builtins:print", "state": {}},
        {"class": "builtins:print", "fields": {}},
    ],
)
def test_a_stored_answer_calls_nothing_but_models_and_containers(
    stored: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((TypeError, AttributeError)):
        codec.answer(json.dumps(stored))
    assert capsys.readouterr().out == ""


@pytest.mark.row("S47")
def test_what_a_hook_may_fill_is_not_required(play: Player) -> None:
    run = play("hooked")
    assert (run.crew.inputs, run.crew.required) == (["log", "today", "topic"], [])
    assert isinstance(run.segment(), Completed)


@pytest.mark.row("S47")
def test_every_hook_is_called_and_inputs_hooks_fill_are_optional(play: Player) -> None:
    run = play("intercepted")
    assert (run.crew.inputs, run.crew.required) == (["today", "topic"], [])
    assert run.segment().output == "It is 7. Checked."
    steps = ["pre_step", "pre_model_call", "post_model_call", "pre_tool_call", "post_tool_call", "pre_model_call"]
    assert run.calls(of="heard") == ["input", *steps, "post_model_call", "post_step", "output", "execution_end"]


@pytest.mark.row("S47")
def test_inputs_a_class_adds_to_kickoff_or_state_are_optional(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("""
from crewai import Agent, BaseLLM, Crew, Flow, Task
from crewai.flow.flow import start
from pydantic import BaseModel

class Echo(BaseLLM):
    def call(self, messages, *args, **kwargs):
        return "on tea" if "On tea" in str(messages) else "on what?"

class Daily(Crew):
    def kickoff(self, inputs=None, **more):
        return super().kickoff({"topic": "tea", **(inputs or {})}, **more)

class State(BaseModel):
    topic: str

class OnTea(Flow[State]):
    def __init__(self, **given):
        super().__init__(**{"initial_state": State(topic="tea"), **given})

    @start()
    def tell(self):
        return f"on {self.state.topic}"

def crew():
    agent = Agent(role="Writer", goal="g", backstory="b", llm=Echo(model="echo"))
    return Daily(agents=[agent], tasks=[Task(description="On {topic}", expected_output="text", agent=agent)])
""")
    for name in ("crew", "OnTea"):
        stub = EngineStub(load(f"{tmp_path / 'own.py'}:{name}"), tmp_path / "log")
        stub.inputs = {}
        assert (stub.crew.inputs, stub.crew.required) == (["topic"], [])
        assert stub.segment().output == "on tea"


@pytest.mark.row("S60")
@pytest.mark.parametrize(("name", "tokens"), [("recounting", 2 * 11), ("replacing", 7 + 5)])
def test_a_model_may_replace_its_counters(play: Player, name: str, tokens: int) -> None:
    crew = play(name)
    assert isinstance(crew.segment(), Completed)
    assert crew.used["total_tokens"] == tokens
