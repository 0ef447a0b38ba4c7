"""All uses of CrewAI beyond its public API; other modules use only the public API.

`kickoff` and `resume` cannot pause a Flow without occupying a thread, keep several gates open, or continue after a
crash: CrewAI's own pause cancels the branches parallel to the gate and forgets which methods have finished.
docs/own-crew.md lists the CrewAI versions tested with this file; `make crewai-matrix` tests them again.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from crewai import Agent, Crew, CrewOutput, Task, TaskOutput
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.core.providers.human_input import SyncHumanInputProvider
from crewai.events import crewai_event_bus
from crewai.flow.async_feedback import PendingFeedbackContext
from crewai.flow.async_feedback.providers import ConsoleProvider
from crewai.flow.flow import Flow
from crewai.flow.human_feedback import HumanFeedbackResult, _serialize_llm_for_context
from crewai.flow.runtime import _iter_condition_events
from crewai.flow.types import FlowMethodName
from crewai.hooks import HookAborted, LLMCallHookContext, ToolCallHookContext
from crewai.llms.base_llm import BaseLLM
from crewai.memory import unified_memory
from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
from crewai.tools.base_tool import BaseTool, Tool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.utilities import agent_utils
from crewai.utilities.agent_utils import extract_tool_call_info, is_tool_call_list
from crewai.utilities.internal_instructor import InternalInstructor
from crewai.utilities.rpm_controller import RPMController
from crewai.utilities.string_utils import sanitize_tool_name
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from crew_service.crewai import step_events
from crew_service.crewai.errors import UnsupportedCrew

AsyncCall = Callable[..., Awaitable[Any]]
Memory = dict[str, Any]
FIRED = "_fired_or_listeners"  # listeners with or_() conditions: each fires only once
SETS = ("_completed_methods", FIRED)
COUNTS = ("_method_call_counts", "_method_execution_counts")
EVENTS = "_pending_events"  # partially met and_() conditions
OUTPUTS = "_method_outputs"
WRAPPER = "_crew_service_wrapper"
IN_USE = timedelta(hours=1)  # a version of the memory that another process may still read
VECTOR_STORE = "DEFAULT_STORAGE_PATH"
DUE: ContextVar[list[Callable[[], bool]] | None] = ContextVar("the limit that the next request must obey", default=None)
CALLED: ContextVar[tuple[Any, str, str] | None] = ContextVar("the tool called by its model's name for it", default=None)
_watchers: list[Watcher] = []
_recorders: list[Recorder] = []
AS_GIVEN = ("default", "examples", "enum", "const")  # values in a JSON Schema, not schemas
BLOCKED = "LLMCallBlockedError"  # raised when a hook refuses a call; not in every version
TOOL_FAILED = "ToolExecutionFailedError"  # not in every version
OF_TOOLS = ("exception", "tool_reported", "mcp_error")  # reasons in that error that are not the model's fault
ERROR = 400  # the lowest HTTP status code that means an error


class Watcher(Protocol):
    """Observes the model calls and events of this process synchronously, in the thread in which they occur."""

    def counting(self, model: BaseLLM, count: Callable[[], None]) -> None:
        """Run a model's own method for counting tokens."""

    def calling(self, model: Any, messages: Any) -> AbstractContextManager[Call]:
        """Wrap a model call; a call that also goes through the base class's method is wrapped twice."""

    def event(self, source: Any, event: Any) -> None:
        """Receive an event in the thread that emits it; handlers on the bus run later, in another thread."""


class Call(Protocol):
    answer: Any
    usage: Any  # the usage that the provider reported, if nothing else counts it
    used: dict[str, int]  # tokens, if counted


class Recorder(step_events.Answers, Protocol):
    """Answers calls from a journal and records the others; if a method returns None, the call is left alone."""

    def of_model(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None: ...
    def of_conversion(self, model: Any, content: str, expected: Any) -> RecordedCall | None: ...
    def of_tool(self, tool: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None: ...
    def of_recall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall | None: ...


class RecordedCall(Protocol):
    @property
    def is_answered(self) -> bool: ...
    def answer(self) -> Any: ...
    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def begin(self) -> None: ...
    def inside(self) -> AbstractContextManager[None]: ...
    def end(self, answer: Any, used: dict[str, int] | None = None) -> Any: ...


def watch_models(watcher: Watcher) -> None:
    """Let a watcher observe every current and future model class; it replaces any earlier watcher."""
    first = not _watchers
    _watchers[:] = [watcher]
    if not first:
        return
    models = {"_track_token_usage_internal": _counted, "call": _called, "acall": _called_async}
    _wrap_class(BaseLLM, models, BaseLLM)
    _wrap_classes_to_come(BaseLLM, models)
    convert = InternalInstructor.to_pydantic
    InternalInstructor.to_pydantic = wraps(convert)(_converted(convert))  # type: ignore[method-assign]
    emit = crewai_event_bus.emit

    def emitted(source: Any, event: Any) -> Any:
        _watchers[0].event(source, event)
        return emit(source, event)

    crewai_event_bus.emit = emitted  # type: ignore[method-assign]


def record_calls(recorder: Recorder) -> None:
    """Consult a recorder before every call to a tool or a watched model; it replaces any earlier recorder."""
    if not record_tool_calls(recorder):
        return
    _tell_namesakes_apart()
    emit = step_events.filtered(crewai_event_bus.emit, lambda: _recorders[0])
    crewai_event_bus.emit = emit  # type: ignore[method-assign, assignment]
    wait, recall = RPMController.check_or_wait, unified_memory.Memory.recall
    RPMController.check_or_wait = wraps(wait)(_deferred(wait))  # type: ignore[method-assign, assignment]
    unified_memory.Memory.recall = wraps(recall)(_recalled(recall))  # type: ignore[method-assign]


def record_tool_calls(recorder: Recorder) -> bool:
    """Consult a recorder before every call to a tool; return whether it is the first in this process."""
    first = not _recorders
    _recorders[:] = [recorder]
    if first:
        for name in ("run", "arun"):  # they call the function directly; without them, a tool behaves like its base
            if name in vars(Tool):
                delattr(Tool, name)
        record_tools()
        _wrap_classes_to_come(BaseTool, TOOLS)
    return first


def record_tools() -> None:
    """Record calls to every tool class, even if a decorator has since replaced a recorded method."""
    for kind in BaseTool.__subclasses__():
        _wrap_class(kind, TOOLS, BaseTool)


def _wrap_class(kind: Any, methods: Mapping[str, Callable[[Any], Any]], base: Any) -> None:
    """Wrap the methods of a class and its subclasses."""
    for name, wrapped in methods.items():
        owner = next((each for each in kind.__mro__ if name in vars(each)), None)
        if owner and (owner is kind or not issubclass(owner, base)):  # its own method, or a mixin's
            method = vars(owner)[name]
            if getattr(method, WRAPPER, None) is method:
                continue
            wrapper = wraps(method)(wrapped(method))
            setattr(wrapper, WRAPPER, wrapper)  # refers to itself, because other wrappers copy function attributes
            setattr(kind, name, wrapper)
    for other in kind.__subclasses__():
        _wrap_class(other, methods, base)


def _wrap_classes_to_come(base: Any, methods: Mapping[str, Callable[[Any], Any]]) -> None:
    declare = vars(base).get("__init_subclass__")

    def declared(kind: Any, /, **options: Any) -> None:
        if declare:
            declare.__func__(kind, **options)
        else:  # early versions of CrewAI do not define it
            super(base, kind).__init_subclass__(**options)
        _wrap_class(kind, methods, base)

    base.__init_subclass__ = classmethod(declared)


def _counted(count: Any) -> Callable[..., None]:
    def counted(model: BaseLLM, used: Any) -> None:
        _watchers[0].counting(model, lambda: count.__get__(model)(used))

    return counted


def _called(method: Any) -> Callable[..., Any]:
    def called(model: BaseLLM, *args: Any, **kwargs: Any) -> Any:
        recorded = _recorders[0].of_model(model, args, kwargs) if _recorders else None
        if recorded and recorded.is_answered:
            _keep_limit(is_made=False)
            return recorded.answer()
        _keep_limit(is_made=True)
        with _inside(recorded), _watchers[0].calling(model, _messages(args, kwargs)) as call:
            call.answer = method.__get__(model)(*args, **kwargs)
        return recorded.end(call.answer, call.used) if recorded else call.answer

    return called


def _called_async(method: Any) -> AsyncCall:
    async def called(model: BaseLLM, *args: Any, **kwargs: Any) -> Any:
        recorded = _recorders[0].of_model(model, args, kwargs) if _recorders else None
        if recorded and recorded.is_answered:
            _keep_limit(is_made=False)
            return recorded.answer()
        _keep_limit(is_made=True)
        with _inside(recorded), _watchers[0].calling(model, _messages(args, kwargs)) as call:
            call.answer = await method.__get__(model)(*args, **kwargs)
        return recorded.end(call.answer, call.used) if recorded else call.answer

    return called


def _inside(recorded: RecordedCall | None) -> AbstractContextManager[None]:
    return recorded.inside() if recorded else nullcontext()


def _run_recorded(method: Any, name: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):  # a coroutine function must remain one
        return _arun_recorded(method, name)

    def run(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
        performed = method.__get__(tool)
        recorded = _recorded_run(run, name, tool, args, kwargs)
        if recorded is None:
            return performed(*args, **kwargs)
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


def _deferred(wait: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Count a request towards the per-minute limit only when it is made: the journal may answer it instead."""

    def check_or_wait(limit: Any) -> bool:
        DUE.set([partial(wait, limit)])
        return True

    return check_or_wait


def _keep_limit(*, is_made: bool) -> None:
    if due := DUE.get():
        wait = due.pop()
        if is_made:
            wait()


def _recalled(recall: Callable[..., Any]) -> Callable[..., Any]:
    """Record memory lookups: the memory, and with it the prompt, may change before the task restarts."""

    def recalled(memory: unified_memory.Memory, *args: Any, **kwargs: Any) -> Any:
        recorded = _recorders[0].of_recall(args, kwargs)
        if recorded is None:
            return recall(memory, *args, **kwargs)
        if recorded.is_answered:
            return recorded.answer()
        recorded.begin()
        with recorded.inside():
            found = recall(memory, *args, **kwargs)
        return recorded.end(found)

    return recalled


TOOLS: dict[str, Callable[[Any], Any]] = {
    **{name: partial(_run_recorded, name=name) for name in ("_run", "run")},
    **{name: partial(_arun_recorded, name=name) for name in ("_arun", "arun")},
}


def _recorded_run(
    run: Any, name: str, tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> RecordedCall | None:
    """Return the recorder's call; None if the caller is an override in the tool's class, which records the call."""
    outer = getattr(type(tool), name, None)
    if not _recorders or (outer is not run and getattr(outer, WRAPPER, None) is outer):
        return None
    return _recorders[0].of_tool(tool, name, args, kwargs)


class NoRecorder:
    """A recorder that leaves all calls alone."""

    def of_model(self, *call: Any) -> None:
        return None

    def of_conversion(self, *call: Any) -> None:
        return None

    def of_tool(self, tool: Any, *call: Any) -> None:
        return None

    def of_recall(self, *call: Any) -> None:
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


def keep_knowledge_in(folder: str, *, is_required: bool) -> None:
    """Set the folder of the vector store, which CrewAI determined when it was imported."""
    for name in ("constants", "config"):
        module = sys.modules.get(f"crewai.rag.chromadb.{name}")
        if hasattr(module, VECTOR_STORE):
            setattr(module, VECTOR_STORE, folder)
        elif module and is_required:
            raise UnsupportedCrew(
                f"CrewAI {version('crewai')} stores knowledge in a way that this release does not know, so crews in "
                "one service would share it; run a service for each of them."
            )


def forget_memory(folder: Path, before: float) -> None:
    """Delete what was remembered in this folder before this time, and the files of what was deleted an hour ago."""
    from crewai.memory.storage.lancedb_storage import LanceDBStorage

    stored = LanceDBStorage(str(folder), compact_every=0)
    stored.delete(older_than=datetime.fromtimestamp(before, timezone.utc).replace(tzinfo=None))
    if stored._table is not None:
        stored._table.optimize(cleanup_older_than=IN_USE)


def locked_memory(folder: Path) -> AbstractContextManager[None]:
    """Return a lock that no process holds while it changes the memory in this folder."""
    try:
        from crewai_core.lock_store import lock
    except ImportError:  # an older CrewAI
        return nullcontext()
    return lock(f"lancedb:{folder.resolve()}")


def can_record() -> bool:
    """Try one tool of each kind, and return whether every kind of call in this CrewAI version reaches a recorder."""

    class Own(BaseTool):
        name: str = "own"
        description: str = "own"

        def _run(self) -> str:
            return ""

    count = _Count()
    try:
        record_calls(count)
        made: list[Any] = [Own(), Tool(name="made", description="made", func=lambda: "")]
        for each in made:
            each.run()
            each.to_structured_tool().invoke({})
    except Exception:  # any failure in an unknown version
        return False
    return count.calls == 2 * len(made)


def failed_tool(error: BaseException) -> str | None:
    """Return the name of the tool whose failure made CrewAI end a task, if the user enabled that."""
    record = getattr(error, "record", None) if type(error).__name__ == TOOL_FAILED else None
    reason = getattr(getattr(record, "failure", None), "reason", None)
    return sanitize_tool_name(record.tool_name) if record and reason in OF_TOOLS else None


def tool_name(tool: BaseTool | CrewStructuredTool) -> str:
    """Return the tool's name as shown to the model, unless its agent has several tools with that name."""
    return model_name(tool.name)


def model_name(name: str) -> str:
    """Return the name that a model is shown for a tool with this name."""
    return sanitize_tool_name(name)


def called_as(tool: BaseTool) -> tuple[str, str]:
    """Return the name by which a model calls the tool and, if its agent has others with its name, its description."""
    called = CALLED.get()
    return called[1:] if called and called[0] is tool else (tool_name(tool), "")


def _tell_namesakes_apart() -> None:
    """Remember by which name a model calls one of several tools with the same name: CrewAI numbers all but the first.

    CrewAI's modules import the function that does so by name.
    """
    convert = agent_utils.convert_tools_to_openai_schema

    @wraps(convert)
    def converted(tools: Any) -> Any:
        schemas, functions, by_name = convert(tools)
        count = Counter(map(tool_name, by_name.values()))
        for schema in (each["function"] for each in schemas):
            name, tool = schema["name"], by_name[schema["name"]]
            if count[tool_name(tool)] > 1:
                functions[name] = _called_as((tool, name, schema["description"] or name), functions[name])
        return schemas, functions, by_name

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(convert.__name__) is convert:
            setattr(module, convert.__name__, converted)


def _called_as(called: tuple[Any, str, str], run: Callable[..., Any]) -> Callable[..., Any]:
    def run_as(*args: Any, **kwargs: Any) -> Any:
        before = CALLED.set(called)
        try:
            return run(*args, **kwargs)
        finally:
            CALLED.reset(before)

    return run_as


def delegates(tool: BaseTool) -> bool:
    """Whether the tool only delegates work to another agent in the crew."""
    return isinstance(tool, BaseAgentTool)


def plain_tool_calls(answer: Any) -> list[dict[str, Any]]:
    """Return a model's tool calls as dicts, which CrewAI reads like the provider's own objects.

    :raises ValueError: if the answer is something else
    """
    if not (isinstance(answer, list) and is_tool_call_list(answer)):
        raise ValueError("the answer is not a list of tool calls")
    return [
        {"id": some_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for some_id, name, arguments in filter(None, map(extract_tool_call_info, answer))
    ]


def arguments_by_name(tool: BaseTool, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name; put those without a name in a list."""
    if not args:
        return kwargs
    function = getattr(tool, "func", None) or getattr(tool, method)
    try:
        named = dict(inspect.signature(function).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        named = {}
    return {**named, **kwargs} if named and not named.keys() & kwargs.keys() else {"arguments": [*args], **kwargs}


def validated(tool: BaseTool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the tool receives them.

    :raises ValueError: if the tool's schema rejects them or would drop some of them
    """
    if not tool.args_schema.model_fields:  # CrewAI passes any arguments to such a tool
        return arguments
    read = tool.args_schema.model_validate(arguments)
    taken: dict[str, Any] = read.model_dump()
    if dropped := _dropped(arguments, taken) and _dropped(arguments, read.model_dump(by_alias=True)):
        raise ValueError(f"it has no argument {dropped!r}")
    return taken


def arguments_schema(tool: BaseTool) -> dict[str, Any] | None:
    """Return the JSON Schema of a tool's arguments, which allows no others unless the tool does; None without one."""
    with suppress(PydanticUserError):
        schema: dict[str, Any] = tool.args_schema.model_json_schema()
        return _closed(schema) if tool.args_schema.model_fields else {}
    return None


def _closed(schema: Any) -> Any:
    """Refuse unknown fields, which pydantic drops by default."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: each if name in AS_GIVEN else _closed(each) for name, each in schema.items()}
    return {"additionalProperties": False, **closed} if isinstance(schema.get("properties"), dict) else closed


def check_arguments(schema: dict[str, Any], arguments: Any) -> None:
    """Check arguments by the schema of their tool.

    :raises ValueError: if the schema rejects them
    """
    problem = best_match(Draft202012Validator(schema).iter_errors(arguments))
    if problem is not None:
        raise ValueError(f"{'.'.join(map(str, problem.absolute_path)) or 'the arguments'}: {problem.message}")


def _dropped(given: Any, taken: Any) -> str | None:
    """Return the first field that a schema has dropped; by default, pydantic drops unknown fields."""
    if isinstance(given, list) and isinstance(taken, list):
        return next(filter(None, map(_dropped, given, taken)), None)
    if not (isinstance(given, dict) and isinstance(taken, dict)):
        return None
    parts = (name if name not in taken else _dropped(each, taken[name]) for name, each in given.items())
    return next(filter(None, parts), None)


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


def give_tool(tool: BaseTool) -> None:
    """Give this tool to every agent for all of its tasks."""
    execute, aexecute = Agent.execute_task, Agent.aexecute_task

    def with_tool(agent: Agent, tools: list[BaseTool] | None) -> list[BaseTool]:
        known = list(tools or agent.tools or [])
        return known if any(isinstance(each, type(tool)) for each in known) else [*known, tool]

    def executed(agent: Agent, task: Task, context: str | None = None, tools: list[BaseTool] | None = None) -> Any:
        return execute(agent, task, context, with_tool(agent, tools))

    async def aexecuted(
        agent: Agent, task: Task, context: str | None = None, tools: list[BaseTool] | None = None
    ) -> Any:
        return await aexecute(agent, task, context, with_tool(agent, tools))

    Agent.execute_task, Agent.aexecute_task = executed, aexecuted  # type: ignore[method-assign, assignment]


def name_artifacts(named: Callable[[int], str]) -> None:
    """Choose the ids of results that CrewAI stores in files, in versions that do so."""
    with suppress(ImportError):
        from crewai.utilities import tool_result_artifacts

        tool_result_artifacts.token_urlsafe = named  # type: ignore[attr-defined, assignment]


def _messages(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("messages")


def _converted(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Record conversions that CrewAI leaves to the provider's own client, bypassing the model's methods and counts."""

    def converted(instructor: InternalInstructor[Any]) -> Any:
        asked = instructor.llm, instructor.content, instructor.model
        recorded = _recorders[0].of_conversion(*asked) if _recorders else None
        if recorded and recorded.is_answered:
            return recorded.answer()
        with _inside(recorded), _watchers[0].calling(instructor.llm, None) as call:
            call.answer = convert(instructor)
            usage = getattr(getattr(call.answer, "_raw_response", None), "usage", None)
            call.usage = usage.model_dump() if isinstance(usage, BaseModel) else usage
        return recorded.end(call.answer, call.used) if recorded else call.answer

    return converted


def used_nothing(error: BaseException) -> bool:
    """Whether a failed call was rejected before a model answered."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        status = getattr(cause, "status_code", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int) and status >= ERROR:
            return True
        if isinstance(cause, ConnectionRefusedError | socket.gaierror | HookAborted) or type(cause).__name__ == BLOCKED:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def watch_roles(told: Callable[[str, str], None]) -> None:
    """Report each role with its inputs filled in, together with the declared role."""
    interpolate = BaseAgent.interpolate_inputs

    def interpolated(agent: BaseAgent, inputs: dict[str, Any]) -> None:
        interpolate(agent, inputs)
        told(agent.role, agent._original_role or agent.role)

    BaseAgent.interpolate_inputs = interpolated  # type: ignore[assignment]


def feedback_message(context: Any, feedback: str) -> Any:
    """Return a person's feedback as the message that CrewAI sends to an agent."""
    return context._format_feedback_message(feedback)


def definition(flow: Flow[Any]) -> Any:
    return flow._definition


def state_model(flow_class: type[Flow[Any]]) -> Any:
    """Return the model, instance or dict that initializes a Flow's state; None if the Flow does not define one."""
    declared = flow_class.model_fields["initial_state"].default
    return declared if declared is not None else getattr(flow_class, "_initial_state_t", None)


def stamp(flow: Flow[Any], state_id: str) -> None:
    """Set the state's id."""
    if isinstance(flow.state, dict):
        flow.state["id"] = state_id
    else:
        object.__setattr__(flow.state, "id", state_id)


def state(flow: Flow[Any]) -> Any:
    return flow._state


def set_state(flow: Flow[Any], state: Any) -> None:
    flow._state = state


def restore_state(flow: Flow[Any], state: dict[str, Any]) -> None:
    """Set a state that CrewAI dumped, which it does by field name, although it validates by alias."""
    if isinstance(flow._state, BaseModel):
        flow._state = type(flow._state).model_validate(state, by_alias=False, by_name=True)
    else:
        flow._restore_state(state)


def add_inputs_by_name(flow: Flow[Any]) -> None:
    """Let a kickoff add its inputs to the state that there is: CrewAI would lose fields that have an alias."""
    add = flow._initialize_state

    def added(inputs: dict[str, Any]) -> None:
        state = flow._state
        if not isinstance(state, BaseModel):
            add(inputs)
            return
        try:
            flow._state = type(state).model_validate({**state.model_dump(), **inputs}, by_alias=True, by_name=True)
        except ValidationError as error:
            raise ValueError(f"Invalid inputs for structured state: {error}") from error

    object.__setattr__(flow, "_initialize_state", added)


def replace(flow: Flow[Any], name: str, wrapped: Callable[[AsyncCall], AsyncCall]) -> None:
    """Wrap one of the instance's methods."""
    object.__setattr__(flow, name, wrapped(getattr(flow, name)))


def set_persistence(flow: Flow[Any], persistence: Any) -> None:
    """Set the persistence of an existing Flow; the backends named by `@persist` remain in use."""
    object.__setattr__(flow, "persistence", persistence)


def wait_at(flow: Flow[Any], gate: PendingFeedbackContext) -> None:
    """Make a fresh Flow wait at a gate."""
    flow._pending_feedback_context = gate
    flow._is_execution_resuming = True
    flow._flow_match_id = flow.flow_id


def gate(flow: Flow[Any], method: str, feedback: Any, output: Any) -> PendingFeedbackContext:
    """Describe a method's question as CrewAI describes it to a provider."""
    llm = feedback.llm
    return PendingFeedbackContext(
        flow_id=flow.flow_id,
        flow_class=f"{type(flow).__module__}.{type(flow).__name__}",
        method_name=method,
        method_output=output,
        message=feedback.message,
        emit=list(feedback.emit) if feedback.emit else None,
        default_outcome=feedback.default_outcome,
        metadata=feedback.metadata or {},
        llm=llm if llm is None or isinstance(llm, str | dict) else _serialize_llm_for_context(llm),
    )


def fired(flow: Flow[Any]) -> set[str]:
    return set(map(str, getattr(flow, FIRED)))


def started(flow: Flow[Any], method: str) -> bool:
    """Whether a method ran as a start method: CrewAI counts only listeners' calls."""
    return method in flow._start_method_names() and not flow._method_call_counts.get(FlowMethodName(method))


def rearm(flow: Flow[Any], outcome: str, fired: set[str]) -> None:
    """Let those of the fired listeners that listen to the outcome fire again."""
    flow._rearm_or_listeners_for_trigger(FlowMethodName(outcome), {FlowMethodName(name) for name in fired})


def rearm_way_back(flow: Flow[Any], event: str, gate: str) -> None:
    """Let each listener on a path from the event to the gate fire again."""
    methods = definition(flow).methods
    way = {name for name in fired(flow) & _before(methods, gate) if event in _awaited(methods, name)}
    getattr(flow, FIRED).difference_update(way)


async def start_again(flow: Flow[Any], outcome: str) -> None:
    """Run the methods with `@start(outcome)`, except those that have already run as listeners to the outcome."""
    for name in flow._start_method_names():
        triggered = flow._start_condition_triggered_by(name, FlowMethodName(outcome))
        if triggered and outcome not in _events(flow._listen_condition(name)):
            await flow._execute_start_method(name)


def _before(methods: dict[str, Any], method: str) -> set[str]:
    """Return the method and all methods that can lead to it."""
    found: set[str] = set()
    new = {method}
    while new:
        found |= new
        awaited = _of(methods, new)
        new = {name for name, each in methods.items() if _emits(name, each, awaited, methods)} - found
    return found


def _awaited(methods: dict[str, Any], method: str) -> set[str]:
    """Return the events that lead to the method."""
    return _of(methods, _before(methods, method))


def _of(methods: dict[str, Any], names: set[str]) -> set[str]:
    return {event for name in names for event in _events(methods[name].listen) | _events(methods[name].start)}


def _emits(name: str, method: Any, awaited: set[str], methods: dict[str, Any]) -> bool:
    """Whether the method may emit an awaited event; a router without declared outcomes may emit any."""
    asks = method.human_feedback
    declared = (asks.emit if asks else None) or method.emit
    outcomes = awaited - methods.keys() if method.router and not declared else set(declared or ())
    return name in awaited or bool(outcomes & awaited)


def _events(condition: Any) -> set[str]:
    return set(_iter_condition_events(condition)) if isinstance(condition, str | dict) else set()


def never_listening(definition: Any) -> list[str]:
    """List methods whose `@listen` or `@router` is ignored: in early CrewAI versions, start methods cannot listen."""
    some_flow: Any = SimpleNamespace(_definition=definition)
    listening = {str(name) for name, *_ in Flow._listener_methods(some_flow)}
    return [name for name, method in definition.methods.items() if method.listen is not None and name not in listening]


def question_in(flow: Flow[Any], method: str) -> PendingFeedbackContext:
    """Describe a question that a crew asks within a method."""
    return PendingFeedbackContext(
        flow_id=flow.flow_id, flow_class=type(flow).__name__, method_name=method, method_output=None, message=""
    )


def agents_of(crew: Crew) -> list[Any]:
    """Return each agent of a crew once, including the manager."""
    agents = [*crew.agents, *(task.agent for task in crew.tasks), crew.manager_agent]
    return list({id(agent): agent for agent in agents if agent}.values())


def crew_of(task: Task) -> Crew | None:
    crew = task.agent.crew if task.agent else None
    return crew if isinstance(crew, Crew) else None


def guardrails_of(task: Task) -> list[Callable[[TaskOutput], tuple[bool, Any]]]:
    single = [task._guardrail] if task._guardrail else []
    return [*task._guardrails, *single]


def wrap_crews(around: Callable[[Crew], AbstractContextManager[None]]) -> None:
    """Run all tasks of each crew in this process within `around`, after the crew has filled in its texts."""
    execute, aexecute = Crew._execute_tasks, Crew._aexecute_tasks

    def executed(crew: Crew, *args: Any, **kwargs: Any) -> CrewOutput:
        with around(crew):
            return execute(crew, *args, **kwargs)

    async def aexecuted(crew: Crew, *args: Any, **kwargs: Any) -> CrewOutput:
        with around(crew):
            return await aexecute(crew, *args, **kwargs)

    Crew._execute_tasks, Crew._aexecute_tasks = executed, aexecuted  # type: ignore[method-assign, assignment]


def wrap_tasks(
    around: Callable[[], AbstractContextManager[None]],
    settled: Callable[[Task], TaskOutput | None],
    done: Callable[[Task, TaskOutput], None],
) -> None:
    """Call `settled` before each task in this process, and `done` after each one that ran, both within `around`."""
    execute, aexecute = Task._execute_core, Task._aexecute_core

    def executed(task: Task, agent: Any, context: Any, tools: Any) -> TaskOutput:
        task.agent = agent or task.agent
        with around():
            if (earlier := settled(task)) is not None:
                return earlier
            output = execute(task, agent, context, tools)
            done(task, output)
        return output

    async def aexecuted(task: Task, agent: Any, context: Any, tools: Any) -> TaskOutput:
        task.agent = agent or task.agent
        with around():
            if (earlier := settled(task)) is not None:
                return earlier
            output = await aexecute(task, agent, context, tools)
            done(task, output)
        return output

    Task._execute_core, Task._aexecute_core = executed, aexecuted  # type: ignore[method-assign, assignment]


def before_tasks(check: Callable[[Any, list[Any]], None]) -> None:
    """Pass each task's agent and tools to `check` before the task runs."""
    execute, aexecute = Task._execute_core, Task._aexecute_core

    def executed(task: Task, agent: Any, context: Any, tools: Any) -> TaskOutput:
        check(agent or task.agent, tools or [])
        return execute(task, agent, context, tools)

    async def aexecuted(task: Task, agent: Any, context: Any, tools: Any) -> TaskOutput:
        check(agent or task.agent, tools or [])
        return await aexecute(task, agent, context, tools)

    Task._execute_core, Task._aexecute_core = executed, aexecuted  # type: ignore[method-assign, assignment]


def watch_failures(left: Callable[[Exception], None]) -> None:
    """Report each exception that ends a task, immediately and in the task's own context."""
    execute, aexecute = Task._execute_core, Task._aexecute_core

    @wraps(execute)
    def executed(task: Task, *args: Any, **kwargs: Any) -> TaskOutput:
        try:
            return execute(task, *args, **kwargs)
        except Exception as error:
            left(error)
            raise

    @wraps(aexecute)
    async def aexecuted(task: Task, *args: Any, **kwargs: Any) -> TaskOutput:
        try:
            return await aexecute(task, *args, **kwargs)
        except Exception as error:
            left(error)
            raise

    Task._execute_core, Task._aexecute_core = executed, aexecuted  # type: ignore[method-assign, assignment]


def let_interruptions_through() -> None:
    """Pass any exception that ended an `async_execution` task to its waiters; CrewAI passes on only an `Exception`."""
    execute = Task._execute_task_async

    def executed(task: Task, agent: Any, context: Any, tools: Any, future: Future[TaskOutput]) -> None:
        try:
            execute(task, agent, context, tools, future)
        except BaseException as error:
            future.set_exception(error)

    Task._execute_task_async = executed  # type: ignore[method-assign, assignment]


def refuse_terminal(refuse: Callable[..., Any]) -> None:
    """Call `refuse` wherever CrewAI would read from a terminal: it does not check whether there is one.

    A thread started by other code does not inherit the context's provider and uses CrewAI's own.
    """
    SyncHumanInputProvider.handle_feedback = refuse  # type: ignore[method-assign]
    SyncHumanInputProvider.handle_feedback_async = refuse  # type: ignore[method-assign]
    for context in (LLMCallHookContext, ToolCallHookContext):
        context.request_human_input = refuse  # type: ignore[method-assign]


def refuse_console(refuse: Callable[..., Any]) -> None:
    """Call `refuse` wherever a Flow would read from a terminal: without an answer, it would go on as if it had one."""
    ConsoleProvider.request_input = refuse  # type: ignore[method-assign]
    ConsoleProvider.request_feedback = refuse  # type: ignore[method-assign]


def watch_files(check: Callable[[str, str], None]) -> None:
    """Check each `output_file`, as declared and with inputs filled in, before any task of the crew runs."""
    interpolate = Task.interpolate_inputs_and_add_conversation_history

    def interpolated(task: Task, inputs: dict[str, Any]) -> None:
        interpolate(task, inputs)
        if task.output_file and task._original_output_file:
            check(task._original_output_file, task.output_file)

    Task.interpolate_inputs_and_add_conversation_history = interpolated  # type: ignore[method-assign, assignment]


def memory(flow: Flow[Any], keep: Callable[[Any, str], str]) -> Memory:
    """Return a Flow's internal data, except its state, as plain JSON.

    :param keep: encodes a method's result or an answer to it, given with the method's name
    """
    known: Memory = {name: sorted(map(str, getattr(flow, name))) for name in SETS}
    known |= {name: {str(method): count for method, count in getattr(flow, name).items()} for name in COUNTS}
    known[EVENTS] = {str(key): sorted(map(str, events)) for key, events in getattr(flow, EVENTS).items()}
    answers = flow.human_feedback_history
    known["answers"] = [keep(answer, answer.method_name) for answer in answers]
    known[OUTPUTS] = [_entry(entry, answers, keep) for entry in getattr(flow, OUTPUTS)]
    return known


def remember(flow: Flow[Any], known: Memory, decoded: Callable[[str], Any]) -> None:
    """Load the data that `memory` returned, now or in an earlier release, into a fresh Flow."""
    for name in (*SETS, *COUNTS):
        getattr(flow, name).update(known[name])
    getattr(flow, EVENTS).update({key: set(events) for key, events in known[EVENTS].items()})
    answers = [
        HumanFeedbackResult(**answer) if isinstance(answer, dict) else decoded(answer) for answer in known["answers"]
    ]
    flow.human_feedback_history.extend(answers)
    flow.last_human_feedback = answers[-1] if answers else None
    for kept in known[OUTPUTS]:
        answer = kept["answer"]
        output = decoded(kept["kept"]) if "kept" in kept else kept["output"]
        if kept.get("is_answer"):
            output = answers[answer]
        entry = {"method": kept["method"], "output": output}
        getattr(flow, OUTPUTS).append(entry if answer is None else {**entry, "human_feedback": answers[answer]})


def _entry(entry: Any, answers: list[HumanFeedbackResult], keep: Callable[[Any, str], str]) -> Memory:
    output, given = entry["output"], entry.get("human_feedback")
    place = next((place for place, answer in enumerate(answers) if answer is given), None)
    if place is not None and output is given:
        return {"method": entry["method"], "output": None, "answer": place, "is_answer": True}
    return {"method": entry["method"], "kept": keep(output, entry["method"]), "answer": place}
