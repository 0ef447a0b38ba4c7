"""What runs while a crew is loaded is not the execution: it is refused, and nothing that it left is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_stub import EngineStub

from crew_service.crewai import load
from crew_service.engine.crew import Completed, CrewFailed
from crew_service.targets import BadTarget

CREW = """
import asyncio, atexit, contextlib, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from crewai import Agent, BaseLLM, Crew, Flow, Task
from crewai.flow.flow import start
from crewai.lite_agent import LiteAgent
from crewai.memory.unified_memory import Memory
from crewai.tasks.task_output import TaskOutput

class Paid(BaseLLM):
    def call(self, messages, *args, **kwargs):
        Path(__file__).with_name("paid").touch()
        return f"a report on {'tea' if 'tea' in str(messages) else 'AI'}"

class Nightly(Flow):
    @start()
    def begin(self):
        return model.call("AI")

model = Paid(model="paid")
agent = Agent(role="Writer", goal="g", backstory="b", llm=model)
task = Task(name="report", description="On {topic}", expected_output="text", agent=agent)
crew = Crew(agents=[agent], tasks=[task])
AI = {"topic": "AI"}

def crew_with_a_plan():
    begin()
    return crew

def begin():
    pass
"""
KICKOFFS = {
    "kickoff": "crew.kickoff(inputs=AI)",
    "kickoff_async": "asyncio.run(crew.kickoff_async(inputs=AI))",
    "akickoff": "asyncio.run(crew.akickoff(inputs=AI))",
    "kickoff_for_each": "crew.kickoff_for_each([AI])",
    "train": "crew.train(1, 'trained.pkl', AI)",
    "test": "crew.test(1, 'no-model', AI)",
    "replay": "crew.replay('an-id', AI)",
    "a Flow": "Nightly().kickoff()",
    "a Flow, async": "asyncio.run(Nightly().kickoff_async())",
    "an agent": "agent.kickoff('Plan AI')",
    "an agent, async": "asyncio.run(agent.akickoff('Plan AI'))",
    "an agent of an older kind": "LiteAgent(role='r', goal='g', backstory='b', llm=model).kickoff('Plan AI')",
    "a task": "task.execute_sync()",
    "an agent's task": "agent.execute_task(task)",
    "a pool": "ThreadPoolExecutor().submit(crew.kickoff, AI).result()",
    "swallowed": "with contextlib.suppress(Exception): crew.kickoff(inputs=AI)",
    "swallowed with all others": "with contextlib.suppress(BaseException): crew.kickoff(inputs=AI)",
}


def written(folder: Path, more: str, *, name: str = "crew") -> str:
    (folder / "tea.py").write_text(CREW + more)
    return f"{folder / 'tea.py'}:{name}"


@pytest.mark.long
@pytest.mark.row("S46")
@pytest.mark.parametrize("case", KICKOFFS)
def test_a_kickoff_while_a_crew_is_loaded_ends_the_start(tmp_path: Path, case: str) -> None:
    with pytest.raises(BadTarget) as refusal:
        load(written(tmp_path, KICKOFFS[case]))
    line = len(CREW.splitlines()) + 1
    place = "a thread" if case == "a pool" else f"{tmp_path / 'tea.py'}, line {line},"
    assert place in str(refusal.value)
    assert 'put it under `if __name__ == "__main__"`' in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "paid").exists()


@pytest.mark.row("S46")
def test_a_kickoff_in_the_crews_factory_function_ends_the_start(tmp_path: Path) -> None:
    target = written(tmp_path, "begin = lambda: agent.kickoff('Plan AI')", name="crew_with_a_plan")
    with pytest.raises(BadTarget, match=r"tea\.py, line \d+, calls Agent\.kickoff .* before_kickoff hook"):
        load(target)
    assert not (tmp_path / "paid").exists()


@pytest.mark.parametrize("kind", ["crew", "agent"])
def test_a_role_is_shown_without_the_blanks_around_it(tmp_path: Path, kind: str) -> None:
    target = written(tmp_path, f"agent.role = 'Researcher\\n'\n{kind} = {kind}", name=kind)
    assert [task.agent for task in load(target).tasks] == ["Researcher"]


@pytest.mark.long
@pytest.mark.row("S46")
@pytest.mark.parametrize(
    "more",
    [
        "if __name__ == '__main__': crew.kickoff(inputs=AI)",
        "model.call('Plan AI')",
        "later = crew.kickoff",
        "Nightly()",
        "Memory(embedder=lambda texts: [[1.0, 2.0] for _ in texts], llm=model).remember('AI')",
    ],
)
def test_what_runs_no_crew_may_run_while_one_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "storage"))  # other tests' vectors have other dimensions
    stub = EngineStub(load(written(tmp_path, more)), tmp_path / "log")
    stub.inputs = {"topic": "tea"}
    done = stub.segment()
    assert isinstance(done, Completed)
    assert done.output == "a report on tea"


LATER = {
    "the same crew": "crew.kickoff(inputs=AI)",
    "a copy": "crew.copy().kickoff(inputs=AI)",
    "swallowed": "with contextlib.suppress(BaseException): crew.kickoff(inputs=AI)",
}
WHEN_LOADED = """
called = threading.Event()

def later():
    while (task.start_time is None):
        time.sleep(0.01)
    try:
        {call}
    finally:
        called.set()

def answer(*_, **__):
    called.wait(60)  # to copy a crew may take seconds
    time.sleep(0.5)  # and what has been started needs a moment
    return "a report on tea"

Paid.call = answer
threading.Thread(target=later, daemon=True).start()
"""


@pytest.mark.long
@pytest.mark.row("S46")
@pytest.mark.parametrize("case", LATER)
def test_a_loaded_crews_thread_cannot_run_another_crew_during_execution(tmp_path: Path, case: str) -> None:
    stub = EngineStub(load(written(tmp_path, WHEN_LOADED.format(call=LATER[case]))), tmp_path / "log")
    stub.inputs = {"topic": "tea"}
    with pytest.raises(CrewFailed, match=r"tea\.py, line \d+, calls Crew\.kickoff in a thread that was started while"):
        stub.segment()


OF_A_SCHEDULER = {
    "a thread": "threading.Thread(target=crew.copy().kickoff, args=[AI]).start()",
    "a pool": "jobs.submit(crew.copy().kickoff, AI)",
    "a pool that the execution has used": "used.submit(crew.copy().kickoff, AI)",
}


@pytest.mark.row("S46")
@pytest.mark.parametrize("case", OF_A_SCHEDULER)
def test_a_scheduler_started_at_load_cannot_run_a_crew(tmp_path: Path, case: str) -> None:
    pools = "jobs, used = ThreadPoolExecutor(), ThreadPoolExecutor(1)\n"
    pools += "crew.before_kickoff_callbacks = [lambda inputs: used.submit(dict, inputs).result()]\n"
    later = WHEN_LOADED.format(call=OF_A_SCHEDULER[case])
    stub = EngineStub(load(written(tmp_path, pools + later)), tmp_path / "log")
    stub.inputs = {"topic": "tea"}
    with pytest.raises(CrewFailed, match=r"calls Crew\.kickoff in a thread that was started while"):
        stub.segment()


@pytest.mark.row("S46")
def test_exit_handlers_run_no_crew_at_start_or_after_execution(tmp_path: Path) -> None:
    handler = "atexit.register(lambda: crew.copy().kickoff(AI))\nmodel_calls = Path(__file__ + '.calls')\n"
    counted = "Paid.call = lambda *_, **__: model_calls.open('a').write('x') and 'a report on tea'\n"
    stub = EngineStub(load(written(tmp_path, handler + counted)), tmp_path / "log")
    stub.inputs = {"topic": "tea"}
    assert stub.segment().output == "a report on tea"
    assert (tmp_path / "tea.py.calls").read_text() == "x"


@pytest.mark.row("S46")
def test_a_hook_may_use_an_event_loop_started_at_load(tmp_path: Path) -> None:
    loop = """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()

def plan(inputs):
    asked = asyncio.run_coroutine_threadsafe(agent.akickoff("Plan tea"), loop)
    return {**inputs, "topic": asked.result().raw}

crew.before_kickoff_callbacks = [plan]
"""
    stub = EngineStub(load(written(tmp_path, loop)), tmp_path / "log")
    stub.inputs = {"topic": "AI"}
    assert stub.segment().output == "a report on tea"


@pytest.mark.row("S46")
def test_a_hook_may_use_a_pool_used_at_load(tmp_path: Path) -> None:
    pool = """
pool = ThreadPoolExecutor(2)
warm = list(pool.map(str, range(2)))

def plan(inputs):
    return {**inputs, "topic": pool.submit(agent.kickoff, "Plan tea").result().raw}

crew.before_kickoff_callbacks = [plan]
"""
    stub = EngineStub(load(written(tmp_path, pool)), tmp_path / "log")
    stub.inputs = {"topic": "AI"}
    assert stub.segment().output == "a report on tea"


@pytest.mark.row("S46")
def test_a_hook_may_plan_with_an_agent(tmp_path: Path) -> None:
    hook = "def plan(inputs):\n    return {**inputs, 'topic': agent.kickoff('Plan tea').raw}\n"
    target = written(tmp_path, f"{hook}crew.before_kickoff_callbacks = [plan]")
    stub = EngineStub(load(target), tmp_path / "log")
    stub.inputs = {"topic": "AI"}
    assert stub.segment().output == "a report on tea"


@pytest.mark.row("S46")
def test_an_output_the_execution_did_not_store_is_ignored(tmp_path: Path) -> None:
    left = "task.output = TaskOutput(description='d', agent='a', raw='a report on AI')"
    stub = EngineStub(load(written(tmp_path, left)), tmp_path / "log")
    stub.inputs = {"topic": "tea"}
    assert stub.segment().output == "a report on tea"
    assert stub.finished() == ["report"]
