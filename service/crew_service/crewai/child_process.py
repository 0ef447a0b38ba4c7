"""Runs in a crew's process: reads one request from the service, handles it, and exits, killing everything it started.

The process does not outlive the service: when the connection closes, it exits. Only this process talks to the service;
a copy that the crew forks reports nothing, and exits as soon as the crew's code returns in it.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from crewai.hooks import InterceptionPoint

from crew_service import tracing
from crew_service.crewai import (
    callbacks,
    channel,
    codec,
    description,
    execution_files,
    feedback,
    flow_asks,
    hooks,
    journal,
    loading,
    open_tools,
    output_files,
    process_tree,
    storage,
    task_outputs,
    world,
)
from crew_service.crewai.agent_run import AgentRun, AgentSource
from crew_service.crewai.ask_person import AskPerson
from crew_service.crewai.channel import LINK_CLOSED, UNBORN, Channel, Message
from crew_service.crewai.crew_run import CrewRun
from crew_service.crewai.edit_check import EditCheck
from crew_service.crewai.errors import Fatal, Interrupted, UnsupportedCrew, told
from crew_service.crewai.flow_run import FlowRun, PlainFlowRun
from crew_service.crewai.flow_source import FlowSource
from crew_service.crewai.internals import (
    Seam,
    crew_tasks,
    first_missing,
    flow_methods,
    human_input,
    task_ends,
    tool_calls,
)
from crew_service.crewai.loading import JsonCrew
from crew_service.crewai.usage import TokenMeter
from crew_service.engine.crew import CrewFailed, Job, Progress, Report, Step, TaskDone
from crew_service.engine.printed import secrets_of
from crew_service.engine.tool_rules import ToolRule

CHECKED = 1.0  # seconds between checks of the link
FORGOTTEN = (
    ". The execution continued in a new process, as after each question or restart: attributes on `self` and module "
    "globals that the earlier process set are gone, unlike `self.state`"
)
OF_INPUT = "EOF when reading a line"  # the text of Python's own error
NO_TERMINAL = ". The crew has no terminal for input(): use human_input in a task, or self.ask() in a Flow"
LAST_WORDS = 5.0  # seconds for exit handlers to run after the outcome is sent


class ServiceConnection:
    """The crew's end of the link to the service."""

    def __init__(self, link: socket.socket) -> None:
        self._channel = Channel(link)
        self._pid = os.getpid()
        self._descriptor, self._inode = link.fileno(), _inode(link.fileno())
        self._unstored: deque[threading.Event] = deque()  # one per waiting thread, oldest first
        self._sending = threading.Lock()
        self._over = False
        self.files: output_files.OutputFolder | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this is the process connected to the service, rather than a forked copy."""
        return os.getpid() == self._pid

    def request(self) -> Message:
        self._channel.send({"type": "born", "pid": os.getpid()})
        request = self._received()
        if job := request.get("job"):
            job["done"] = [self._received()["task"] for _ in range(job["done"])]
            job["flow_state"] = self._received()["state"] if job.get("flow_state") else None
        if recorded := request.get("journal"):
            recorded["entries"] = [self._received() for _ in range(recorded["entries"])]
        try:
            threading.Thread(target=self._listen, name="crew-service", daemon=True).start()
            threading.Thread(target=self._watch, name="crew-service-link", daemon=True).start()
        except RuntimeError:  # none of the crew's code has run yet
            self._channel.send({"type": UNBORN, "errno": errno.EAGAIN})
            raise
        return request

    def _received(self) -> Message:
        message = self._channel.receive()
        if message is None:
            raise SystemExit("the service is gone")
        return message

    def report(self, progress: Progress) -> None:
        """Send progress; for some kinds, such as a finished task, wait until the service has stored it."""
        if not self.is_mine:  # in a forked copy, locks held by other threads are never released
            return
        if isinstance(progress, TaskDone):
            self.send_files(progress.task["task_id"])
        elif isinstance(progress, Step) and progress.kind == "tool" and progress.state != "running":
            self.send_files(progress.task_id)
        stored = threading.Event() if channel.is_awaited(progress) else None
        with self._sending:
            self._check_link()
            if stored:
                self._unstored.append(stored)
            self._channel.send(channel.packed(progress))
        if stored:
            stored.wait()

    def send_files(self, task_id: str) -> None:
        """Send what the crew has written since the last time, so that it is stored before what is reported next."""
        if self.files:
            self.files.send_changes(self.report, task_id)

    def answer(self, line: bytes) -> None:
        self._over = True
        self._check_link()
        self._channel.send_line(line)

    def _listen(self) -> None:
        while self._channel.receive() is not None:
            self._unstored.popleft().set()
        if self._over:
            time.sleep(LAST_WORDS)
        os.killpg(0, signal.SIGKILL)

    def _watch(self) -> None:
        """Exit soon after the crew closes the link: a blocked read would not notice."""
        while True:
            time.sleep(CHECKED)
            self._check_link()

    def _check_link(self) -> None:
        """Exit if the crew has closed the link; another file may be using its descriptor now."""
        if _inode(self._descriptor) != self._inode:
            process_tree.end_descendants()
            os._exit(LINK_CLOSED)


def _inode(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def work(link: socket.socket, dotenv: Path | None) -> None:
    service = ServiceConnection(link)
    request = service.request()
    tool_calls.keep_artifacts_in(Path(tempfile.gettempdir()))
    with _traced(request) as spans:
        answer = _answer(service, request, dotenv)
        if "job" in request:
            # Wait for non-daemon threads, as any Python program does on exit.
            threading._shutdown()  # type: ignore[attr-defined]
        if question := journal.question():
            answer = channel.packed(question)
        if Fatal.noted:
            answer = _failed(Fatal.noted[0])
        line = channel.line_of(answer)
        if problem := channel.too_large(answer, line):
            answer = _failed(CrewFailed(problem))
            line = channel.line_of(answer)
        _flush()
        service.send_files(answer.get("task_id") or answer.get("entry", {}).get("task_id", ""))
        service.answer(line)  # before the spans are exported, so that a slow collector cannot delay it
        if spans:
            spans.is_paused = answer["type"] in channel.PAUSES
    _leave()


def _traced(request: Message) -> contextlib.AbstractContextManager[Any]:
    if not (request.get("trace") and tracing.is_wanted()):
        return contextlib.nullcontext()
    from crew_service.crewai import traces  # imports OpenTelemetry

    return traces.below(request["trace"], request["job"]["execution_id"])


def _answer(service: ServiceConnection, request: Message, dotenv: Path | None) -> Message:
    failure: BaseException | None = None
    try:
        return _done(service, request, dotenv)
    except BaseException as error:  # the execution needs an error even if the crew calls sys.exit
        failure = error
        if not isinstance(error, CrewFailed | Interrupted):
            with contextlib.suppress(BaseException):  # the crew may have replaced the streams
                sys.stderr.write(told(traceback.format_exc()))
        return _failed(error, continues=_continues(request))
    finally:
        if not service.is_mine:
            _end_copy(failure)


def _continues(request: Message) -> bool:
    """Return whether an earlier process has already run a part of the execution."""
    job, recorded = request.get("job", {}), request.get("journal", {})
    return bool(job.get("done") or job.get("decision") or recorded.get("entries"))


def _failed(error: BaseException, *, continues: bool = False) -> Message:
    kind = "" if isinstance(error, CrewFailed | Fatal) else f"{type(error).__name__}: "
    refused, unanswered = journal.blame(error)
    text = told(kind + codec.text_of(error))
    own = [each for each in traceback.extract_tb(error.__traceback__) if loading.is_own(each.filename)]
    if continues and own and isinstance(error, AttributeError | NameError):
        text += FORGOTTEN
    if isinstance(error, EOFError) and str(error) == OF_INPUT:
        text += NO_TERMINAL
    return {"type": "failed", "error": text, "refused": refused, "unanswered": unanswered}


def _end_copy(failure: BaseException | None) -> NoReturn:
    """Exit from a forked copy once the crew's code has returned, with the exit code that the code chose, if any."""
    _flush()
    if isinstance(failure, SystemExit) and isinstance(failure.code, int | None):
        os._exit(failure.code or 0)
    os._exit(0 if failure is None else 1)


def _leave() -> None:
    """Run the exit handlers, but skip Python's teardown of CrewAI, which would take a second."""
    loading.end()
    atexit._run_exitfuncs()
    process_tree.end_descendants()
    _flush()
    os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(BaseException):  # the crew may have closed or replaced it
            stream.flush()  # type: ignore[union-attr]


class _Refused(Exception):
    """The target cannot be served; `message` is the answer."""

    def __init__(self, reason: str, **more: str) -> None:
        super().__init__(reason)
        self.message: Message = {"type": "refused", "reason": reason, **more}


def _done(service: ServiceConnection, request: Message, dotenv: Path | None) -> Message:
    try:
        if "forget" in request:
            return _forgotten(request, dotenv)
        if "edit" in request:
            return _checked(service, request, dotenv)
        return _run(service, request, dotenv) if "job" in request else _described(request, dotenv)
    except _Refused as refusal:
        return refusal.message


def _forgotten(request: Message, dotenv: Path | None) -> Message:
    world.load_variables(dotenv)
    storage.use(request["place"])
    storage.forget(request["forget"])
    return {"type": "forgotten"}


def _checked(service: ServiceConnection, request: Message, dotenv: Path | None) -> Message:
    if tool_calls.JOURNAL.missing:  # a guardrail's tools would run
        return {"type": "checked", "problem": f"it cannot be checked: {tool_calls.JOURNAL.reason}"}
    check = EditCheck(ToolRule(*rule) for rule in request["rules"])
    tool_calls.record_tool_calls(check)
    served, *_ = _loaded(request, dotenv, is_recorded=True)
    meter = TokenMeter(service.report, lambda task_id: "")
    try:
        return {"type": "checked", "problem": check.problem(served, **request["edit"])}
    finally:
        meter.tell()


def _described(request: Message, dotenv: Path | None) -> Message:
    served, described, notes = _loaded(request, dotenv)
    described |= {"off": Seam.told(), "no_journal": _no_journal(served)}
    notes += served.told if isinstance(served, FlowSource) else []
    # Include the secrets in the crew's `.env`, which the service does not read.
    return {"type": "description", "described": described, "secrets": secrets_of(os.environ), "told": notes}


def _run(service: ServiceConnection, request: Message, dotenv: Path | None) -> Message:
    job, recorded = request["job"], request.get("journal")
    report: Report = service.report
    execution_files.use(job["folder"])
    service.files = output_files.use(job["written"], job["largest_file"])
    if recorded:  # before the crew's own modules define or instantiate classes
        entries = map(channel.unpacked, recorded["entries"])
        rules = [ToolRule(*rule) for rule in recorded["rules"]]
        report = journal.start(entries, job["steps"], rules, service, recorded.get("flow_tools"), job["done"])
        if recorded["ask_person"]:
            crew_tasks.give_tool(AskPerson())
    served, described, _ = _loaded(request, dotenv, is_recorded=bool(recorded))
    if recorded and not isinstance(served, FlowSource):
        open_tools.check(loading.agents_of(served), rules, described["tools"])
    _watch(served)
    outcome = _run_of(served, channel.job_from(job), report).run()
    journal.tell()
    return channel.packed(outcome)


def _loaded(
    request: Message, dotenv: Path | None, *, is_recorded: bool = False
) -> tuple[loading.Served, Message, list[str]]:
    """Load the target; return it with its description, and what users should know."""
    try:
        world.load_variables(dotenv)
        notes = storage.use(request["place"], owner=request.get("owner"))
        served = loading.build(request["target"])
        if is_recorded:
            tool_calls.record_tools()
        return served, description.describe(served, request.get("flow_tools", ())), notes
    except UnsupportedCrew as refusal:
        raise _Refused(told(str(refusal))) from None
    except BaseException as error:
        if "edit" in request:
            raise
        trace = told(traceback.format_exc())
        raise _Refused(told(loading.why_not(error, request["target"])), trace=trace) from None


def _watch(served: loading.Served) -> None:
    """Let failures, questions and paths be known before anything of the crew runs."""
    if not crew_tasks.TASKS.missing:
        crew_tasks.watch_failures(journal.note_left)
        crew_tasks.let_interruptions_through()
    crew_tasks.wrap_agents(callbacks.working)
    human_input.refuse_terminal(feedback.refuse)
    flow_asks.ask_people()
    task_ends.keep_drafts_from_memory()
    asks = flow_methods.off() if isinstance(served, FlowSource) else first_missing(human_input.PEOPLE)
    asks = asks or task_ends.remembers_drafts()
    if asks or crew_tasks.FILES.missing:
        known = loading.tasks_of(served)
        hooks.register(InterceptionPoint.PRE_STEP, partial(description.refuse_unknown, known, asks))
    if not crew_tasks.FILES.missing:
        crew_tasks.watch_files(task_outputs.check_path)


def _no_journal(served: loading.Served) -> str | None:
    """Return why no journal can be kept, as a clause; None if it can."""
    needed = (tool_calls.JOURNAL, crew_tasks.TASKS)
    seam = first_missing(*needed) or (flow_methods.off() if isinstance(served, FlowSource) else None)
    if seam:
        return seam.reason
    return None if tool_calls.can_record() else f"CrewAI {version('crewai')} calls tools in a different way"


def _run_of(served: loading.Served, job: Job, report: Report) -> AgentRun | CrewRun | FlowRun | PlainFlowRun:
    if isinstance(served, AgentSource):
        return AgentRun(served, job, report)
    if isinstance(served, FlowSource):
        return (PlainFlowRun if flow_methods.off() else FlowRun)(served, job, report)
    if isinstance(served, JsonCrew):
        return CrewRun(served.crew, dataclasses.replace(job, inputs={**served.defaults, **job.inputs}), report)
    return CrewRun(served, job, report)
