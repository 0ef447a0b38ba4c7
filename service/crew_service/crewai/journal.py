"""Answers model and tool calls from the previous attempt's journal, and records all other calls.

A task whose process was killed restarts from its beginning. As long as it makes the same requests as before, its calls
get the recorded answers; calls without a recorded answer are executed. The key of a call consists of its task, the
review round, the calling tool or model, the request, and how often that request has been made.

The start of a tool call is stored before the tool runs. Every answer is sent to the service before the crew continues.
A tool with the rule `prepare` runs again before it is answered, in the recorded order, because later calls need its
effect in the process; until then, no tool that may run only once starts. What makes no call again, because it has
ended, has its calls made on its behalf (`prepared_calls`).
An agent's memory lookups are also recorded, because later prompts contain their results.
Calls outside any task, such as a crew planner's, are assigned to an additional task with an empty name. A call that
cannot be assigned to a task, such as one from a user's own thread while several tasks are running, is neither answered
from the journal nor recorded.

The start and end of each call are reported as a step, which people can see. This process measures the duration; the
service adds the timestamps.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel

from crew_service.crewai import answers, codec, prepared_calls, tool_arguments
from crew_service.crewai.ask_person import AskPerson
from crew_service.crewai.errors import Asked, Fatal, causes, told
from crew_service.crewai.flow_asks import AskForFlow
from crew_service.crewai.internals import crew_tasks, step_events, tool_calls
from crew_service.crewai.internals.wrapping import holding
from crew_service.crewai.prepared_calls import PreparedCall, Tools
from crew_service.engine import asks, tool_rules
from crew_service.engine.crew import (
    AskKind,
    JournalEntry,
    PendingQuestion,
    Progress,
    Report,
    Step,
    StepsReplayed,
    TaskDone,
    TaskOutput,
    TaskStarted,
)
from crew_service.engine.tool_rules import APPROVE, PREPARE, REPEAT, ToolRule, rule_of

log = logging.getLogger(__name__)

LONGEST_ANSWER = 8 * 1024 * 1024  # bytes
MOST = 64 * 1024 * 1024  # bytes per journal; once it is full, no more entries are recorded
CAME_BY = 10.0  # seconds to wait for calls that are made in parallel
OF_ENTRY = 512  # bytes counted for an entry in addition to its answer
REMEMBERED = 50  # newest exceptions to keep; one of them may end the crew
FROM_OUTSIDE = (TimeoutError, ConnectionError, MemoryError)  # not a sign that one of the crew's answers was rejected
NO_END = "it had started, and its end was not recorded"
UNREADABLE = "it ended, but its recorded result can no longer be read"
OF_NAMESAKE = "n"  # ends the keys of calls to tools that share their name with another of the agent's tools
OF_CALL = ("messages", "tools", "callbacks", "available_functions", "from_task", "from_agent", "response_model")


@dataclass(frozen=True)
class Scope:
    """The place of a call: a task and a part of it."""

    task: str = ""
    part: str = ""


@dataclass(frozen=True)
class Place:
    """The context of the calls that the running code makes."""

    within: str | None = None  # the key of the innermost tool call
    tool: Any = None
    method: str = ""
    model: str | None = None  # the key of the model call within it
    in_once: bool = False  # within a tool that may run only once, which a question elsewhere must not interrupt
    again: bool = False  # within a call that is made on behalf of a task, or a part of it, that has ended


SCOPE: ContextVar[Scope | None] = ContextVar("the running task, for its journal", default=None)
PLACE: ContextVar[Place | None] = ContextVar("the running call", default=None)
WORKER: ContextVar[str] = ContextVar("the role of the working agent", default="")  # a task may have several at once
OUTSIDE = Place()
_journals: list[Journal] = []  # a process runs one segment


class NotRun(Fatal):
    """A tool that may run only once was not run."""

    def __init__(self, name: str, arguments: str, reason: str) -> None:
        super().__init__(tool_rules.not_run(name, told(arguments), reason))


class NotPrepared(Fatal):
    """The effect of an earlier call, which later calls need, could not be repeated."""

    def __init__(self, name: str, arguments: str, reason: str) -> None:
        super().__init__(tool_rules.not_prepared(name, told(arguments), reason))


class NotDeclared(Fatal):
    """A Flow with tool rules called a tool that it does not declare, or a rule is for something that is no tool."""


class Service(Protocol):
    @property
    def is_mine(self) -> bool:
        """Whether this is the process connected to the service, rather than a forked copy."""
        ...

    def report(self, progress: Progress) -> None: ...


def start(
    entries: Iterable[JournalEntry],
    newest: int,
    rules: Iterable[ToolRule],
    service: Service,
    flow_tools: Collection[str] | None = None,
    done: Iterable[TaskOutput] = (),
) -> Report:
    """Answer and record the calls in this process from now on; return the function for reporting its progress.

    :param flow_tools: the only tools that may run; None for all
    :param done: the finished tasks
    """
    journal = Journal(entries, newest, rules, service, flow_tools, done)
    _journals[:] = [journal]
    tool_calls.record_calls(journal)
    tool_calls.name_artifacts(journal.artifact_id)
    return journal


def enter(task: str, part: str = "", tools: Tools = (), *, is_over: bool = False) -> None:
    """Assign subsequent calls in this context to a task; if it is empty, set the part for calls outside any task.

    :param tools: those by which calls that nobody else makes again can be made for their effect
    :param is_over: whether the part has ended, so that it makes none of its calls again
    """
    for journal in _journals:
        journal.enter(Scope(task, part))
        journal.make_again(Scope(task, part), list(tools), is_over=is_over)


@contextmanager
def going_back() -> Iterator[None]:
    """Restore the assignment after this block; a replay skips the block if a recorded call encloses it."""
    before = SCOPE.get()
    try:
        yield
    finally:
        SCOPE.set(before)


def enclosing() -> list[str]:
    """List the key of the enclosing tool call, if any: a replay of that call skips everything that it encloses."""
    within = _place().within
    return [within] if within else []


def is_replaying() -> bool:
    """Whether the newest call of the agent working here was answered from the journal."""
    return any(journal.is_replaying() for journal in _journals)


def question() -> PendingQuestion | None:
    """Return the question to a person, if any, after waiting for parallel tools, which end with this process."""
    return next((journal.question() for journal in _journals), None)


def keep_branches() -> None:
    """Let a question stop only its own task: each method of a Flow is a branch."""
    for journal in _journals:
        journal.keep_branches()


def stop_if_asked() -> None:
    """Raise the question of the task running here, if any: its code may have caught the exception earlier."""
    for journal in _journals:
        journal.stop_if_asked()


def runs_once(names: Collection[str]) -> bool:
    """Whether the tool with these names may run only once."""
    return any(journal.runs_once(names) for journal in _journals)


def tell() -> None:
    """Report the calls that the journal has answered since the last report."""
    for journal in _journals:
        journal.tell()


def note_outside(error: BaseException) -> None:
    """Record a failure in user code: it does not mean that one of the crew's answers was rejected."""
    for journal in _journals:
        journal.note_failed(error)


def works(agent: Any) -> AbstractContextManager[None]:
    """Attribute the calls made within this block to an agent."""
    return holding(WORKER, crew_tasks.role_of(agent))


def note_left(error: Exception) -> None:
    """Record that an exception ended the task running here."""
    for journal in _journals:
        journal.note_left(error)


def blame(error: BaseException) -> tuple[str | None, list[int]]:
    """Return the task that failed because of its own answer, if any, and the numbers of the tool calls that failed.

    :param error: the exception that ended the crew
    """
    return next((journal.blame(error) for journal in _journals), (None, []))


class Journal:
    def __init__(
        self,
        entries: Iterable[JournalEntry],
        newest: int,
        rules: Iterable[ToolRule],
        service: Service,
        flow_tools: Collection[str] | None = None,
        done: Iterable[TaskOutput] = (),
    ) -> None:
        self._service = service
        self._newest = newest
        self._rules = tuple(rules)
        self._flow_tools = flow_tools
        self._lock = threading.RLock()
        self._taken = threading.Condition(self._lock)
        self._entered: dict[str, set[str]] = {}  # by task: the nested tasks that began or were settled
        self._cancelled: dict[str, set[str]] = {}  # by task: the run-once tools cancelled while running
        self._earlier: dict[str, dict[str, JournalEntry]] = {}  # by task and key; excludes calls made again
        self._within: dict[str, str | None] = {}  # by the key of a recorded call: the call that made it
        self._unprepared: dict[str, dict[str, JournalEntry]] = {}  # by task and key: calls whose effect is missing
        self._of_finished = deque(prepared_calls.of_finished(done))  # likewise, of tasks that have ended
        self._prepared: dict[
            str, dict[int, tuple[JournalEntry, PreparedCall]]
        ] = {}  # by task and number: all such calls
        self._sizes: Counter[str] = Counter()  # by task
        self._counts: dict[str, Counter[str]] = {}  # by task: how often each request was made
        self._failed: dict[str, dict[str, list[int]]] = {}  # by task: the counts that failed model calls have freed
        self._running: dict[str, Scope] = {}
        self._at_work = 0  # running tools
        self._unrecorded: set[str] = set()  # tasks with an answer that cannot be stored
        self._answered: dict[str, set[str]] = {}  # by task: the keys of calls whose answers are stored
        self._asked: Asked | None = None
        self._stopped: set[str] = set()  # the tasks that a question has stopped
        self._has_branches = False
        self._outside = Scope()
        self._over: set[str] = set()
        self._replaying: dict[str, dict[tuple[str, str], bool]] = {}  # by task, and part and agent
        self._replayed: list[int] = []
        self._agents: dict[str, str] = {}  # by task: the agent or Flow that it began with
        self._failed_calls: deque[tuple[BaseException, JournalEntry | None]] = deque(maxlen=REMEMBERED)
        self._used_tools: dict[str, int] = {}  # by name: the newest call
        self._left: deque[tuple[BaseException, str]] = deque(maxlen=REMEMBERED)  # with the tasks that they ended
        self._finished: dict[str, set[str]] = {}  # by task: the keys of finished tool calls under no rule
        for entry in entries:
            if entry.answer is not None and entry.kind == "tool" and not entry.once:
                self._note_finished(entry, (entry.name,))
            self._earlier.setdefault(entry.task_id, {})[entry.key] = entry
            self._within[entry.key] = entry.within
            if entry.answer is not None and entry.kind == "tool" and self._prepares(entry, (entry.name,)):
                self._unprepared.setdefault(entry.task_id, {})[entry.key] = entry
                self.note_call(entry, prepared_calls.call_in(entry.answer, entry.task_id, entry.name))
            self._sizes[entry.task_id] += OF_ENTRY + len(entry.answer or "")

    def __call__(self, progress: Progress) -> None:
        if isinstance(progress, TaskDone):
            self._raise_if_stopped(progress.task["task_id"])  # the crew's code turned the question into an answer
            progress = replace(progress, task=self._with_calls(progress.task))
        self._service.report(progress)
        if isinstance(progress, TaskStarted):
            self._agents[progress.task_id] = progress.agent
        if isinstance(progress, TaskDone):
            self._forget(progress.task["task_id"])

    def enter(self, scope: Scope) -> None:
        if not scope.task:
            self._outside = scope
            return
        with self._taken:
            self._running[scope.task] = scope
            self._over.discard(scope.task)
            self._entered.setdefault(scope.task, set()).add(_nested(scope.part))
            self._taken.notify_all()
        SCOPE.set(scope)

    def is_replaying(self) -> bool:
        scope = self._scope()
        return scope is not None and self._replaying.get(scope.task, {}).get((scope.part, WORKER.get()), False)

    def has_answer(self, tool: str) -> bool:
        return any(entry.kind == "tool" and entry.name == tool for entry in self._answers())

    def has_model_answer(self) -> bool:
        """Whether a model's answer is recorded for the running task."""
        return any(entry.kind == "model" for entry in self._answers())

    def _answers(self) -> list[JournalEntry]:
        scope = self._scope()
        with self._lock:
            known = self._earlier.get(scope.task, {}) if scope else {}
            return [entry for entry in known.values() if entry.answer is not None]

    def tell(self) -> None:
        with self._lock:
            numbers, self._replayed = self._replayed, []
        if numbers:
            self._service.report(StepsReplayed(numbers))

    def of_model(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Return a model's call; None if it is part of another model call."""
        arguments = {**dict(zip(OF_CALL, args, strict=False)), **kwargs}
        expected, messages = _expected(arguments.get("response_model")), arguments.get("messages")
        call = self._of_model(model, (messages, arguments.get("tools"), expected), expected)
        if not (call and call.is_answered):
            self._check_functions(arguments.get("available_functions") or {})
        if call:
            call.asked = messages[-1] if isinstance(messages, list) and messages else messages
            call.agent = crew_tasks.role_of(arguments.get("from_agent")) or call.agent
        return call

    def of_conversion(self, model: Any, content: str, expected: Any) -> Call | None:
        """Return the call for a conversion that CrewAI leaves to the provider's own client."""
        call = self._of_model(model, (content, "instructor", expected), _expected(expected))
        if call:
            call.asked = content
        return call

    def _of_model(self, model: Any, request: tuple[Any, ...], expected: type[BaseModel] | None) -> Call | None:
        place = _place()
        if place.model or place.again:
            return None
        self.stop_if_asked()
        name = model if isinstance(model, str) else str(getattr(model, "model", None) or "")
        call = self._call("model", name, answers.prompt_as_text((name, *request)), expected)
        if call:
            call.inner = replace(place, model=call.entry.key)
            call.announce(step_events.PLAN)
        return call

    def of_tool(self, tool: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Return a tool's call; None if the tool itself makes it from its other method."""
        place = _place()
        if place.tool is tool and place.method != method:
            return None
        self.stop_if_asked()
        name, about = tool_calls.called_as(tool)
        arguments = tool_arguments.arguments_by_name(tool, method, args, kwargs)
        request = answers.as_text((name, args, kwargs, *([about] if about else ())))
        names = (*tool_calls.names_of(tool.name), name)
        if place.again:
            if rule_of(self._rules, names) in tool_rules.RUN_ONCE:
                raise NotRun(name, answers.as_text(arguments), tool_rules.CALLED_AGAIN)
            return None
        if problem := tool_rules.conflict(self._rules, names):
            raise NotRun(name, answers.as_text(arguments), problem.rstrip("."))
        delegates = tool_calls.delegates(tool)
        call = self._call("tool", name, request, mark=OF_NAMESAKE if about else "", names=names, delegates=delegates)
        if not (call and call.is_answered) and self._is_undeclared(tool, names):
            raise NotDeclared(tool_rules.not_declared(name))
        was_once = call is not None and call.entry.once  # by a rule that may have been removed since
        rule = APPROVE if isinstance(tool, AskPerson) else rule_of(self._rules, names)
        if was_once or rule in tool_rules.RUN_ONCE:
            text = answers.as_text(arguments)
            if call is None:
                raise NotRun(name, text, "it was called in a thread or process where its task is not known")
            # Delegation has no effect of its own; the calls that it leads to have their own rules.
            call.once = "" if delegates else text
            call.entry = replace(call.entry, once=True)
            tool_calls.send_once(tool)
        if call:
            call.asked = arguments
            call.tool, call.about = tool, about
            call.inner = Place(call.entry.key, tool, method, in_once=place.in_once or bool(call.once))
            if call.entry.prepare:
                encoded = prepared_calls.arguments(args, kwargs)
                call.to_repeat = PreparedCall(call.entry.task_id, call.agent, call.entry.name, method, encoded)
            if rule == APPROVE:
                call.ask = asks.QUESTION if isinstance(tool, AskPerson) else asks.TOOL
                tool_calls.never_cache(tool)
            call.text_of = tool_calls.reader_of(tool)
            if call.is_answered:
                self.note_finished(call)
            call.announce(name)
        return call

    def _note_finished(self, entry: JournalEntry, names: Iterable[str]) -> None:
        """Count a finished tool call unless it has a rule; the tool's own name is known only when it is called."""
        known = self._finished.setdefault(entry.task_id, set())
        if entry.name in step_events.OF_MEMORY or tool_rules.has_rule(self._rules, names):
            known.discard(entry.key)
        else:
            known.add(entry.key)

    def note_finished(self, call: Call) -> None:
        if call.tool is not None and not (call.ask or tool_calls.delegates(call.tool)):
            with self._lock:
                self._note_finished(call.entry, (*tool_calls.names_of(call.tool.name), call.entry.name))

    def runs_once(self, names: Collection[str]) -> bool:
        return rule_of(self._rules, names) in tool_rules.RUN_ONCE

    def earlier_calls(self, task: str) -> int:
        with self._lock:
            return len(self._finished.get(task, ()))

    def _prepares(self, earlier: JournalEntry | None, names: Iterable[str]) -> bool:
        """Whether a call is made again for its effect; its mark counts if its rule was removed meanwhile."""
        rule = rule_of(self._rules, names)
        return rule == PREPARE or (rule == REPEAT and earlier is not None and bool(earlier.prepare))

    def await_prepared(self, entry: JournalEntry, text: str) -> None:
        """Wait until the effects of all earlier calls in the task are there: parallel calls may come a moment later.

        :raises NotRun: if one of them is not made again
        """
        around = set(self._around(entry))

        def missing() -> JournalEntry | None:
            known = self._unprepared.get(entry.task_id, {}).values()
            return next((each for each in known if each.number < entry.number and each.key not in around), None)

        reason = ""
        with self._taken:
            if self._of_finished:
                reason = tool_rules.NOT_AGAIN.format(self._of_finished[0].name, self._of_finished[0].task)
            elif not self._taken.wait_for(lambda: missing() is None, CAME_BY) and (lost := missing()):
                reason = f"the call of {lost.name} that prepared for it was not made again in this task's new process"
        if reason:
            raise NotRun(entry.name, text, reason)

    def note_call(self, entry: JournalEntry, call: PreparedCall) -> None:
        with self._lock:
            self._prepared.setdefault(entry.task_id, {})[entry.number] = entry, call

    def _with_calls(self, output: TaskOutput) -> TaskOutput:
        """Return a task's output with its calls that later processes must make again."""
        with self._lock:
            known = self._prepared.get(output["task_id"], {})
            calls = [call for _, (entry, call) in sorted(known.items()) if self._is_outermost(entry, known)]
        with_calls: TaskOutput = prepared_calls.with_calls(output, calls)
        return with_calls

    def _is_outermost(self, entry: JournalEntry, known: dict[int, tuple[JournalEntry, PreparedCall]]) -> bool:
        """Whether no other of these calls encloses a call, and so makes it."""
        keys = {each.key for each, _ in known.values()} - {entry.key}
        return keys.isdisjoint(self._around(entry))

    def make_again(self, scope: Scope, tools: list[tuple[str, Any]], *, is_over: bool) -> None:
        """Make the calls whose effect is missing and that nothing else makes again, as far as their tools are here.

        Those are calls of finished tasks, and of earlier rounds of this one or, if it is over, of all.
        """
        if not scope.task:
            return
        while self._of_finished and (tool := self._of_finished[0].tool(tools)):
            self._make(self._of_finished[0], tool)
            self._of_finished.popleft()
        with self._lock:
            missing = self._unprepared.get(scope.task, {})
            known = self._prepared.get(scope.task, {})
            left = [
                (entry, call)
                for _, (entry, call) in sorted(known.items())
                if entry.key in missing
                and _own_part(entry.part) == _own_part(scope.part)
                and (is_over or entry.part != scope.part)
                and self._is_outermost(entry, known)
            ]
        for entry, call in left:
            if tool := call.tool(tools):
                self._make(call, tool)
                self.note_prepared(entry)

    def _make(self, call: PreparedCall, tool: Any) -> None:
        before = PLACE.set(Place(tool=tool, again=True))
        difference = None if not call.has_raised else "did not raise as before"
        try:
            with self.working():
                call.make(tool)
        except Exception as error:
            difference = None if call.has_raised else f"raised {type(error).__name__}: {codec.text_of(error)}"
        finally:
            PLACE.reset(before)
        if difference:
            raise NotPrepared(call.name, call.shown, difference)

    def _around(self, entry: JournalEntry) -> Iterator[str]:
        """Yield the keys of a recorded call and of the calls that enclose it."""
        key: str | None = entry.key
        while key:
            yield key
            key = self._within.get(key, entry.within if key == entry.key else None)

    def note_prepared(self, entry: JournalEntry) -> None:
        with self._taken:
            self._drop_within(entry.task_id, entry.key)
            known = self._unprepared.get(entry.task_id, {})
            for key in [each.key for each in known.values() if entry.key in self._around(each)]:
                del known[key]
            self._taken.notify_all()

    def _has_unprepared_within(self, task: str, key: str) -> bool:
        return any(key in self._around(each) for each in self._unprepared.get(task, {}).values() if each.key != key)

    def _is_undeclared(self, tool: Any, names: Iterable[str]) -> bool:
        """Whether a Flow with rules has not declared the tool: a rule may be meant for it, under another name."""
        if self._flow_tools is None or isinstance(tool, AskPerson) or tool_calls.delegates(tool):
            return False
        return not any(name in self._flow_tools for name in names)

    def _check_functions(self, functions: dict[str, Any]) -> None:
        """Refuse a model call that may run a function of the user's, unless that function has no rule.

        The model's class runs it, where no call is recorded; a tool's method is recorded.
        """
        for name in (name for name, function in functions.items() if not tool_calls.is_recorded(function)):
            if self._flow_tools is not None and name not in self._flow_tools:
                raise NotDeclared(tool_rules.not_declared(name))
            if rule_of(self._rules, tool_calls.names_of(name)) != REPEAT:
                raise NotDeclared(tool_rules.is_no_tool(name))

    def of_memory(self, step: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Return the call for what an agent looks up or stores in its memory; if it did not end, it is repeated."""
        if _place().again:
            return None
        call = self._call("tool", step, answers.as_text((args, kwargs)), is_read=True)
        if call:
            call.asked = kwargs or args
            call.inner = Place(call.entry.key)
            call.announce(step)
        return call

    def _call(
        self,
        kind: Any,
        name: str,
        request: str,
        expected: type[BaseModel] | None = None,
        *,
        is_read: bool = False,
        mark: str = "",
        names: Iterable[str] = (),
        delegates: bool = False,
    ) -> Call | None:
        if not self._service.is_mine or (scope := self._scope()) is None:
            return None
        place = _place()
        within = place.model or place.within  # a model may run tools itself
        digest = _digest(kind, scope.task, scope.part, within or "", request)
        with self._lock:
            key = f"{digest}:{self._count(scope.task, digest)}{mark}"
            earlier = self._take(scope.task, key)
            is_decided = asks.is_decided(earlier)
            answer = [asks.result_of(earlier)] if earlier and is_decided else _read(earlier, expected)
            prepares = bool(names) and self._prepares(earlier, names)
            if delegates and self._has_unprepared_within(scope.task, key):
                answer = None  # it has no effect of its own, and leads to the calls that have
            if answer is not None and not prepares:
                self._drop_within(scope.task, key)
            has_effect = kind == "tool" and not is_read
            if answer is None and not has_effect:
                earlier = None
            self._newest += earlier is None
            number = earlier.number if earlier else self._newest
            if has_effect:
                self._used_tools[name] = number
            is_replayed = answer is not None and not is_decided
            if name != step_events.REMEMBER:  # which runs beside the task, so that live calls may have begun
                self._replaying.setdefault(scope.task, {})[scope.part, WORKER.get()] = is_replayed
            if is_replayed:
                self._replayed.append(number)
        if answer is None or is_decided:
            self.tell()
        once = earlier.once if earlier else None
        entry = JournalEntry(
            number, scope.task, scope.part, kind, key, name, within, once=once, prepare=prepares or None
        )
        agent = WORKER.get() or self._agents.get(scope.task, "")
        return Call(self, entry, answer, expected, earlier, has_effect=has_effect, agent=agent)

    def _count(self, task: str, digest: str) -> int:
        """Return how often this request has been made, not counting failed model calls."""
        if free := self._failed.get(task, {}).get(digest):
            return free.pop()
        counts = self._counts.setdefault(task, Counter())
        counts[digest] += 1
        return counts[digest]

    def ask_again(self, entry: JournalEntry) -> None:
        """Let the next call with this request replace a failed one."""
        digest, _, count = entry.key.partition(":")
        with self._lock:
            self._failed.setdefault(entry.task_id, {}).setdefault(digest, []).append(int(count))

    def check_once(self, call: Call) -> None:
        """Ask a person about a call to a run-once tool if the outcome of an earlier call is unknown."""
        entry = call.entry
        with self._taken:
            known = self._earlier.get(entry.task_id, {})
            if call.earlier:
                raise call.asks(asks.UNKNOWN, NO_END if call.earlier.answer is None else UNREADABLE)
            # Parallel calls may come a moment later.
            if not self._taken.wait_for(lambda: not self._has(known, call), CAME_BY):
                raise call.asks(asks.UNKNOWN, "the crew has not repeated an earlier call to it")
            if entry.name in self._cancelled.get(entry.task_id, ()):
                raise call.asks(asks.UNKNOWN, "an earlier call to it was cancelled")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a tool as running within this block."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._taken:
                self._at_work -= 1
                self._taken.notify_all()

    def ask(self, question: PendingQuestion) -> Asked:
        """Return the exception to raise; if several calls ask at once, the first one wins."""
        with self._lock:
            self._asked = self._asked or Asked(question)
            self._stopped.add(question.entry.task_id)
        return self._asked

    def question(self) -> PendingQuestion | None:
        if self._asked is None:
            return None
        with self._taken:
            self._taken.wait_for(lambda: not self._at_work)
        return self._asked.question

    def keep_branches(self) -> None:
        self._has_branches = True

    def stop_if_asked(self) -> None:
        """Once a person is asked, raise the question instead of starting a call, except within a run-once tool.

        A Flow's other branches continue; a crew's parallel tasks cannot, because their threads end with this process.
        Work that a finished tool or task left running also continues, because nothing would start it again.
        """
        if self._asked is None or _place().in_once or self._is_left_over():
            return
        scope = self._scope()
        task = scope.task if scope else ""
        if not self._has_branches:
            self._stopped.add(task)
        self._raise_if_stopped(task)

    def _is_left_over(self) -> bool:
        scope = SCOPE.get()
        place = _place()
        keys = {place.model, place.within}
        return any(not keys.isdisjoint(known) for known in list(self._answered.values())) or (
            scope is not None and scope.task in self._over
        )

    def _raise_if_stopped(self, task: str) -> None:
        if self._asked and self._stopped & {task, ""}:
            raise self._asked

    def note_failed(self, error: BaseException, entry: JournalEntry | None = None) -> None:
        self._failed_calls.append((error, entry))

    def note_left(self, error: Exception) -> None:
        if scope := self._scope():
            self._left.append((error, scope.task))

    def blame(self, error: BaseException) -> tuple[str | None, list[int]]:
        behind = list(causes(error))
        tools = set(filter(None, map(tool_calls.failed_tool, behind)))
        failed = [
            entry
            for each, entry in list(self._failed_calls)
            if any(each is cause for cause in behind) or (entry and entry.name in tools)
        ]
        if failed or tools or any(isinstance(each, FROM_OUTSIDE) for each in behind):
            numbers = {entry.number for entry in failed if entry and entry.kind == "tool"}
            return None, sorted(numbers | {self._used_tools[name] for name in tools & self._used_tools.keys()})
        left = (task for each, task in list(self._left) if any(each is cause for cause in behind))
        return next(left, None), []

    def _has(self, known: dict[str, JournalEntry], call: Call) -> bool:
        """Whether an earlier call to the same tool was recorded and has not been made again.

        A nested task whose texts have changed never begins again under its earlier name. A recorded call to one of
        several tools with this name may have been to any of them: their order may have changed.
        """
        entry = call.entry
        entered = self._entered.get(entry.task_id, set())
        own = tool_calls.tool_name(call.tool)
        same = (
            each
            for each in known.values()
            if each.name in (entry.name, own)
            or (each.key.endswith(OF_NAMESAKE) and each.name.rpartition("_")[0] == own)
        )
        parts = (each.part for each in same if asks.may_have_run(each))
        return any(part == entry.part or ("/" in part and _nested(part) not in entered) for part in parts)

    def note_answered(self, entry: JournalEntry) -> None:
        self._answered.setdefault(entry.task_id, set()).add(entry.key)

    def note_unrecorded(self, entry: JournalEntry, answer: Any) -> None:
        """Log once per task that an answer cannot be stored."""
        with self._lock:
            if entry.task_id in self._unrecorded:
                return
            self._unrecorded.add(entry.task_id)
        kind = type(answer[0] if isinstance(answer, list) and answer else answer)
        log.warning(
            "in the task '%s', answers of the %s %s, of the class %s.%s, cannot be recorded: "
            "if this process is killed or a person is asked, the call is made again and, for a model, paid for again",
            *(entry.task_id, entry.kind, entry.name, kind.__module__, kind.__qualname__),
        )

    def note_cancelled(self, entry: JournalEntry) -> None:
        with self._lock:
            self._cancelled.setdefault(entry.task_id, set()).add(entry.name)

    def _take(self, task: str, key: str) -> JournalEntry | None:
        """Remove and return a call recorded by the last attempt."""
        entry = self._earlier.get(task, {}).pop(key, None)
        self._taken.notify_all()
        return entry

    def _drop_within(self, task: str, key: str) -> None:
        """Drop the calls that an answered call encloses: they will not be made again."""
        known = self._earlier.get(task, {})
        for inner in [each.key for each in known.values() if each.within == key]:
            known.pop(inner)
            self._drop_within(task, inner)

    def write(self, step: Step) -> bool:
        """Report a step; return whether the journal keeps it: not if it is full, or the step's task is over."""
        size = OF_ENTRY + len(step.answer or "")
        with self._lock:
            has_room = size <= LONGEST_ANSWER and self._sizes.total() + size <= MOST
            is_kept = step.is_kept and has_room and step.task_id not in self._over
            self._sizes[step.task_id] += size if is_kept else 0
        if not is_kept:
            step = replace(step, is_kept=False, answer=None, is_awaited=False)
        self._service.report(step)
        return is_kept

    def artifact_id(self, size: int) -> str:
        """Name a result that CrewAI stores in a file as in the last attempt: a recorded answer may contain the name."""
        scope = self._scope() or self._outside
        with self._lock:
            counts = self._counts.setdefault(scope.task, Counter())
            counts["artifact"] += 1
            return _digest("artifact", scope.task, scope.part, _place().within or "", str(counts["artifact"]))

    def _scope(self) -> Scope | None:
        """Return the scope to which a call made here belongs; None if it is unknown."""
        scope = SCOPE.get()
        with self._lock:
            if scope and scope.task not in self._over:
                return scope
            if scope or not self._running:
                return self._outside
            return next(iter(self._running.values())) if len(self._running) == 1 else None

    def _forget(self, task: str) -> None:
        with self._lock:
            self._over.add(task)
            of_calls = (self._earlier, self._counts, self._failed, self._sizes, self._unprepared, self._prepared)
            since_begun = (self._finished, self._cancelled, self._answered)
            for entries in (*of_calls, *since_begun, self._running, self._replaying, self._agents, self._entered):
                entries.pop(task, None)


@dataclass
class Call:
    """One call: answered from the journal, or executed within `inside` and recorded when it ends."""

    journal: Journal
    entry: JournalEntry
    found: list[Any] | None  # the last attempt's answer
    expected: type[BaseModel] | None
    earlier: JournalEntry | None  # from the last attempt
    has_effect: bool  # without one, the call is repeated if it failed or did not end
    agent: str = ""
    ask: AskKind | None = None  # what to ask a person before it runs
    tool: Any = None
    about: str = ""  # the tool's description, if its agent has several tools with its name
    asked: Any = None  # the request as shown to people
    inner: Place = OUTSIDE
    text_of: Callable[[Any], str] | None = None  # for a tool: converts an object to the text its agent reads
    once: str = ""  # for a tool that may run only once: its arguments
    to_repeat: PreparedCall | None = None  # what later processes make again, if its tool has the rule `prepare`
    is_recorded: bool = True
    began: float = 0.0

    @property
    def is_answered(self) -> bool:
        return self.found is not None

    @property
    def is_decided(self) -> bool:
        """Whether a person has decided that the call does not run; it then gets its answer from that decision."""
        return asks.is_decided(self.earlier)

    @property
    def is_prepared(self) -> bool:
        """Whether the call is answered from the journal, but is made again first, for its effect."""
        return self.is_answered and not self.is_decided and bool(self.entry.prepare)

    def announce(self, step: str) -> None:
        """Emit the call's start event, if held back, unless listeners already received it in the last attempt."""
        is_replayed = self.is_answered and not self.is_decided
        (step_events.is_answered if is_replayed else step_events.runs)(step)

    def answer(self) -> Any:
        """Return the last attempt's answer, or raise its exception."""
        assert self.found
        if self.is_decided:
            fields = {"arguments": answers.told(self._arguments()), "is_kept": False}
            self.journal.write(self._step(**fields))
            self.end(self.found[0])
        if isinstance(self.found[0], codec.Raised):
            self.journal.note_failed(self.found[0].error, self.entry)
            raise self.found[0].error
        return self.found[0]

    def prepare(self) -> None:
        """Wait for the calls that were made before this one."""
        self.journal.await_prepared(self.entry, answers.as_text(self.asked))

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Wrap the call that is made again; it must raise if it raised before, and only then."""
        assert self.found
        before = PLACE.set(self.inner)
        has_raised, difference = isinstance(self.found[0], codec.Raised), "did not raise as before"
        raised = False
        try:
            with self.journal.working():
                yield
        except Exception as error:
            raised, difference = True, f"raised {type(error).__name__}: {codec.text_of(error)}"
        finally:
            PLACE.reset(before)
        if raised != has_raised:
            raise NotPrepared(self.entry.name, answers.as_text(self.asked), difference)
        self.journal.note_prepared(self.entry)

    def begin(self) -> None:
        """Report the start; for a tool call, wait until it is stored, unless the last attempt stored it."""
        self.began = time.monotonic()
        if self.once:
            self.journal.await_prepared(self.entry, self.once)
        is_allowed = asks.is_allowed(self.earlier)
        if not is_allowed:
            if self.ask == asks.QUESTION:
                raise self.asks(self.ask, self._arguments()["question"])
            if self.once:
                self.journal.check_once(self)
            if self.ask and not self.earlier:
                raise self.asks(self.ask)
        is_new = self.has_effect and (is_allowed or not self.earlier)
        changed = asks.arguments_of(self.earlier)
        is_written = self.journal.write(
            self._step(
                arguments=answers.told(self.asked if changed is None else changed),
                decision={"arguments": changed} if is_allowed and changed is not None else None,
                is_kept=is_new,
                is_awaited=is_new,
                is_approved=is_allowed,
            )
        )
        self.is_recorded = is_written or not is_new
        if self.once and not self.is_recorded:
            raise NotRun(self.entry.name, self.once, "the journal of this execution is full")

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the tool's arguments, or a person's replacements for them, if any."""
        changed = asks.arguments_of(self.earlier) if asks.is_allowed(self.earlier) else None
        if changed is None:
            return args, kwargs
        try:
            return (), tool_arguments.validated(self.tool, changed)
        except ValueError as problem:
            raise NotRun(self.entry.name, self.once, f"it does not accept the changed arguments: {problem}") from None

    def asks(self, kind: AskKind, text: str = "") -> Asked:
        """Return the exception that stops the crew until a person has decided."""
        arguments = None if kind == asks.QUESTION else self._arguments()
        of_flow = self.tool.terms if isinstance(self.tool, AskForFlow) else None
        state = {
            "tool": tool_calls.tool_name(self.tool),
            "schema": codec.shown(tool_arguments.arguments_schema(self.tool)),
        }
        return self.journal.ask(
            PendingQuestion(
                kind,
                self.entry,
                "" if of_flow else self.agent,
                arguments,
                text,
                self.once,
                state,
                self.about,
                self.journal.earlier_calls(self.entry.task_id),
                of_flow,
            )
        )

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments by name, as a JSON object."""
        changed = asks.arguments_of(self.earlier)
        if changed is not None:
            return changed
        arguments = codec.shown(self.asked)
        return arguments if isinstance(arguments, dict) else {"arguments": arguments}

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Wrap the call itself. A tool's exception is an answer, too; a model that raised one is called again."""
        if self.entry.kind == "model":
            self.begin()
        before = PLACE.set(self.inner)
        try:
            with self.journal.working() if self.entry.kind == "tool" else nullcontext():
                yield
        except Exception as error:
            self._failed(error)
            self.journal.note_failed(error, self.entry)
            if self.once:
                raise self.asks(asks.UNKNOWN, f"it raised {type(error).__name__}: {codec.text_of(error)}") from error
            raise
        except BaseException as error:
            self.journal.note_failed(error)
            if self.once:
                self.journal.note_cancelled(self.entry)
            raise
        finally:
            PLACE.reset(before)

    def _failed(self, error: Exception) -> None:
        is_answer = self.has_effect and not self.once
        reason = answers.told(f"{type(error).__name__}: {codec.text_of(error)}")
        self._over("unknown" if self.once else "failed", codec.failure(error) if is_answer else None, reason)
        if not self.has_effect:
            self.journal.ask_again(self.entry)

    def end(self, answer: Any, used: dict[str, int] | None = None) -> Any:
        """Record the answer and, for a model, its usage; return the answer."""
        stored = self._stored(answer)
        if stored is None:
            self.journal.note_unrecorded(self.entry, answer)
        self._over("done", stored, answers.told(answer), used or None)
        return answer

    def _stored(self, answer: Any) -> str | None:
        """Return the encoded answer or, if it cannot be stored, what CrewAI reads from it: a text or tool calls."""
        with suppress(codec.NotStorable):
            return codec.encoded(answer, self.expected, is_whole=self.has_effect or self.entry.kind == "model")
        with suppress(Exception):  # raised by a user's method
            read = self.text_of or tool_calls.plain_tool_calls
            return codec.encoded(read(answer))
        return None

    def _over(self, state: Any, answer: str | None, result: str | None, used: dict[str, int] | None = None) -> None:
        seconds = round(time.monotonic() - self.began, 3)
        if self.to_repeat and answer is not None:
            made = replace(self.to_repeat, has_raised=state == "failed")
            self.journal.note_call(self.entry, made)
            answer = prepared_calls.beside(answer, made)
        is_kept = self.is_recorded and answer is not None
        if self.entry.kind == "tool":
            self.journal.note_finished(self)
        fields = {"state": state, "seconds": seconds, "usage": used, "result": result, "is_awaited": bool(self.once)}
        if self.journal.write(self._step(answer=answer if is_kept else None, is_kept=is_kept, **fields)):
            self.journal.note_answered(self.entry)

    def _step(self, **fields: Any) -> Step:
        return Step(**{**vars(self.entry), "agent": self.agent, **fields})


def _nested(part: str) -> str:
    """Return a part's nested task, without its review round."""
    return part.partition(" ")[0]


def _own_part(part: str) -> str:
    """Return the nested task of a part; empty for a part of the task itself."""
    return _nested(part) if "/" in part else ""


def _place() -> Place:
    return PLACE.get() or OUTSIDE


def _expected(value: Any) -> type[BaseModel] | None:
    return value if isinstance(value, type) and issubclass(value, BaseModel) else None


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _read(earlier: JournalEntry | None, expected: type[BaseModel] | None) -> list[Any] | None:
    """Return the answer in a list; None if there is none or its class has changed."""
    if earlier is None or earlier.answer is None:
        return None
    try:
        return [codec.answer(prepared_calls.answer_in(earlier.answer), expected)]
    except Exception:  # raised by a user's class
        return None
