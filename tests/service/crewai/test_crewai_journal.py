"""A task whose process is killed goes on where it was: no model is asked and no tool is run a second time."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, Receiver, eventually
from engine_stub import CREWS
from openai_server import USAGE, OpenAI, environment
from sampling import sampled
from sqlalchemy import create_engine, text

from crew_service.engine.crew import LONGEST_TOLD, JournalEntry, PendingQuestion, Step, TaskDone
from crew_service.engine.tool_rules import ToolRule
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-20-letters"
CREW = CREWS / "durable.py"
KINDS = ("native", "words", "beside", "Async")
CASE = re.compile(r"Case: (\S+)")
CLASS_OF_ANSWERS = b"openai.types"  # of calls of tools: nothing else in the database has its name
TOOLS = ("take_note", "take_note", "sign")


def case_of(body: dict[str, Any]) -> str:
    found = CASE.search(json.dumps(body["messages"]))
    assert found
    return found[1]


def next_step(body: dict[str, Any]) -> dict[str, Any]:
    """Ask for the three tools in turn, in the way that the chat allows, by what the chat holds."""
    turns = body["messages"]
    if body.get("tools"):
        done = sum(turn["role"] == "tool" for turn in turns)
        arguments = json.dumps({"text": f"{done} of {case_of(body)}"})
        function = {"name": TOOLS[done], "arguments": arguments}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call{done}", "type": "function", "function": function}],
        }
    done = sum(str(turn["content"]).count("\nObservation: noted") for turn in turns)
    arguments = json.dumps({"text": f"{done} of {case_of(body)}"})
    return {
        "role": "assistant",
        "content": f"Thought: I go on\nAction: {TOOLS[done]}\nAction Input: {arguments}",
    }


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAI]:
    server = OpenAI()
    server.script = next_step
    yield server
    server.close()


def options(*crews: str) -> list[str]:
    return ["--token", TOKEN, *(part for name in crews for part in ("--crew", f"{name.lower()}={CREW}:{name}"))]


@pytest.fixture(scope="module")
def service(server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """One service for all that nobody kills: to import CrewAI takes seconds."""
    service = Command(tmp_path_factory.mktemp("journal"), *options(*KINDS), environment=environment(server))
    yield service
    service.kill()


@pytest.fixture(scope="module")
def strict(server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The same, with a tool that may run only once."""
    rules = ("--tool", "native/TakeNote=once", "--tool", "take_*=once", *FLOW_TOOLS)
    folder = tmp_path_factory.mktemp("strict")
    service = Command(folder, *options(*KINDS), *rules, environment=environment(server))
    yield service
    service.kill()


FLOW_TOOLS = ("--flow-tool", "take_note", "--flow-tool", "sign")


class Case:
    """An execution whose process dies after a number of calls."""

    def __init__(
        self, client: Client, folder: Path, name: str, *, dies_after: float = 99, fails: str = "none", **more: Any
    ) -> None:
        self.name, self.dies_after = name, dies_after
        self.log = folder / f"{name}.log"
        kill = folder / f"{name}.kill"
        kill.write_text(str(dies_after))
        self.client = client
        body = {"inputs": {"case": name, "log": str(self.log), "kill": str(kill), "fails": fails}, **more}
        self.id = client.post("/kickoff", body).json()["kickoff_id"]

    def models(self, server: OpenAI) -> int:
        return [case_of(body) for body in server.asked].count(self.name)

    def logged(self, what: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [entry[what] for line in lines if what in (entry := json.loads(line))]

    def ended(self) -> dict[str, Any]:
        return eventually(
            lambda: (found := self.client.status(self.id))["status"] in ("completed", "error") and found, self.name
        )


def killed_after(*some: int, each: range) -> pytest.MarkDecorator:
    """Cases of every kind whose process dies after some calls, and, in `make long`, after each."""
    return pytest.mark.parametrize(
        ("kind", "kills"),
        [
            *(pytest.param(kind, some, id=kind) for kind in KINDS),
            *(pytest.param(kind, (*each,), id=f"{kind}-after-each", marks=pytest.mark.long) for kind in KINDS),
        ],
    )


@pytest.mark.long
@pytest.mark.row("S1")
@killed_after(2, 5, each=range(1, 7))
def test_a_task_killed_after_any_call_makes_each_call_once(
    service: Command, server: OpenAI, tmp_path: Path, kind: str, kills: tuple[int, ...]
) -> None:
    client = service.client(TOKEN, kind.lower())
    name = f"{kind}-of-{len(kills)}"
    cases = [Case(client, tmp_path, f"{name}-{calls}", dies_after=calls) for calls in (*kills, 99)]
    for case in cases:
        assert case.ended()["status"] == "completed", case.ended()
        expected = [f"{number} of {case.name}" for number in range(3)]
        assert (case.models(server), case.logged("tool")) == (3, expected), case.name
        found = client.get(f"/executions/{case.id}").json()
        assert found["usage"]["total_tokens"] == 3 * USAGE["total_tokens"], case.name
        check_steps(found["tasks"][0], case, 0 if case is cases[-1] else int(case.dies_after))
    log = service.log.read_text()
    counts = {case.name: re.findall(rf"steps taken from the journal: (\d+).*{case.id}", log) for case in cases}
    assert counts == {f"{name}-{calls}": [str(calls)] for calls in kills} | {f"{name}-99": []}


def check_steps(task: dict[str, Any], case: Case, replayed: int) -> None:
    """Six calls are six steps, of which those before the kill are taken from the journal."""
    steps = task["steps"]
    assert [step["kind"] for step in steps] == ["model", "tool"] * 3, case.name
    assert [step["name"] for step in steps if step["kind"] == "tool"] == list(TOOLS), case.name
    assert [step["number"] for step in steps] == sorted({step["number"] for step in steps}), case.name
    for place, step in enumerate(steps):
        assert step["state"] == "done", (case.name, step)
        assert step["from_journal"] is (place < replayed), (case.name, step)
        assert step["agent"] == "Clerk", (case.name, step)
        assert (step["usage"] or {}).get("total_tokens") == (11 if step["kind"] == "model" else None), (case.name, step)
    assert steps[1]["arguments"] == json.dumps({"text": f"0 of {case.name}"})
    assert steps[1]["result"] == f'"noted 0 of {case.name}"'
    assert f"0 of {case.name}" in steps[0]["result"]


def stored(database: str, execution_id: str) -> list[tuple[str, bytes | None]]:
    engine = create_engine(database)
    query = text("SELECT kind, answer FROM journal WHERE execution_id = :id ORDER BY number")
    with engine.connect() as connection:
        found = [(row.kind, row.answer) for row in connection.execute(query, {"id": execution_id})]
    engine.dispose()
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/crew-service.db"
    return request.getfixturevalue("postgresql")


@pytest.mark.long
@pytest.mark.row("S1", "S19")
def test_a_killed_service_repeats_at_most_the_call_in_progress(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path, database: str
) -> None:
    """On PostgreSQL another service goes on."""
    reached, go_on = threading.Event(), threading.Event()

    def hold(body: dict[str, Any]) -> dict[str, Any]:
        """Hold the third call of the model until the service is gone."""
        step = next_step(body)
        if "sign" in json.dumps(step):
            reached.set()
            go_on.wait()
        return step

    given = (*options("native"), "--db", database)
    server.script = hold
    try:
        running = command(*given, environment=environment(server))
        name = f"killed-service-{database[:6]}"
        case = Case(running.client(TOKEN, "native"), tmp_path, name)
        assert reached.wait(PATIENCE)
        answered = ["model", "tool"] * 2
        eventually(lambda: [kind for kind, answer in stored(database, case.id) if answer] == answered, "steps")
        assert CLASS_OF_ANSWERS in b"".join(bytes(answer or b"") for _, answer in stored(database, case.id))
        running.kill()
    finally:
        go_on.set()
        server.script = next_step
    case.client = command(*given, environment=environment(server)).client(TOKEN, "native")
    assert case.ended()["status"] == "completed"
    assert case.models(server) == 4, "the third, which had not answered yet, was asked again"
    assert case.logged("tool") == [f"{number} of {name}" for number in range(3)]
    assert stored(database, case.id) == []


def test_a_finished_tasks_recorded_answers_are_erased_from_the_file(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path
) -> None:
    client = command(*options("native"), environment=environment(server)).client(TOKEN, "native")
    assert Case(client, tmp_path, "erased").ended()["status"] == "completed"
    files = [tmp_path / "crew-service.db", tmp_path / "crew-service.db-wal"]
    eventually(lambda: not any(CLASS_OF_ANSWERS in path.read_bytes() for path in files), "the erasure")


def test_steps_are_told_once(service: Command, tmp_path: Path, receiver: Receiver) -> None:
    client = service.client(TOKEN, "words")
    told = {}
    for name, calls in (("whole", 99), ("killed", 5)):
        case = Case(client, tmp_path, name, dies_after=calls, stepWebhookUrl=f"{receiver.url}/{name}")
        assert case.ended()["status"] == "completed"
        eventually(lambda place=f"/{name}": len(receiver.bodies(place)) >= 3, "the webhooks")
        told[name] = [body["tool"] for body in receiver.bodies(f"/{name}")], len(case.logged("step"))
    assert told["killed"] == told["whole"]
    assert told["whole"][0] == ["take_note", "take_note", ""]


def given_up(case: Case) -> str:
    """Give up a call whose outcome is unknown, and return the error of its execution."""
    asked = eventually(lambda: (found := case.client.status(case.id))["status"] == "pending" and found, "the question")
    assert asked["ask"]["kind"] == "unknown_outcome"
    answer = {"execution_id": case.id, "task_id": asked["task_id"], "outcome": "fail"}
    assert case.client.post("/resume", answer).ok
    return str(case.ended()["error"])


def test_an_interrupted_tool_runs_again_unless_limited_to_one_run(
    service: Command, strict: Command, server: OpenAI, tmp_path: Path
) -> None:
    case = Case(service.client(TOKEN, "native"), tmp_path, "again", dies_after=3.5)
    assert case.ended()["status"] == "completed"
    assert case.logged("tool") == ["0 of again", "1 of again", "1 of again", "2 of again"]
    for kind in ("native", "words", "beside"):
        case = Case(strict.client(TOKEN, kind), tmp_path, f"once-{kind}", dies_after=3.5)
        arguments = json.dumps({"text": f"1 of {case.name}"})
        assert given_up(case) == (
            f"The tool take_note may run only once, but it is unknown whether it did its work with {arguments}: "
            "it had started, and its end was not recorded. It was not run again; check what it did before you start "
            "the crew again."
        )
        assert case.logged("tool") == [f"0 of {case.name}", f"1 of {case.name}"]
        assert case.models(server) == 2
        steps = case.client.get(f"/executions/{case.id}").json()["tasks"][0]["steps"]
        assert [step["state"] for step in steps] == ["done", "done", "done", "unknown"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_run_once_tool_ends_the_execution(strict: Command, tmp_path: Path, kind: str) -> None:
    case = Case(strict.client(TOKEN, kind.lower()), tmp_path, kind, fails="1")
    assert ": it raised ValueError: no answer ***. It was not run again" in given_up(case)
    assert case.logged("tool") == [f"0 of {kind}", f"1 of {kind}"]
    last = case.client.get(f"/executions/{case.id}/steps").json()["steps"][-1]
    assert (last["name"], last["state"], last["result"]) == ("take_note", "unknown", '"ValueError: no answer ***"')


@killed_after(3, each=range(2, 5))
def test_a_finished_run_once_call_is_taken_from_the_journal(
    strict: Command, server: OpenAI, tmp_path: Path, kind: str, kills: tuple[int, ...]
) -> None:
    client, name = strict.client(TOKEN, kind.lower()), f"{kind}-kept-of-{len(kills)}"
    cases = [Case(client, tmp_path, f"{name}-{calls}", dies_after=calls) for calls in kills]
    for case in cases:
        assert case.ended()["status"] == "completed"
        assert (case.models(server), case.logged("tool")) == (3, [f"{number} of {case.name}" for number in range(3)])


@pytest.mark.parametrize(("rule", "state"), [("take_note=once", "completed"), ("take_notes=once", "error")])
def test_a_rule_matching_no_tool_fails_the_task_bringing_tools(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path, rule: str, state: str
) -> None:
    running = command(*options("connected"), "--tool", rule, environment=environment(server))
    case = Case(running.client(TOKEN, "connected"), tmp_path, state)
    ended = case.ended()
    assert ended["status"] == state, ended
    if state == "error":
        assert ended["error"] == (
            "The rule take_notes=once matches none of the crew's tools, some of which were unknown until now (sign, "
            "take_note). None of this task's tools were run; correct the name in the rule."
        )
        assert (case.models(server), case.logged("tool")) == (0, [])


PROJECT = """
[tool.airflow-crew-service.tools]
{}
"""
REFUSED = [
    (["--tool", "send_mail=once"], "", "its rule send_mail=once matches none of its tools (take_note, sign)."),
    (["--tool", "take_note=ask"], "", "'ask' is not a known rule"),
    (["--tool", "=once"], "", "it names no tool"),
    (["--tool", "take_note"], "", "expected NAME=RULE"),
    (["--no-journal", "--tool", "TakeNote=once"], "", "its rule TakeNote=once needs the journal"),
    ([], 'send_mail = "once"', "its rule send_mail=once matches none of its tools"),
    ([], "sign = true", "'True' is not a known rule"),
]


@pytest.mark.parametrize(("given", "project", "reason"), sampled(REFUSED, 3))
def test_rules_that_cannot_be_kept_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], project: str, reason: str
) -> None:
    for name in ("durable.py", "scribe.py"):
        (tmp_path / name).write_text((CREWS / name).read_text())
    if project:
        (tmp_path / "pyproject.toml").write_text(PROJECT.format(project))
    monkeypatch.setenv("OPENAI_API_KEY", "for-tests-only")
    ended = Command.refused(tmp_path, "--token", TOKEN, "--crew", "durable.py:native", *given)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert reason in ended.stderr


def test_without_a_journal_a_killed_process_ends_its_execution(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path
) -> None:
    client = command(*options("native"), "--no-journal", environment=environment(server)).client(TOKEN, "native")
    case = Case(client, tmp_path, "without", dies_after=3)
    assert case.ended()["error"] == "The crew's process was killed by signal 9 before the crew was done."
    assert stored(f"sqlite:///{tmp_path}/crew-service.db", case.id) == []


class Told:
    """Takes what a journal reports."""

    is_mine = True

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def report(self, progress: Any) -> None:
        self.steps.append(progress)


def test_an_answer_beyond_8_mib_is_seen_and_not_recorded() -> None:
    from crewai.tools import tool

    from crew_service.crewai import journal

    @tool("read")
    def read(text: str) -> str:
        """Read a text."""
        return text

    told = Told()
    kept = journal.Journal([], 0, [ToolRule("pay", "once")], told)
    kept.enter(journal.Scope("task"))
    for answer in ("x" * 9 * 1024 * 1024, "short"):
        call = kept.of_tool(read, "_run", (), {"text": answer[:5]})
        assert call
        call.begin()
        call.end(answer)
    large, short = told.steps[1], told.steps[3]
    assert (large.state, large.is_kept, large.answer) == ("done", False, None)
    assert len(large.result or "") == LONGEST_TOLD + 1
    assert (short.state, short.is_kept, short.answer) == ("done", True, '"short"')


def test_a_full_journal_keeps_a_run_once_tool_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    from crewai.tools import tool

    from crew_service.crewai import journal

    @tool("read")
    def read() -> str:
        """Read."""
        return ""

    @tool("pay")
    def pay() -> str:
        """Pay."""
        return ""

    monkeypatch.setattr(journal, "MOST", 5_000)
    told = Told()
    kept = journal.Journal([], 0, [ToolRule("pay", "once")], told)
    kept.enter(journal.Scope("task"))
    for _ in range(3):
        call = kept.of_tool(read, "_run", (), {})
        assert call
        call.begin()
        call.end("x" * 2_000)
    assert [step.is_kept for step in told.steps] == [True, True, True, False, True, False]
    assert [step.state for step in told.steps] == ["running", "done"] * 3, "people see them all the same"
    monkeypatch.setattr(journal, "MOST", 4_500)
    paying = kept.of_tool(pay, "_run", (), {})
    assert paying
    with pytest.raises(journal.NotRun, match=r"it was not run with .*: the journal of this execution is full"):
        paying.begin()
    assert not any(step.is_kept for step in told.steps[6:])


BANK = "a-token-of-the-bank"


@pytest.fixture
def long_text(monkeypatch: pytest.MonkeyPatch) -> str:
    """A text with a secret where an error truncates it."""
    from crew_service.crewai.errors import Fatal

    monkeypatch.setattr(Fatal, "noted", [])
    monkeypatch.setenv("BANK_TOKEN", BANK)
    return "." * 480 + BANK


def test_truncated_call_arguments_in_an_error_show_no_partial_secret(long_text: str) -> None:
    from crew_service.crewai import journal

    error = str(journal.NotRun("pay", f"{'.' * 10}{long_text}", "the journal is full"))
    assert ("a-token" in error, "..***: the journal is full" in error) == (False, True)


@pytest.mark.parametrize("of", ["its task", "a finished task", "a finished task, calling a run-once tool"])
def test_an_error_of_a_preparing_call_shows_no_partial_secret(long_text: str, of: str) -> None:
    from crewai.tools import tool

    from crew_service.crewai import journal, prepared_calls
    from crew_service.crewai.errors import Fatal

    @tool("pay")
    def pay(text: str) -> str:
        """Pay."""
        return text

    @tool("add")
    def add(text: str) -> str:
        """Add."""
        if "run-once" in of:
            kept.of_tool(pay, "_run", (), {"text": text})
        raise LookupError("sold out")

    told, rules, given = Told(), [ToolRule("add", "prepare"), ToolRule("pay", "once")], {"text": long_text}
    if of == "its task":
        kept = journal.Journal([], 0, rules, told)
        kept.enter(journal.Scope("task"))
        first = kept.of_tool(add, "_run", (), given)
        assert first
        first.begin()
        first.end("added")
        kept = journal.Journal(recorded(told.steps), 1, rules, Told())
        kept.enter(journal.Scope("task"))
        again = kept.of_tool(add, "_run", (), given)
        assert again
        with pytest.raises(Fatal) as error, again.preparing():
            add._run(**given)
    else:
        call = prepared_calls.PreparedCall("first", "", "add", "_run", prepared_calls.arguments((), given))
        kept = journal.Journal([], 0, rules, told, done=[prepared_calls.with_calls({"task_id": "first"}, [call])])
        with pytest.raises(Fatal) as error:
            kept.make_again(journal.Scope("task"), [("", add)], is_over=False)
    assert ("a-token" in str(error.value), "***" in str(error.value)) == (False, True), error.value


@pytest.mark.row("S57")
def test_a_methods_next_call_knows_nothing_of_the_last_one() -> None:
    from crewai.tools import tool

    from crew_service.crewai import journal
    from crew_service.crewai.errors import Asked

    @tool("look")
    def look() -> str:
        """Look."""
        return ""

    @tool("pay")
    def pay() -> str:
        """Pay."""
        return ""

    kept = journal.Journal([], 0, [ToolRule("pay", "once")], Told())
    done: Any = {"task_id": "method", "agent": "", "output": "", "execution_time": 0.1}

    def call(called: Any) -> journal.Call:
        made = kept.of_tool(called, "_run", (), {})
        assert made
        made.begin()
        return made

    kept.enter(journal.Scope("method"))
    call(look).end("seen")
    with suppress(asyncio.CancelledError), call(pay).inside():
        raise asyncio.CancelledError
    with pytest.raises(Asked, match="a person must decide"):
        call(pay)  # of this call of the method, it is unknown whether it paid
    kept._asked = None
    kept(TaskDone(done))
    kept.enter(journal.Scope("method"))
    looking = call(look)
    assert kept.earlier_calls("method") == 0
    call(pay).end("paid")
    kept.ask(PendingQuestion("tool", looking.entry, "", {}))
    with pytest.raises(Asked), looking.inside():
        kept.stop_if_asked()


def recorded(steps: list[Step]) -> list[JournalEntry]:
    """Return what the service passes to the next attempt after these steps."""
    kept: dict[int, Step] = {}
    for step in steps:
        if step.state == "running":
            kept[step.number] = step
        elif step.answer is not None:
            kept[step.number] = replace(kept[step.number], answer=step.answer)
    names = [each.name for each in fields(JournalEntry)]
    return [JournalEntry(**{name: getattr(step, name) for name in names}) for step in kept.values()]


WAYS = {"kill": None, "raise": TimeoutError("no answer"), "cancel": asyncio.CancelledError()}


@pytest.mark.parametrize("raised", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("rules", [[ToolRule("mail", "once")], []], ids=["", "rule taken away"])
def test_a_run_once_tool_never_reruns_whatever_it_called_before(
    raised: BaseException | None, rules: list[ToolRule]
) -> None:
    from crewai.tools import tool

    from crew_service.crewai import journal
    from crew_service.crewai.errors import Asked

    @tool("look")
    def look() -> str:
        """Look."""
        return ""

    @tool("mail")
    def mail() -> str:
        """Mail."""
        return ""

    def begin(kept: journal.Journal) -> None:
        mailing = kept.of_tool(mail, "_run", (), {})
        assert mailing
        mailing.begin()
        with mailing.inside():
            looking = kept.of_tool(look, "_run", (), {})
            assert looking
            looking.begin()
            looking.end("seen")
            if raised:
                raise raised

    first = Told()
    kept = journal.Journal([], 0, [ToolRule("mail", "once")], first)
    kept.enter(journal.Scope("task"))
    with suppress(BaseException):
        begin(kept)
    again = journal.Journal(recorded(first.steps), 2, rules, Told())
    again.enter(journal.Scope("task"))
    with pytest.raises(Asked) as asked:
        begin(again)
    assert (asked.value.question.kind, asked.value.question.text) == (
        "unknown_outcome",
        "it had started, and its end was not recorded",
    )
