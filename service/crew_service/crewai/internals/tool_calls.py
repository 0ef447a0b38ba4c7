"""Lets a recorder answer and record the calls to tools, and whatever else a restarted task would repeat."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Any, Protocol

from crewai.tools import BaseTool

from crew_service.crewai.internals import NO_JOURNAL, Seam, step_events
from crew_service.crewai.internals.wrapping import WRAPPER, concrete, holding, wrap_class, wrap_classes_to_come

AsyncCall = Callable[..., Awaitable[Any]]
DUE: ContextVar[list[Callable[[], bool]] | None] = ContextVar("the limit that the next request must obey", default=None)
CALLED: ContextVar[tuple[Any, str, str] | None] = ContextVar("the tool called by its model's name for it", default=None)
recorders: list[Recorder] = []
JOURNAL = Seam(
    NO_JOURNAL,
    {
        "crewai.tools.base_tool:Tool": "its methods bypass those of its base class, where calls are recorded",
        "crewai.utilities.string_utils:sanitize_tool_name": "a rule names a tool as models do",
        "crewai.utilities.agent_utils:convert_tools_to_openai_schema": "tools with the same name are told apart",
        "crewai.utilities.agent_utils:extract_tool_call_info": "answers of all providers are recorded in one form",
        "crewai.utilities.agent_utils:is_tool_call_list": "answers of all providers are recorded in one form",
        "crewai.tools.agent_tools.base_agent_tools:BaseAgentTool": "delegation has no effect of its own",
        "crewai.utilities.rpm_controller:RPMController.check_or_wait": "recorded answers do not wait for a limit",
        "crewai.memory.unified_memory:Memory.recall": "later prompts contain what was found",
    },
    returns={
        "sanitize_tool_name": "str",
        "convert_tools_to_openai_schema": "tuple",
        "extract_tool_call_info": "tuple",
        "is_tool_call_list": "bool",
        "RPMController.check_or_wait": "bool",
    },
)
SAVE = "Memory._background_encode_batch"
MEMORY = Seam(
    "agents remember an answer again if its task begins again",
    {
        f"crewai.memory.unified_memory:{SAVE}": "whatever agents remember is stored there, after their answer",
        "crewai.memory.unified_memory:Memory._storage": "to see what is still remembered",
    },
)
TOOL_FAILED = "ToolExecutionFailedError"  # not in every version
LIBRARIES = ("crewai", "crew_service")
OF_TOOLS = ("exception", "tool_reported", "mcp_error")  # reasons in that error that are not the model's fault


class Recorder(step_events.Answers, Protocol):
    """Answers calls from a journal and records the others; if a method returns None, the call is left alone."""

    def of_model(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None: ...
    def of_conversion(self, model: Any, content: str, expected: Any) -> RecordedCall | None: ...
    def of_tool(self, tool: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None: ...
    def of_memory(self, step: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None: ...


class RecordedCall(Protocol):
    @property
    def is_answered(self) -> bool: ...
    @property
    def is_prepared(self) -> bool: ...
    def prepare(self) -> None: ...
    def preparing(self) -> AbstractContextManager[None]: ...
    def answer(self) -> Any: ...
    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def begin(self) -> None: ...
    def inside(self) -> AbstractContextManager[None]: ...
    def end(self, answer: Any, used: dict[str, int] | None = None) -> Any: ...


def record_calls(recorder: Recorder) -> None:
    """Consult a recorder before every call to a tool or a watched model; it replaces any earlier recorder."""
    if not record_tool_calls(recorder):
        return
    _tell_namesakes_apart()
    step_events.filter_events(lambda: recorders[0], model_name)
    JOURNAL.wrap("RPMController.check_or_wait", _deferred)
    JOURNAL.wrap("Memory.recall", _recalled)
    if not MEMORY.missing:
        MEMORY.wrap(SAVE, _remembered)


def record_tool_calls(recorder: Recorder) -> bool:
    """Consult a recorder before every call to a tool; return whether it is the first in this process."""
    first = not recorders
    recorders[:] = [recorder]
    if first:
        tool = JOURNAL["Tool"]
        for name in ("run", "arun"):  # they call the function directly; without them, a tool behaves like its base
            if name in vars(tool):
                delattr(tool, name)
        record_tools()
        wrap_classes_to_come(BaseTool, TOOLS)
    return first


def record_tools() -> None:
    """Record calls to every tool class, even if a decorator has since replaced a recorded method."""
    for kind in BaseTool.__subclasses__():
        wrap_class(kind, TOOLS, BaseTool)


def inside(recorded: RecordedCall | None) -> AbstractContextManager[None]:
    return recorded.inside() if recorded else nullcontext()


def _run_recorded(method: Any, name: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):  # a coroutine function must remain one
        return _arun_recorded(method, name)

    def run(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
        performed = method.__get__(tool)
        recorded = _recorded_run(run, name, tool, args, kwargs)
        if recorded is None:
            return performed(*args, **kwargs)
        if recorded.is_prepared:
            recorded.prepare()
            with recorded.preparing(), _not_hidden():
                answer = performed(*args, **kwargs)
                if inspect.iscoroutine(answer):
                    asyncio.run(answer)
            return recorded.answer()
        if recorded.is_answered:
            return recorded.answer()
        args, kwargs = recorded.given(args, kwargs)
        recorded.begin()
        with recorded.inside(), _not_hidden():
            answer = performed(*args, **kwargs)
        return _ended(recorded, answer) if inspect.iscoroutine(answer) else recorded.end(answer)

    return run


def _arun_recorded(method: Any, name: str) -> AsyncCall:
    async def run(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
        performed = method.__get__(tool)
        recorded = _recorded_run(run, name, tool, args, kwargs)
        if recorded is None:
            return await performed(*args, **kwargs)
        if recorded.is_prepared:
            await asyncio.to_thread(recorded.prepare)
            return await _prepared(recorded, performed(*args, **kwargs))
        if recorded.is_answered:
            return recorded.answer()
        args, kwargs = recorded.given(args, kwargs)
        await asyncio.to_thread(recorded.begin)  # it blocks, and other coroutines should not have to wait
        return await _ended(recorded, performed(*args, **kwargs))

    return run


async def _ended(recorded: RecordedCall, answering: Awaitable[Any]) -> Any:
    with recorded.inside():
        answer = await answering
    return await asyncio.to_thread(recorded.end, answer)


async def _prepared(recorded: RecordedCall, answering: Awaitable[Any]) -> Any:
    with recorded.preparing():
        await answering
    return recorded.answer()


def _deferred(wait: Callable[..., bool]) -> Callable[..., bool]:
    """Count a request towards the per-minute limit only when it is made: the journal may answer it instead."""

    def check_or_wait(*args: Any, **kwargs: Any) -> bool:
        DUE.set([partial(wait, *args, **kwargs)])
        return True

    return check_or_wait


def keep_limit(*, is_made: bool) -> None:
    if due := DUE.get():
        wait = due.pop()
        if is_made:
            wait()


def _recalled(recall: Callable[..., Any]) -> Callable[..., Any]:
    """Record memory lookups: the memory, and with it the prompt, may change before the task restarts."""

    def recalled(memory: Any, *args: Any, **kwargs: Any) -> Any:
        recorded = recorders[0].of_memory(step_events.RECALL, args, kwargs)
        if recorded is None:
            return recall(memory, *args, **kwargs)
        if recorded.is_answered:
            return recorded.answer()
        recorded.begin()
        with recorded.inside():
            memories = recall(memory, *args, **kwargs)
        return recorded.end(memories)

    return recalled


def _remembered(save: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Record what is stored in a memory: a task that begins again gives the same answers again."""

    def remembered(memory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        recorded = recorders[0].of_memory(step_events.REMEMBER, args, kwargs)
        if recorded is None:
            return save(memory, *args, **kwargs)
        if recorded.is_answered and _has(memory, recorded.answer()):
            return []
        recorded.begin()
        with suppress(_NothingStored), recorded.inside():
            records = save(memory, *args, **kwargs)
            if not records:
                raise _NothingStored("nothing was stored")
            recorded.end([record.id for record in records])
        return records

    return remembered


def _has(memory: Any, ids: list[str]) -> bool:
    """Return whether a memory still has these records; what empties it, or creates it anew, is not recorded."""
    with suppress(Exception):  # of a user's storage
        return all(memory._storage.get_record(each) for each in ids)
    return False


class _NothingStored(Exception):
    """CrewAI has given up, as it does silently if its process is about to end; or there was nothing new."""


TOOLS: dict[str, Callable[[Any], Any]] = {
    **{name: partial(_run_recorded, name=name) for name in ("_run", "run")},
    **{name: partial(_arun_recorded, name=name) for name in ("_arun", "arun")},
}


def _recorded_run(
    run: Any, name: str, tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> RecordedCall | None:
    """Return the recorder's call; None if the caller is an override in the tool's class, which records the call."""
    outer = getattr(type(tool), name, None)
    if not recorders or (outer is not run and getattr(outer, WRAPPER, None) is outer):
        return None
    return recorders[0].of_tool(tool, name, args, kwargs)


class NoRecorder:
    """A recorder that leaves all calls alone."""

    def of_model(self, *call: Any) -> None:
        return None

    def of_conversion(self, *call: Any) -> None:
        return None

    def of_tool(self, tool: Any, *call: Any) -> None:
        return None

    def of_memory(self, *call: Any) -> None:
        return None

    def has_model_answer(self) -> bool:
        return False

    def has_answer(self, tool: str) -> bool:
        return False

    def is_replaying(self) -> bool:
        return False


class _Count(NoRecorder):
    """Counts tool calls."""

    def __init__(self) -> None:
        self.calls = 0

    def of_tool(self, tool: Any, *call: Any) -> None:
        self.calls += 1


def can_record() -> bool:
    """Try a tool of each kind; return whether each way to call it reaches a recorder, and models' calls can be read."""

    @concrete
    class Own(BaseTool):
        name: str = "own"
        description: str = "own"

        def _run(self) -> str:
            return ""

    count, call = _Count(), {"id": "1", "type": "function", "function": {"name": "own", "arguments": "{}"}}
    try:
        record_calls(count)
        made: list[Any] = [Own(), JOURNAL["Tool"](name="made", description="made", func=lambda: "")]
        functions = JOURNAL["convert_tools_to_openai_schema"](made)[1]
        for each in made:
            each.run()
            each.to_structured_tool().invoke({})
            functions[each.name]()
        are_read = plain_tool_calls([call]) == [call]
    except Exception:  # any failure in an unknown version
        return False
    return are_read and count.calls == 3 * len(made)


def failed_tool(error: BaseException) -> str | None:
    """Return the name of the tool whose failure made CrewAI end a task, if the user enabled that."""
    record = getattr(error, "record", None) if type(error).__name__ == TOOL_FAILED else None
    reason = getattr(getattr(record, "failure", None), "reason", None)
    return model_name(record.tool_name) if record and reason in OF_TOOLS else None


def tool_name(tool: Any) -> str:
    """Return the tool's name as shown to the model, unless its agent has several tools with that name."""
    return model_name(tool.name)


def names_of(name: str) -> list[str]:
    """Return the names by which a rule may name the tool with this name: its own, and the one that a model is shown."""
    return [name, model_name(name)]


def model_name(name: str) -> str:
    """Return the name that a model is shown for a tool with this name."""
    sanitize = None if JOURNAL.missing else JOURNAL["sanitize_tool_name"]
    return str(sanitize(name)) if sanitize else name


def called_as(tool: BaseTool) -> tuple[str, str]:
    """Return the name by which a model calls the tool and, if its agent has others with its name, its description."""
    called = CALLED.get()
    return called[1:] if called and called[0] is tool else (tool_name(tool), "")


def _tell_namesakes_apart() -> None:
    """Remember by which name a model calls one of several tools with the same name: CrewAI numbers all but the first.

    CrewAI's modules import the function that does so by name.
    """
    convert: Any = JOURNAL["convert_tools_to_openai_schema"]

    @wraps(convert)
    def converted(*args: Any, **kwargs: Any) -> Any:
        answer = convert(*args, **kwargs)
        schemas, functions, by_name = answer[:3]
        count = Counter(map(tool_name, by_name.values()))
        for schema in (each["function"] for each in schemas):
            name, tool = schema["name"], by_name[schema["name"]]
            if count[tool_name(tool)] > 1:
                functions[name] = _called_as((tool, name, schema["description"] or name), functions[name])
        return answer

    # To look at a module copies its page in a forked process, so only CrewAI's are looked at.
    own = "convert_tools_to_openai_schema"
    for module in [sys.modules[name] for name in list(sys.modules) if name.startswith("crewai.")]:
        if vars(module).get(own) is convert:
            setattr(module, own, converted)


def _called_as(called: tuple[Any, str, str], run: Callable[..., Any]) -> Callable[..., Any]:
    def run_as(*args: Any, **kwargs: Any) -> Any:  # of this module, and so recorded (`is_recorded`)
        with holding(CALLED, called):
            return run(*args, **kwargs)

    return run_as


def delegates(tool: BaseTool) -> bool:
    """Whether the tool only delegates work to another agent in the crew."""
    return isinstance(tool, JOURNAL["BaseAgentTool"])


def plain_tool_calls(answer: Any) -> list[dict[str, Any]]:
    """Return a model's tool calls as dicts, which CrewAI reads like the provider's own objects.

    :raises ValueError: if the answer is something else
    """
    if not (isinstance(answer, list) and JOURNAL["is_tool_call_list"](answer)):
        raise ValueError("the answer is not a list of tool calls")
    return [
        {"id": some_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for some_id, name, arguments in filter(None, map(JOURNAL["extract_tool_call_info"], answer))
    ]


def is_recorded(function: Any) -> bool:
    """Whether a function that a model's class may run is a tool's method, or CrewAI's own."""
    if (owner := getattr(function, "__self__", None)) is not None:
        return isinstance(owner, BaseTool)
    return str(getattr(function, "__module__", "")).partition(".")[0] in LIBRARIES


def reader_of(tool: Any) -> Callable[[Any], str]:
    """Return what converts the tool's results to the text that an agent reads."""
    reader: Callable[[Any], str] = getattr(tool, "format_output_for_agent", str)  # not every version has this method
    return reader


def never_cache(tool: BaseTool) -> None:
    """Never let CrewAI reuse the result of an earlier call with the same arguments."""
    tool.cache_function = _no_cache


def send_once(tool: Any) -> None:
    """Make an MCP server's tool send its request only once, and raise what the request raises.

    CrewAI's clients repeat a request after a timeout, and one of its two kinds of tools returns exceptions as text.
    """
    kind = type(tool).__name__
    if kind == "MCPNativeTool" and not isinstance(tool._client_factory, partial):
        tool._client_factory = partial(_sending_once, tool._client_factory)
    if kind == "MCPToolWrapper":
        object.__setattr__(tool, "_retry_with_exponential_backoff", _tried_once)


def _sending_once(make: Callable[[], Any]) -> Any:
    client = make()
    client.max_retries = 1
    return client


class _NotHidden(BaseException):
    """Carries an exception through a tool that catches every `Exception`."""


async def _tried_once(operation: AsyncCall, **arguments: Any) -> Any:
    try:
        return await operation(**arguments)
    except Exception as error:
        raise _NotHidden from error


@contextmanager
def _not_hidden() -> Iterator[None]:
    try:
        yield
    except _NotHidden as carrier:
        error = carrier.__cause__
    else:
        return
    assert error
    raise error


def _no_cache(*_: Any) -> bool:
    return False


def keep_artifacts_in(folder: Path) -> None:
    """Choose the folder of results that CrewAI stores in files, in versions that do so: it ignores `TMPDIR`."""
    with suppress(ImportError):
        from crewai.utilities import tool_result_artifacts

        tool_result_artifacts._TOOL_RESULT_TEMP_DIR = folder


def name_artifacts(named: Callable[[int], str]) -> None:
    """Choose the ids of results that CrewAI stores in files, in versions that do so."""
    with suppress(ImportError):
        from crewai.utilities import tool_result_artifacts

        tool_result_artifacts.token_urlsafe = named  # type: ignore[attr-defined, assignment]
