"""Tools and Flows in shapes that hide a call from the journal, and what must hold for them all the same."""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from crewai import Agent, BaseLLM, Task
from crewai.flow import Flow, listen, router, start
from crewai.mcp.client import MCPClient
from crewai.mcp.transports.http import HTTPTransport
from crewai.tools import BaseTool, mcp_tool_wrapper, tool
from crewai.tools.mcp_native_tool import MCPNativeTool
from crewai.tools.mcp_tool_wrapper import MCPToolWrapper
from crewai.tools.structured_tool import CrewStructuredTool
from pydantic import BaseModel

from crew_service.crewai import callbacks, channel, codec, flow_values, journal
from crew_service.crewai.errors import Asked
from crew_service.crewai.flow_run import FlowRun
from crew_service.crewai.flow_source import FlowSource
from crew_service.crewai.internals import crew_tasks, tool_calls
from crew_service.crewai.usage import TokenMeter
from crew_service.engine.crew import Job, JournalEntry, Step, TaskDone
from crew_service.engine.printed import Printed
from crew_service.engine.questions import ToolApproval
from crew_service.engine.tool_rules import ToolRule
from scripts.stack.waiting import PATIENCE

RULES = [ToolRule("pay", "once"), ToolRule("wire", "approve"), ToolRule("bank_pay", "approve")]


class Told:
    """What a crew's process would send to its service."""

    is_mine = True

    def __init__(self) -> None:
        self.told: list[Any] = []

    def report(self, progress: Any) -> None:
        self.told.append(progress)


TASK = journal.Scope("task")


@pytest.fixture(autouse=True)
def _nothing_is_recorded_afterwards() -> Iterator[None]:
    yield
    tool_calls.recorders.clear()


def begun(entries: Sequence[JournalEntry] = (), scope: journal.Scope = TASK) -> tuple[Any, Told]:
    told = Told()
    kept = journal.start(entries, len(entries), RULES, told)
    kept.enter(scope)
    return kept, told


class Declined(Exception):
    def __str__(self) -> str:
        return self.args[0]


def test_a_tools_exception_without_text_means_an_unknown_outcome() -> None:
    ran = []

    class Pay(BaseTool):
        name: str = "pay"
        description: str = "Pay."

        def _run(self) -> str:
            ran.append(1)
            raise Declined({"code": 7})

    begun()
    for _ in range(2):
        with pytest.raises(Asked):
            Pay().to_structured_tool().invoke({})
    assert ran == [1]


def test_an_unrecordable_answer_is_reported_once_per_task(caplog: pytest.LogCaptureFixture) -> None:
    class Text(str):
        pass

    def answered(scope: journal.Scope) -> Any:
        kept.enter(scope)
        call = kept.of_model(SimpleNamespace(model="m"), ([{"role": "user", "content": "Go on."}],), {})
        with call.inside():
            return call.end(Text("done"))

    kept, told = begun()
    for scope in (TASK, TASK, journal.Scope("another")):
        answered(scope)
    assert {step.answer for step in told.told if step.state == "done"} == {None}
    told_once = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [said.partition("'")[2].partition("'")[0] for said in told_once] == ["task", "another"]
    assert "Text, cannot be recorded" in told_once[0]
    assert "the call is made again" in told_once[0]


class Coded(LookupError):
    def __init__(self, code: int, *, response: Any = None) -> None:
        super().__init__(f"failed with {code}")
        self.code, self.response = code, response


class Worded(Coded):
    def __str__(self) -> str:
        return f"code {self.code}"


class Number(BaseModel):
    x: int


def raised(cause: Any) -> Exception:
    try:
        cause()
    except Exception as error:
        return error
    raise AssertionError


class Local(TypeError):
    pass


Local.__qualname__ = "no.such.Local"
FAILURES = {
    "KeyError": (KeyError("x"), KeyError),
    "FileNotFoundError": (raised(Path("/no/such/file").read_text), FileNotFoundError),
    "ModuleNotFoundError": (raised(lambda: importlib.import_module("no_such_module")), ModuleNotFoundError),
    "Coded": (Coded(7), Coded),
    "with what cannot be stored": (Coded(7, response=object()), Coded),
    "Worded": (Worded(7), Worded),
    "ValidationError": (raised(lambda: Number(x="many")), ValueError),
    "local": (Local("no"), TypeError),
    "with an object": (RuntimeError(object()), RuntimeError),
    "ExceptionGroup": (ExceptionGroup("several", [KeyError("x")]), Exception),
}


@pytest.mark.parametrize(("error", "caught"), FAILURES.values(), ids=FAILURES)
def test_a_replayed_failure_is_caught_by_its_nearest_known_class(error: Exception, caught: type[Exception]) -> None:
    again = codec.answer(codec.failure(error)).error
    assert isinstance(again, caught)
    assert (type(again).__name__, str(again)) == (type(error).__name__, str(error))
    for name in ("errno", "filename", "name", "code"):
        assert getattr(again, name, None) == getattr(error, name, None)


def test_a_failure_recorded_by_release_candidates_is_a_builtin_exception() -> None:
    again = codec.answer('{"raised": ["KeyError", "\'x\'"]}').error
    assert isinstance(again, KeyError)
    assert str(again) == "'x'"
    assert type(codec.answer('{"raised": ["Unknown", "no"]}').error).__name__ == "Unknown"


def test_a_rule_holds_for_a_method_replacing_the_original() -> None:
    ran = []

    def decorated(kind: Any) -> Any:
        own = kind._run
        kind._run = functools.wraps(own)(lambda self, **values: own(self, **values))
        return kind

    begun()

    @decorated
    class Wire(BaseTool):
        name: str = "wire"
        description: str = "Wire."

        def _run(self) -> str:
            ran.append(1)
            return "wired"

    with pytest.raises(Asked):
        Wire().run()
    assert not ran


def test_one_approval_of_an_mcp_tool_sends_one_request() -> None:
    sent = []

    class Client(MCPClient):
        connected = True

        async def connect(self) -> Any:
            return self

        async def disconnect(self) -> None:
            pass

        async def _call_tool_impl(self, *call: Any) -> Any:
            sent.append(call)
            await asyncio.sleep(9)

    def client() -> MCPClient:
        return Client(HTTPTransport(url="http://127.0.0.1:1"), execution_timeout=0.1)

    paying = MCPNativeTool(client_factory=client, tool_name="pay", tool_schema={}, server_name="bank")
    begun()
    with pytest.raises(Asked) as asked:
        paying.run()
    begun([replace(asked.value.question.entry, decision={"outcome": "approve", "text": ""})])
    with pytest.raises(Asked):
        paying.run()
    assert len(sent) == 1


def test_an_unresponsive_mcp_servers_tool_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """CrewAI's wrapper for a server that is given as an address returns every exception as text."""
    sent = []

    async def unanswered(paying: MCPToolWrapper, **arguments: Any) -> str:
        sent.append(arguments)
        await asyncio.sleep(9)
        return ""

    monkeypatch.setattr(mcp_tool_wrapper, "MCP_TOOL_EXECUTION_TIMEOUT", 0.1)
    monkeypatch.setattr(MCPToolWrapper, "_execute_tool", unanswered)
    paying = MCPToolWrapper({"url": "https://bank.example"}, "pay", {}, "bank")
    begun()
    with pytest.raises(Asked) as asked:
        paying.run()
    begun([replace(asked.value.question.entry, decision={"outcome": "approve", "text": ""})])
    for _ in range(2):
        with pytest.raises(Asked) as asked:
            paying.run()
    question = asked.value.question
    assert (question.kind, question.text.partition(":")[0]) == ("unknown_outcome", "it raised TimeoutError")
    assert len(sent) == 1


@tool("pay")
def pay() -> str:
    """Pay."""
    return "paid"


@tool("wire")
def wire() -> str:
    """Wire."""
    return "wired"


def test_a_nested_task_with_changed_text_does_not_rerun_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CAME_BY", 0.1)
    _, told = begun(scope=journal.Scope("method", "aa/1 round 0"))
    pay.run()
    first, last = (each for each in told.told if isinstance(each, Step))
    entry = JournalEntry(1, "method", "aa/1 round 0", "tool", first.key, "pay", None, last.answer, True)
    begun([entry], journal.Scope("method", "bb/1 round 0"))
    with pytest.raises(Asked) as asked:
        pay.run()
    assert asked.value.question.text == "the crew has not repeated an earlier call to it"


def recorded(name: str, key: str = "an-earlier-call", **more: Any) -> JournalEntry:
    return JournalEntry(1, "task", "", "tool", key, name, once=True, **more)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [("approve", "tool"), ("deny", "tool"), ("done", "unknown_outcome"), ("run_again", "unknown_outcome")],
)
def test_an_earlier_call_not_begun_leaves_no_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch, outcome: str, kind: str
) -> None:
    monkeypatch.setattr(journal, "CAME_BY", 0.1)
    begun([recorded("wire", decision={"outcome": outcome, "text": ""})])
    with pytest.raises(Asked) as asked:
        wire.run()
    assert asked.value.question.kind == kind


def test_a_person_is_told_that_a_result_became_unreadable() -> None:
    _, told = begun()
    pay.run()
    begun([recorded("pay", told.told[0].key, answer="of a class that is gone")])
    with pytest.raises(Asked) as asked:
        pay.run()
    assert asked.value.question.text == "it ended, but its recorded result can no longer be read"


def entries_of(told: Told) -> list[JournalEntry]:
    ended = [each for each in told.told if isinstance(each, Step) and each.answer is not None]
    names = [each.name for each in fields(JournalEntry)]
    return [JournalEntry(**{name: getattr(each, name) for name in names}) for each in ended]


def test_a_tool_with_an_unreadable_result_repeats_no_recorded_call() -> None:
    ran = []

    @tool("pay")
    def counted() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    @tool("order")
    def order() -> str:
        """Order."""
        return str(counted.run())

    _, told = begun()
    order.run()
    entries = entries_of(told)
    assert [each.name for each in entries] == ["pay", "order"]
    begun([entries[0], replace(entries[1], answer="of a class that is gone")])
    assert (order.run(), ran) == ("paid", [1])


class RunsTools(BaseLLM):
    """Runs a tool itself, as models do that are called with functions."""

    def call(self, messages: Any, *args: Any, available_functions: Any = None, **kwargs: Any) -> Any:
        return available_functions["pay"](to=messages.split()[-1])


@pytest.mark.parametrize("other", ["Also pay ann", "Pay bob"])
def test_a_recorded_model_call_includes_its_tool_calls(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setattr(journal, "CAME_BY", 0.1)
    paid = []

    @tool("pay")
    def counted(to: str) -> str:
        """Pay."""
        paid.append(to)
        return f"paid {to}"

    def called(text: str) -> str:
        return str(RunsTools(model="m").call(text, available_functions={"pay": counted.run}))

    kept, told = begun()
    TokenMeter(kept, lambda task_id: "")
    called("Pay ann")
    begun(entries_of(told))
    assert called("Pay ann") == "paid ann"
    called(other)
    assert paid == ["ann", other.split()[-1]]


class RunsFirst(BaseLLM):
    def call(self, messages: Any, *args: Any, available_functions: Any = None, **kwargs: Any) -> Any:
        return next(iter(available_functions.values()))(messages)


@pytest.mark.row("S56")
@pytest.mark.parametrize("name", ["pay", "wire", "stroll"])  # nobody has declared the last
@pytest.mark.parametrize("is_structured", [False, True])
def test_a_model_runs_no_plain_function_past_a_rule(name: str, is_structured: bool) -> None:
    ran: list[str] = []

    def done(to: str) -> None:
        """Pay."""
        ran.append(to)

    function: Any = CrewStructuredTool.from_function(done).invoke if is_structured else done
    kept = journal.start([], 0, RULES, Told(), ["pay", "wire", "walk"])
    kept.enter(TASK)
    TokenMeter(kept, lambda task_id: "")
    with pytest.raises(journal.NotDeclared, match=name):
        RunsFirst(model="m").call("ann", available_functions={name: function})
    assert ran == []


@pytest.mark.row("S56")
def test_a_model_runs_a_plain_function_without_a_rule() -> None:
    kept, _ = begun()
    TokenMeter(kept, lambda task_id: "")
    assert RunsFirst(model="m").call("home", available_functions={"walk": "walked {}".format}) == "walked home"


def test_a_cancelled_tool_is_not_rerun_by_the_next_crew() -> None:
    kept, _ = begun(scope=journal.Scope("method", "aa/1 round 0"))
    call = kept.of_tool(pay, "_run", (), {})
    call.begin()
    with pytest.raises(asyncio.CancelledError), call.inside():
        raise asyncio.CancelledError
    kept.enter(journal.Scope("method", "aa/2 round 0"))
    with pytest.raises(Asked):
        pay.run()


class Twice(Flow):
    @start()
    def one(self) -> int:
        return 1

    @start()
    def other(self) -> int:
        return 1

    @router(one)
    def after_one(self) -> str:
        return "go"

    @router(other)
    def after_other(self) -> str:
        return "go"

    @listen("go")
    def work(self) -> str:
        import time

        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.2)
        at_work.pop()
        return ""


at_work: list[int] = []
most: list[int] = []


def test_calls_of_one_method_follow_each_other() -> None:
    kept, _ = begun()
    FlowRun(FlowSource.of_class(Twice), Job("x", {}), kept).run()
    assert most == [1, 1]


finished: list[str] = []


class Asks(Flow):
    """Asks while two branches beside it are at work, and may turn the question into a result."""

    @start()
    def ask(self) -> str:
        try:
            return wire.run()
        except BaseException:
            if not self.state["hides"]:
                raise
            return "nothing"

    @start()
    async def beside(self) -> str:
        await asyncio.sleep(0.2)
        finished.append(pay.run())
        return "beside"

    @start()
    def in_a_thread(self) -> str:
        import time

        time.sleep(0.2)
        return "in a thread"

    @listen(beside)
    def after(self) -> str:
        finished.append("after")
        return "after"


@pytest.mark.parametrize("hides", [False, True])
def test_a_question_of_a_method_ends_only_its_own_branch(hides: bool) -> None:
    kept, told = begun()
    finished.clear()
    outcome: Any = FlowRun(FlowSource.of_class(Asks), Job("x", {"hides": hides}), kept).run()
    question = journal.question()
    assert question
    done = [each.task for each in told.told if isinstance(each, TaskDone)]
    states = [each.flow_state for each in (*told.told, outcome) if getattr(each, "flow_state", None)]
    assert sorted(task["task_id"] for task in done) == ["after", "beside", "in_a_thread"]
    kept, told = begun([replace(question.entry, decision={"outcome": "approve", "text": ""})])
    job = Job("x", {"hides": hides}, done, flow_state=lambda: states[-1])
    FlowRun(FlowSource.of_class(Asks), job, kept).run()
    assert journal.question() is None
    assert [each.task["output"] for each in told.told if isinstance(each, TaskDone)] == ["wired"]
    assert finished == ["paid", "after"]


def test_a_task_beside_an_asking_one_ends_unless_stopped() -> None:
    kept, told = begun()
    with pytest.raises(Asked):
        wire.run()
    kept.enter(journal.Scope("stopped"))
    with pytest.raises(Asked):
        pay.run()
    for name in ("beside", "task", "stopped"):
        with nullcontext() if name == "beside" else pytest.raises(Asked):
            kept(TaskDone({"task_id": name, "agent": "", "output": "", "execution_time": 0.0}))
    assert [each.task["task_id"] for each in told.told if isinstance(each, TaskDone)] == ["beside"]


@pytest.mark.parametrize(("worker", "part"), [("Bob", "a"), ("Ann", "b")])
def test_a_step_is_new_although_another_agents_is_replayed(worker: str, part: str) -> None:
    """Crews and agents that one method starts side by side share its task."""

    def is_replaying(worker: str, part: str, *, asks: bool = False) -> bool:
        kept.enter(journal.Scope("task", part))
        with journal.works(SimpleNamespace(role=worker)):
            if asks:
                call = kept.of_model(SimpleNamespace(model="m"), (f"{worker} asks for {part}.",), {})
                if not call.is_answered:
                    with call.inside():
                        call.end("done")
            return journal.is_replaying()

    kept, told = begun()
    assert not is_replaying(worker, part, asks=True)
    kept, _ = begun(entries_of(told))
    assert not is_replaying("Ann", "a", asks=True)
    assert is_replaying(worker, part, asks=True)
    assert not is_replaying("Ann", "a")


def test_a_copied_agent_and_task_keep_their_watched_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    told: list[str] = []
    watched = callbacks.Watched(told.append)
    agent = Agent(role="Writer", goal="Write", backstory="Brief.", llm="gpt-4o", step_callback=watched)
    task = Task(description="Write", expected_output="A text", agent=agent, callback=watched)
    for callback in (agent.copy().step_callback, task.copy([agent], {}).callback):
        callback("a step")
    assert told == ["a step"] * 2


def test_background_work_of_finished_tools_and_tasks_outlives_a_question() -> None:
    """Nothing would begin it again, because the answer of the tool or task is stored: memories are saved that way."""

    @tool("save")
    def save() -> str:
        """Save."""
        return "saved"

    kept, _ = begun()
    saving = kept.of_tool(save, "_run", (), {})
    saving.begin()
    with saving.inside():
        of_tool = copy_context()
    saving.end("saved")
    kept.enter(journal.Scope("earlier"))
    of_task = copy_context()
    kept(TaskDone({"task_id": "earlier", "agent": "", "output": "", "execution_time": 0.0}))
    kept.enter(TASK)
    with pytest.raises(Asked):
        wire.run()
    assert of_tool.run(kept.of_model, "a model", ("a memory",), {})
    assert of_task.run(kept.of_model, "a model", ("a memory",), {})
    with pytest.raises(Asked):
        kept.of_model("a model", ("the next step",), {})
    kept(TaskDone({"task_id": "beside", "agent": "", "output": "", "execution_time": 0.0}))


def test_an_async_task_that_exits_passes_it_on() -> None:
    class Leaving(BaseLLM):
        def call(self, *args: Any, **kwargs: Any) -> Any:
            sys.exit("bad option")

    begun()
    crew_tasks.let_interruptions_through()
    agent = Agent(role="r", goal="g", backstory="b", llm=Leaving(model="m"))
    with pytest.raises(SystemExit):
        Task(description="d", expected_output="e", agent=agent).execute_async().result(timeout=PATIENCE)


def test_keys_of_any_type_are_stored_as_text() -> None:
    assert codec.shown({date(2026, 1, 1): {("a", 1): 2}}) == {"2026-01-01": {"('a', 1)": 2}}
    assert "kept" in flow_values.stored({date(2026, 1, 1): 1}, {"builtins", "datetime"}, "work")


class Transfer(BaseTool):
    name: str = "wire"
    description: str = "Wire."
    account: str
    made: ClassVar[list[str]] = []

    def _run(self) -> str:
        self.made.append(self.account)
        return f"wired from {self.account}"


class InTurn(BaseLLM):
    """Calls tools in turn."""

    tools: list[str]

    def supports_function_calling(self) -> bool:
        return True

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        done = sum(each["role"] == "tool" for each in messages)
        if done == len(self.tools):
            return " and ".join(each["content"] for each in messages if each["role"] == "tool")
        return [{"id": f"{done}", "type": "function", "function": {"name": self.tools[done], "arguments": "{}"}}]


def wired(text: str, *names: str, accounts: str = "AB") -> str:
    tools = [Transfer(account=each, description=f"Wire from {each}.") for each in accounts]
    agent = Agent(role="r", goal="g", backstory="b", llm=InTurn(model="m", tools=names), tools=tools)
    return Task(description=text, expected_output="e", agent=agent).execute_sync().raw


def test_of_two_same_named_tools_an_approval_covers_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfer, "made", [])
    begun()
    with pytest.raises(Asked) as first:
        wired("Do it.", "wire", "wire_2")
    approved = [replace(first.value.question.entry, decision={"outcome": "approve", "text": ""})]
    begun(approved)
    with pytest.raises(Asked) as second:
        wired("Do it in another order.", "wire_2", "wire")
    questions = [each.value.question for each in (first, second)]
    assert [(each.entry.name, each.about) for each in questions] == [
        ("wire", "Wire from A."),
        ("wire_2", "Wire from B."),
    ]
    asked = ToolApproval.opened(questions[1], number=1, printed=Printed(), before=None, now=0.0)
    assert (asked.question or "").endswith(" wants to call the tool wire_2 (Wire from B.). May it run?")
    approved.append(replace(second.value.question.entry, decision={"outcome": "approve", "text": ""}))
    begun(approved)
    assert wired("Do it in another order.", "wire_2", "wire") == "wired from B and wired from A"
    assert Transfer.made == ["B", "A"]


def test_a_namesake_may_have_made_an_earlier_versions_recorded_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "CAME_BY", 0.1)
    monkeypatch.setattr(Transfer, "made", [])
    begun([recorded("wire", answer='"wired"')])
    with pytest.raises(Asked) as asked:
        wired("Do it.", "wire_2")
    assert (asked.value.question.kind, Transfer.made) == ("unknown_outcome", [])


@pytest.mark.parametrize("accounts", ["B", "BA"])
def test_a_renumbered_tool_may_have_made_an_earlier_recorded_call(
    monkeypatch: pytest.MonkeyPatch, accounts: str
) -> None:
    monkeypatch.setattr(journal, "CAME_BY", 0.1)
    monkeypatch.setattr(Transfer, "made", [])
    begun([replace(recorded("wire_2"), key=f"of B:1{journal.OF_NAMESAKE}")])
    with pytest.raises(Asked) as asked:
        wired("Do it.", "wire", accounts=accounts)
    assert (asked.value.question.kind, Transfer.made) == ("unknown_outcome", [])


def test_a_tool_inheriting_anothers_number_does_not_inherit_its_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfer, "made", [])
    begun()
    with pytest.raises(Asked) as asked:
        wired("Do it.", "wire")
    begun([replace(asked.value.question.entry, decision={"outcome": "approve", "text": ""})])
    with pytest.raises(Asked):
        wired("Do it.", "wire", accounts="BA")
    assert Transfer.made == []


class Day(BaseModel):
    day: date
    to: str


class Booking(BaseTool):
    name: str = "wire"
    description: str = "Wire on a day."
    args_schema: type[BaseModel] = Day
    made: ClassVar[list[Any]] = []

    def _run(self, day: date, to: str) -> str:
        self.made.append((day, to))
        return "wired"


def test_changing_one_argument_of_a_call_leaves_a_date_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Booking, "made", [])
    begun()
    with pytest.raises(Asked) as asked:
        Booking().run(day="2026-11-28", to="Ann")
    question = asked.value.question
    assert question.arguments == {"day": "2026-11-28", "to": "Ann"}
    channel.unpacked(json.loads(json.dumps(channel.packed(question))))  # crosses as it is
    changed = {"outcome": "approve", "text": "", "arguments": {**(question.arguments or {}), "to": "Bob"}}
    _, told = begun([replace(question.entry, decision=changed)])
    assert Booking().run(day="2026-11-28", to="Ann") == "wired"
    assert Booking.made == [(date(2026, 11, 28), "Bob")]
    assert [step.arguments for step in told.told if step.state == "running"] == ['{"day": "2026-11-28", "to": "Bob"}']
