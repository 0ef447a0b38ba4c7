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
import threading
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

from crew_service import tracing
from crew_service.crewai import (
    answers,
    channel,
    description,
    feedback,
    internals,
    journal,
    loading,
    open_tools,
    process_tree,
    storage,
    task_outputs,
    world,
)
from crew_service.crewai.ask_person import AskPerson
from crew_service.crewai.channel import LINK_CLOSED, UNBORN, Channel, Message
from crew_service.crewai.crew_run import CrewRun
from crew_service.crewai.edit_check import EditCheck
from crew_service.crewai.errors import Fatal, Interrupted, UnsupportedCrew
from crew_service.crewai.flow_run import FlowRun
from crew_service.crewai.flow_source import FlowSource
from crew_service.crewai.loading import JsonCrew
from crew_service.engine.crew import CrewFailed, Job, Progress, Report
from crew_service.engine.printed import masked, secrets_of
from crew_service.engine.tool_rules import ToolRule

CHECKED = 1.0  # seconds between checks of the link
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
        if kept := request.get("journal"):
            kept["entries"] = [self._received() for _ in range(kept["entries"])]
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
        stored = threading.Event() if channel.is_awaited(progress) else None
        with self._sending:
            self._check_link()
            if stored:
                self._unstored.append(stored)
            self._channel.send(channel.packed(progress))
        if stored:
            stored.wait()

    def answer(self, message: Message) -> None:
        self._over = True
        self._check_link()
        self._channel.send(message)

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
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def work(link: socket.socket, dotenv: Path | None) -> None:
    service = ServiceConnection(link)
    request = service.request()
    with _traced(request) as spans:
        answer = _answer(service, request, dotenv)
        if "job" in request:
            # Wait for non-daemon threads, as any Python program does on exit.
            threading._shutdown()  # type: ignore[attr-defined]
        if question := journal.question():
            answer = channel.packed(question)
        if Fatal.noted:
            answer = _failed(Fatal.noted[0])
        _flush()
        service.answer(answer)  # before the spans are exported, so that a slow collector cannot delay it
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
                sys.stderr.write(_told(traceback.format_exc()))
        return _failed(error)
    finally:
        if not service.is_mine:
            _end_copy(failure)


def _failed(error: BaseException) -> Message:
    kind = "" if isinstance(error, CrewFailed | Fatal) else f"{type(error).__name__}: "
    refused, unanswered = journal.blame(error)
    text = _told(kind + answers.text_of(error))
    return {"type": "failed", "error": text, "refused": refused, "unanswered": unanswered}


def _told(text: str) -> str:
    """Mask secrets that only this process knows: the service does not read the crew's `.env`."""
    return masked(text, secrets_of(os.environ))


def _end_copy(failure: BaseException | None) -> NoReturn:
    """Exit from a forked copy once the crew's code has returned, with the exit code that the code chose, if any."""
    _flush()
    if isinstance(failure, SystemExit) and isinstance(failure.code, int | None):
        os._exit(failure.code or 0)
    os._exit(0 if failure is None else 1)


def _leave() -> None:
    """Run the exit handlers, but skip Python's teardown of CrewAI, which would take a second."""
    atexit._run_exitfuncs()
    process_tree.end_descendants()
    _flush()
    os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(BaseException):  # the crew may have closed or replaced it
            stream.flush()  # type: ignore[union-attr]


def _done(service: ServiceConnection, request: Message, dotenv: Path | None) -> Message:
    report: Report = service.report
    if edit := request.get("edit"):
        check = EditCheck(ToolRule(*rule) for rule in request["rules"])
        internals.record_tool_calls(check)
    if kept := request.get("journal"):  # before the crew's own modules define or instantiate classes
        entries = map(channel.unpacked, kept["entries"])
        rules = [ToolRule(*rule) for rule in kept["rules"]]
        report = journal.start(entries, request["job"]["steps"], rules, service, kept.get("flow_tools"))
        if kept["ask_person"]:
            internals.give_tool(AskPerson())
    try:
        world.load_variables(dotenv)
        told = storage.use(request["place"], owner=request.get("owner"))
        if before := request.get("forget"):
            storage.forget(before)
            return {"type": "forgotten"}
        served = loading.build(request["target"])
        if kept or edit:
            internals.record_tools()
        described = description.describe(served, request.get("flow_tools", ()))
    except UnsupportedCrew as refusal:
        return {"type": "refused", "reason": _told(str(refusal))}
    except BaseException as error:
        if "job" not in request:
            raise
        reason, trace = _told(f"{type(error).__name__}: {error}"), _told(traceback.format_exc())
        return {"type": "refused", "reason": reason, "trace": trace}
    if edit:
        return {"type": "checked", "problem": check.problem(served, **edit)}
    if "job" not in request:
        described["can_record"] = internals.can_record()
        # Include the secrets in the crew's `.env`, which the service does not read.
        return {"type": "description", "described": described, "secrets": secrets_of(os.environ), "told": told}
    if kept and not isinstance(served, FlowSource):
        open_tools.check(served.crew if isinstance(served, JsonCrew) else served, rules, described["tools"])
    internals.watch_failures(journal.note_left)
    internals.let_interruptions_through()
    internals.refuse_terminal(feedback.refuse)
    internals.refuse_console(feedback.refuse_console)
    internals.watch_files(task_outputs.check_path)
    outcome = _run_of(served, channel.job_from(request["job"]), report).run()
    journal.tell()
    return channel.packed(outcome)


def _run_of(served: loading.Served, job: Job, report: Report) -> CrewRun | FlowRun:
    if isinstance(served, FlowSource):
        return FlowRun(served, job, report)
    if isinstance(served, JsonCrew):
        return CrewRun(served.crew, dataclasses.replace(job, inputs={**served.defaults, **job.inputs}), report)
    return CrewRun(served, job, report)
