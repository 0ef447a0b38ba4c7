"""What one user's execution remembers is recalled in that user's only, until it is too old."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import pytest
from crew_client import Client, eventually
from databases import new_sqlite
from engine_stub import CREWS, EngineStub

from crew_service import cli, options
from crew_service.crewai import load
from crew_service.crewai import storage as storage_of_process
from crew_service.crewai.errors import UnsupportedCrew
from crew_service.crewai.internals import stored_memory
from crew_service.crewai.world import Place, world_of
from crew_service.engine.asks import ANSWER
from crew_service.engine.crew import Cancellation, Completed, Crew, CrewKilled, PendingQuestion
from crew_service.engine.drafts import draft_sha256
from crew_service.local import running_service
from crew_service.scripted_crew import DEMO, ScriptedCrew
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.row("S50")
DRAFTS = f"{CREWS / 'samples.py'}:watched_with_memory"
TARGET = f"{CREWS / 'samples.py'}:remembering"
SECRET = "Confidential, of"
TOKENS = {"ann": "ann-token-0123456789", "bob": "bob-token-0123456789"}


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "storage"))
    monkeypatch.chdir(tmp_path)  # a world of its own
    return tmp_path / "storage"


def served(*words: str) -> Crew:
    """Load the crew as the command does."""
    return options.crews_of(cli._parser().parse_args(["serve", "--crew", TARGET, *words]))[""]


def recalls(crew: Crew, log: Path, owner: str | None) -> bool:
    """Run the crew for an owner, and say whether it recalls what an earlier execution answered."""
    run = EngineStub(crew, log / f"{owner}-{time.monotonic_ns()}")
    run.owner = owner
    run.segment()
    return SECRET in prompts(run)


def prompts(run: EngineStub) -> str:
    return str([each["turns"] for each in run.entries() if each["call"] == "final"])


@pytest.mark.long
def test_what_one_owner_remembers_is_not_in_anothers_prompts(tmp_path: Path) -> None:
    crew = load(TARGET)
    assert not recalls(crew, tmp_path, "ann")
    assert not recalls(crew, tmp_path, "bob")
    assert not recalls(crew, tmp_path, None)
    assert all(recalls(crew, tmp_path, owner) for owner in ("ann", "bob", None))


@pytest.mark.long
def test_users_of_the_service_have_a_memory_each(tmp_path: Path) -> None:
    crew = load(TARGET)
    tokens = list(TOKENS.items())
    with running_service(crew=crew, db=new_sqlite(tmp_path / "service.db"), user_tokens=tokens) as service:

        def recalled(user: str) -> bool:
            run, client = (
                EngineStub(crew, tmp_path / f"{user}-{time.monotonic_ns()}"),
                Client(service.url, TOKENS[user]),
            )
            started = client.post("/kickoff", {"inputs": run.inputs}).json()["kickoff_id"]
            eventually(lambda: client.status(started)["status"] == "completed", "the end")
            return SECRET in prompts(run)

        assert [recalled(user) for user in ("ann", "bob", "ann")] == [False, False, True]


@pytest.mark.long
def test_shared_memory_is_everybodys(tmp_path: Path) -> None:
    crew = served("--user-token", f"ann={TOKENS['ann']}", "--shared-memory")
    assert not recalls(crew, tmp_path, "ann")
    assert recalls(crew, tmp_path, "bob")


@pytest.mark.long
def test_the_first_start_says_that_users_memories_begin_empty(
    tmp_path: Path, storage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not recalls(served(), tmp_path, None)
    served("--user-token", f"ann={TOKENS['ann']}", "--shared-memory")
    assert caplog.text == ""
    crew = served("--user-token", f"ann={TOKENS['ann']}")
    assert f"a memory of their own, in {storage / 'owners'}, which is empty at first" in caplog.text
    caplog.clear()
    served("--user-token", f"ann={TOKENS['ann']}")
    assert caplog.text == ""
    assert not recalls(crew, tmp_path, "ann")
    assert recalls(crew, tmp_path, None), "the organization keeps it"


@pytest.mark.long
def test_a_memory_copied_as_instructed_belongs_to_the_user(tmp_path: Path, storage: Path) -> None:
    crew = load(TARGET)
    assert not recalls(crew, tmp_path, None)
    own = storage / "owners" / hashlib.sha256(b"ann").hexdigest()
    own.mkdir(parents=True)
    (storage / "memory").rename(own / "memory")
    assert recalls(crew, tmp_path, "ann")


def test_without_settable_folders_a_user_shares_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_memory.FOLDERS, "missing", next(iter(stored_memory.FOLDERS.names)))
    crew = Place(world_of(TARGET)).message()
    assert not storage_of_process.use(crew)
    with pytest.raises(UnsupportedCrew, match="needs a folder of its own, which cannot be set: "):
        storage_of_process.use(crew, owner="ann")
    assert not storage_of_process.use({**crew, "shares_memory": True}, owner="ann")


FLOW = """
from crewai.flow import Flow, persist, start

@persist()
class Counts(Flow):
    @start()
    def count(self):
        self.state["count"] = self.state.get("count", 0) + 1
        return str(self.state["count"])
"""


def test_a_user_continues_a_state_that_was_stored_earlier(tmp_path: Path, storage: Path) -> None:
    (tmp_path / "counting.py").write_text(FLOW)
    crew = load(f"{tmp_path / 'counting.py'}:Counts")
    runs = [EngineStub(crew, tmp_path / "log") for _ in range(3)]
    for count, run in enumerate(runs):
        run.inputs, run.execution_id = {}, f"execution-{count}"
        run.restore_from = f"execution-{count - 1}" if count else None
        run.owner = "ann" if count else None
        assert run.segment().output == str(count + 1)
    assert (storage / "flow_states.db").is_file()


@pytest.mark.long
def test_what_is_too_old_is_forgotten_for_each_owner(tmp_path: Path) -> None:
    crew = load(TARGET)
    run = EngineStub(crew, tmp_path / "log")
    owners = ("ann", None)
    for owner in owners:
        recalls(crew, tmp_path, owner)
    crew.forget_memory(time.time() - 3600, run.cancelled)
    assert all(recalls(crew, tmp_path, owner) for owner in owners)
    crew.forget_memory(time.time() + 3600, run.cancelled)
    assert not any(recalls(crew, tmp_path, owner) for owner in owners)


class Forgetful(ScriptedCrew):
    def __init__(self) -> None:
        super().__init__(DEMO)
        self.told = threading.Event()

    def forget_memory(self, before: float, stopping: Cancellation) -> None:
        if abs(time.time() - before - 2 * 86400) < 3600:
            self.told.set()


def test_the_service_forgets_only_if_it_is_told_to(tmp_path: Path) -> None:
    keeps, forgets = Forgetful(), Forgetful()
    with running_service(crew=keeps, db=new_sqlite(tmp_path / "keeps.db")) as service:
        with running_service(crew=forgets, db=new_sqlite(tmp_path / "forgets.db"), keep_memory_days=2.0):
            assert forgets.told.wait(PATIENCE)
        Client(service.url, service.token).kickoff()
    assert not keeps.told.is_set()


@pytest.mark.long
@pytest.mark.row("S54")
@pytest.mark.parametrize("fate", ["revised", "edited", "stopped", "approved"])
def test_only_an_approved_answer_is_remembered(tmp_path: Path, fate: str) -> None:
    crew = load(DRAFTS)
    first = EngineStub(crew, tmp_path / "first")
    first.segment()
    assert first.calls(of="ended") == []
    if fate == "revised":
        first.revise("shorter")
    if fate == "edited":
        first.approve("Edited by hand.")
    elif fate != "stopped":
        first.approve()
    approved = {"revised": "draft v2 (shorter)", "edited": "Edited by hand."}.get(fate, "draft v1")
    assert first.calls(of="ended") == ([] if fate == "stopped" else [approved, "final v1"])
    later = EngineStub(crew, tmp_path / "later")
    later.segment()
    later.approve("Something else.")
    told = str([entry["turns"] for run in (first, later) for entry in run.entries() if entry.get("call") == "final"])
    assert ("Result: draft v1" in told) == (fate == "approved")
    assert f"Result: {'Something else.' if fate == 'stopped' else approved}" in told


DELEGATES = """
from crewai import Agent, BaseLLM, Crew, Task
from crewai.memory.unified_memory import Memory

class Model(BaseLLM):
    def call(self, messages, *args, from_agent=None, **kwargs):
        said = str(messages)
        if getattr(from_agent, "role", "") == "Clerk":
            return "Thought: I know\\nFinal Answer: a draft by the clerk"
        if getattr(from_agent, "role", "") != "Boss":
            return "no memories in JSON"
        if "a draft by the clerk" in said:
            return "Thought: I know\\nFinal Answer: a draft by the boss"
        given = '{"task": "Write", "context": "none", "coworker": "Clerk"}'
        return f"Thought: I delegate\\nAction: delegate_work_to_coworker\\nAction Input: {given}"

def crew():
    texts = {"goal": "g", "backstory": "b", "llm": Model(model="m")}
    boss, clerk = Agent(role="Boss", allow_delegation=True, **texts), Agent(role="Clerk", **texts)
    memory = Memory(embedder=lambda given: [[1.0, 2.0] for _ in given], llm=texts["llm"])
    draft = Task(name="draft", description="Draft", expected_output="text", agent=boss, human_input=True)
    return Crew(agents=[boss, clerk], tasks=[draft], memory=memory)
"""


@pytest.mark.row("S54")
def test_what_a_coworker_wrote_for_a_draft_is_not_remembered(tmp_path: Path, storage: Path) -> None:
    (tmp_path / "team.py").write_text(DELEGATES)
    run = EngineStub(load(f"{tmp_path / 'team.py'}:crew"), tmp_path / "log")
    waiting = run.segment()
    assert waiting.output == "a draft by the boss"
    assert remembered(storage) == ""
    run.approve()
    assert "a draft by the boss" in remembered(storage)
    assert "a draft by the clerk" not in remembered(storage)


FORGETS = """
from crewai import Agent, BaseLLM, Crew, Task
from crewai.memory.unified_memory import Memory

class Model(BaseLLM):
    def call(self, messages, *args, from_agent=None, **kwargs):
        return "no memories in JSON" if from_agent is None else "Thought: I know\\nFinal Answer: a draft"

def embedder(given):
    raise RuntimeError("the embedder is out of order")

def crew():
    model = Model(model="m")
    agent = Agent(role="Writer", goal="g", backstory="b", llm=model)
    draft = Task(name="draft", description="Draft", expected_output="text", agent=agent, human_input=True)
    last = Task(name="last", description="Finish", expected_output="text", agent=agent)
    return Crew(agents=[agent], tasks=[draft, last], memory=Memory(embedder=embedder, llm=model))
"""


@pytest.mark.row("S54")
def test_an_approved_answer_that_cannot_be_remembered_ends_no_execution(tmp_path: Path, storage: Path) -> None:
    (tmp_path / "forgets.py").write_text(FORGETS)
    run = EngineStub(load(f"{tmp_path / 'forgets.py'}:crew"), tmp_path / "log")
    run.segment()
    ended = run.approve()
    assert isinstance(ended, Completed), ended
    assert run.finished() == ["draft", "last"]
    assert remembered(storage) == ""


KILLED = """
import os, signal
from pathlib import Path
from crewai import Agent, BaseLLM, Crew, Task
from crewai.memory.unified_memory import Memory

CALLS = Path(__file__).with_name("calls")

class Model(BaseLLM):
    def call(self, messages, *args, from_agent=None, **kwargs):
        if from_agent is not None:
            return "Thought: I know\\nFinal Answer: a draft"
        with CALLS.open("a") as calls:
            calls.write(".")
        if CALLS.stat().st_size == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return "no memories in JSON"

def crew():
    model = Model(model="m")
    agent = Agent(role="Writer", goal="g", backstory="b", llm=model)
    memory = Memory(embedder=lambda given: [[1.0, 2.0] for _ in given], llm=model)
    draft = Task(name="draft", description="Draft", expected_output="text", agent=agent, human_input=True)
    return Crew(agents=[agent], tasks=[draft], memory=memory)
"""


@pytest.mark.long
@pytest.mark.row("S54")
@pytest.mark.parametrize("call", [1, 2])
def test_approved_text_is_remembered_once_despite_kills_during_memory_calls(
    tmp_path: Path, storage: Path, call: int
) -> None:
    (tmp_path / "killed.py").write_text(f"DIES_AT = {call}\n{KILLED}")
    run = EngineStub(load(f"{tmp_path / 'killed.py'}:crew"), tmp_path / "log")
    deaths = 0

    def go_on(segment: Callable[[], Any]) -> Any:
        nonlocal deaths
        try:
            return segment()
        except CrewKilled:
            deaths += 1
            return run.segment()

    go_on(run.segment)
    assert remembered(storage) == ""
    assert isinstance(go_on(lambda: run.approve("edited by hand")), Completed)
    asked = (tmp_path / "calls").stat().st_size
    assert deaths == (asked >= call)
    assert remembered(storage).count("Result: edited by hand") == 1, (asked, remembered(storage))
    assert "Result: a draft" not in remembered(storage)


REPORTS = """
from pathlib import Path
from crewai import Agent, BaseLLM, Crew, Task
from crewai.memory.unified_memory import Memory

class Model(BaseLLM):
    def call(self, messages, *args, from_agent=None, from_task=None, **kwargs):
        if from_agent is None:
            return "no memories in JSON"
        if from_task.name == "report" and not Path(__file__).with_name("has ink").exists():
            raise ValueError("no ink")
        return f"Thought: I know\\nFinal Answer: the {from_task.name} of ann"

def crew():
    model = Model(model="m")
    agent = Agent(role="Writer", goal="g", backstory="b", llm=model)
    texts = {"expected_output": "text", "agent": agent}
    draft = Task(name="draft_task", description="Draft", human_input=True, **texts)
    memory = Memory(embedder=lambda given: [[1.0, 2.0] for _ in given], llm=model)
    return Crew(agents=[agent], tasks=[draft, Task(name="report", description="Report", **texts)], memory=memory)
"""


@pytest.mark.long
def test_the_starting_user_remembers_what_the_organization_answers_or_continues(tmp_path: Path, storage: Path) -> None:
    (tmp_path / "reports.py").write_text(REPORTS)
    crew = load(f"{tmp_path / 'reports.py'}:crew")
    own = storage / "owners" / hashlib.sha256(b"ann").hexdigest()
    with running_service(crew=crew, db=new_sqlite(tmp_path / "service.db"), user_tokens=[*TOKENS.items()]) as service:
        organization, ann = Client(service.url, service.token), Client(service.url, TOKENS["ann"])
        first = ann.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
        organization.until(first, "pending")
        assert organization.resume(first).ok
        assert "no ink" in organization.until(first, "error")["error"]
        assert "the draft_task of ann" in remembered(own)
        (tmp_path / "has ink").touch()
        second = organization.post("/kickoff", {"inputs": {}, "continueFrom": first}).json()["kickoff_id"]
        organization.until(second, "completed")
        assert ann.status(second)["status"] == "completed", "it is hers"
    known = remembered(own)
    assert (known.count("the draft_task of ann"), known.count("the report of ann")) == (1, 1)
    assert remembered(storage) == ""


CHECKED = """
from crewai import Agent, BaseLLM, Crew, Task
from crewai.memory.unified_memory import Memory

class Model(BaseLLM):
    def call(self, messages, *args, from_agent=None, **kwargs):
        return "no memories in JSON" if from_agent is None else "Thought: I know\\nFinal Answer: a draft"

def crew():
    model = Model(model="m")
    memory = Memory(embedder=lambda given: [[1.0, 2.0] for _ in given], llm=model)
    agent = Agent(role="Writer", goal="g", backstory="b", llm=model)

    def check(output):
        memory.remember(f"Checked: {output.raw}")
        return True, output.raw

    texts = {"description": "Draft", "expected_output": "text", "guardrail": check}
    return Crew(agents=[agent], tasks=[Task(name="draft_task", agent=agent, human_input=True, **texts)])
"""


@pytest.mark.long
def test_checking_an_edited_answer_uses_its_executions_memory(tmp_path: Path, storage: Path) -> None:
    (tmp_path / "checked.py").write_text(CHECKED)
    crew = load(f"{tmp_path / 'checked.py'}:crew")
    with running_service(crew=crew, db=new_sqlite(tmp_path / "service.db"), user_tokens=[*TOKENS.items()]) as service:
        ann = Client(service.url, TOKENS["ann"])
        started = ann.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
        draft = ann.until(started, "pending")["task_output"]
        edited = {"text": "edited by ann", "output_sha256": draft_sha256(draft)}
        assert ann.resume(started, edited_output=edited).ok
        ann.until(started, "completed")
    assert "Checked: edited by ann" in remembered(storage / "owners" / hashlib.sha256(b"ann").hexdigest())
    assert remembered(storage) == ""


def remembered(storage: Path) -> str:
    """Return all that is stored as memory."""
    if not (storage / "memory").exists():
        return ""
    database = lancedb.connect(storage / "memory")
    return str([database.open_table(name).to_arrow().to_pylist() for name in database.table_names()] or "")


def answered(run: EngineStub, asked: object, text: str) -> object:
    """Answer a question in the middle, and return how the next segment ended."""
    assert isinstance(asked, PendingQuestion)
    entry = replace(asked.entry, decision={"outcome": ANSWER, "text": text})
    run.journal[entry.number] = entry
    run.steps = max(run.steps, entry.number)
    return run.segment()


HEAD = """
from crewai import Agent, BaseLLM, Crew, Flow, Task
from crewai.flow import start
from crewai.memory.unified_memory import Memory

class Model(BaseLLM):
    def call(self, messages, *args, from_agent=None, **kwargs):
        return "no memories in JSON" if from_agent is None else "Thought: I know\\nFinal Answer: a text"

class Asks(Flow):
    @start()
    def work(self):
        model = Model(model="m")
        agent = Agent(role="Writer", goal="g", backstory="b", llm=model)
        memory = Memory(embedder=lambda given: [[1.0, 2.0] for _ in given], llm=model, **MORE)
        notes = Task(name="notes", description="Notes", expected_output="text", agent=agent)
"""
ASKS = f"""
MORE = {{}}
{HEAD}
        draft = Task(name="draft", description="Draft", expected_output="text", agent=agent, human_input=True)
        Crew(agents=[agent], tasks=[notes, draft], memory=memory).kickoff()
        return ", ".join([self.ask("Where to?"), self.ask("When?")])
"""


@pytest.mark.row("S54")
def test_later_questions_of_a_method_repeat_no_memory(tmp_path: Path, storage: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    run = EngineStub(load(f"{tmp_path / 'asks.py'}:Asks"), tmp_path / "log")
    run.segment()
    asked = run.choose("approve")
    for text in ("home", "now"):
        asked = answered(run, asked, text)
    assert isinstance(asked, Completed)
    assert asked.output == "home, now"
    for description in ("Notes", "Draft"):
        assert remembered(storage).count(f"Task: {description}") == 1


EMPTIED = f"""
import tempfile
MORE = {{"storage": FOLDER}}
{HEAD}
        memory.reset()
        Crew(agents=[agent], tasks=[notes], memory=memory).kickoff()
        self.ask("Where to?")
        memory.drain_writes()
        return str(len(memory.list_records()))
"""


@pytest.mark.row("S54")
@pytest.mark.parametrize("folder", ["__file__ + '.memory'", "tempfile.mkdtemp()"], ids=["emptied", "temporary"])
def test_a_memory_that_begins_empty_again_is_filled_again(tmp_path: Path, folder: str) -> None:
    (tmp_path / "emptied.py").write_text(EMPTIED.replace("FOLDER", folder))
    run = EngineStub(load(f"{tmp_path / 'emptied.py'}:Asks"), tmp_path / "log")
    ended = answered(run, run.segment(), "home")
    assert isinstance(ended, Completed)
    assert ended.output == "1"


SLOW = """
import time
from crewai import Agent, BaseLLM, Crew, Task
from crewai.memory.unified_memory import Memory

class Model(BaseLLM):
    def call(self, messages, *args, from_agent=None, **kwargs):
        return "no memories in JSON" if from_agent is None else "Thought: I know\\nFinal Answer: a text"

def embedder(given):
    time.sleep(1)
    return [[1.0, 2.0] for _ in given]

def crew():
    model = Model(model="m")
    agent = Agent(role="Writer", goal="g", backstory="b", llm=model)
    notes = Task(name="notes", description="Notes", expected_output="text", agent=agent)
    return Crew(agents=[agent], tasks=[notes], memory=Memory(embedder=embedder, llm=model))
"""


def test_what_is_remembered_after_a_task_has_a_known_outcome(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    crew = load(f"{tmp_path / 'slow.py'}:crew")
    with running_service(crew=crew, db=new_sqlite(tmp_path / "service.db")) as service:
        client = Client(service.url, service.token)
        started = client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
        client.until(started, "completed")
        steps = client.get(f"/executions/{started}/steps").json()["steps"]
    assert [step["state"] for step in steps if step["name"] == "a memory"] == ["done"]
    assert {step["state"] for step in steps} == {"done"}
