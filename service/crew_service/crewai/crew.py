"""The engine's view of a CrewAI crew: every segment runs in its own process, which can be killed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from crew_service import tracing
from crew_service.crewai import channel, execution_files, points, project, world
from crew_service.crewai.channel import LINK_CLOSED, UNBORN, Message
from crew_service.crewai.errors import UnsupportedCrew
from crew_service.crewai.internals import NO_JOURNAL
from crew_service.crewai.process_pool import PROCESSES, CrewProcess, ProcessPoolClosed
from crew_service.crewai.world import Place
from crew_service.engine import tool_rules
from crew_service.engine.asks import ASK_PERSON
from crew_service.engine.crew import (
    BadTarget,
    Cancellation,
    Cancelled,
    CrewFailed,
    CrewKilled,
    Job,
    Outcome,
    Report,
    TaskInfo,
    TaskOutput,
    TokensUsed,
)
from crew_service.engine.file_inputs import FileInputs
from crew_service.engine.printed import masked
from crew_service.engine.tool_rules import NEEDS_JOURNAL, BadRule, JournalOptions, ToolRule

log = logging.getLogger(__name__)

BATCH = 0.2  # seconds between checks for a job's cancellation
LOADING = 120.0  # seconds to import a target's modules when the service starts
CHECKING = 60.0  # seconds for a task's model and guardrail to check an edited answer
LONGEST_TRACE = 10_000  # characters
LONGEST = 1_000  # characters of an error about a target; a validation error can be long


class CrewAICrew:
    isolation: Literal["process"] = "process"

    def __init__(self, target: str, options: JournalOptions, place: Place) -> None:
        self._world = place.world
        self._request = {"target": world.absolute(target), "place": place.message()}
        self.rules, self._flow_tools, self._gives_ask_person = _rules(target, options)
        description, self.secrets = self._description(target)
        asks_people = self._gives_ask_person or description["asks"]
        self._asking = f"its tool {ASK_PERSON}" if asks_people else None
        self._tools: list[list[str]] = description["tools"]  # the names of each tool
        self.tools = [own for own, *_ in self._tools]
        self.knows_all_tools: bool = description["knows_all_tools"]
        self._no_journal: str | None = description["no_journal"]
        self._keeps_journal = options.is_kept and not self._no_journal
        self.off: list[str] = description["off"]
        if options.is_kept and self._no_journal and (note := f"{NO_JOURNAL}: {self._no_journal}") not in self.off:
            self.off.append(note)
        self.kind: Literal["crew", "flow", "agent"] = description["kind"]
        if problem := self._problem(options):
            raise BadTarget(f"The crew {target!r} cannot be served: {problem}")
        for rule in tool_rules.unmatched(self.rules, self._tools):
            log.warning("the rule %s matches no tool known before a task runs; check the tool's name", rule)
        for what in self.off:
            log.warning("%s", what)
        self.inputs: list[str] = description["inputs"]
        self.required: list[str] = description["required"]
        self.file_inputs = FileInputs(description["files"], problem=description["file_problem"])
        self.tasks = [TaskInfo(**task) for task in description["tasks"]]

    @property
    def asks(self) -> str | None:
        return self._asking or tool_rules.asking(self.rules)

    def has_tool(self, rule: ToolRule) -> bool:
        """Whether the crew has a tool that the rule matches, among those that are known before a task runs."""
        return any(map(rule.matches, self._tools))

    def lost(self, finished: Sequence[TaskOutput], state: dict[str, Any]) -> str | None:
        """Return what of the finished tasks is needed again but could not be stored."""
        if nested := state.get("nested"):  # a nested task has asked a question since the Flow's own last question
            state = nested["before"]["state"] if nested["before"] else {}
        return next(filter(None, map(points.lost, finished[state.get("done", 0) :])), None)

    @property
    def _told_rules(self) -> list[list[Any]]:
        return [[each.pattern, each.rule, each.is_common] for each in self.rules]

    def _problem(self, options: JournalOptions) -> str | None:
        """Return why the crew's rules cannot be followed, worded as the end of a sentence; None if they can."""
        once = tool_rules.run_once(self.rules) or self._asking
        if once and options.is_kept and not self._keeps_journal:
            return f"{once} is not supported: {self._no_journal}."
        if self._asking and not options.is_kept:
            return f"{self._asking} {NEEDS_JOURNAL}"
        if self.kind == "flow" and (problem := tool_rules.undeclared(self.rules, self._flow_tools)):
            return problem
        known = self._tools if self.knows_all_tools else None
        return tool_rules.problem(self.rules, known, is_kept=options.is_kept)

    def run(self, job: Job, report: Report) -> Outcome:
        job.printed.hide(self.secrets)
        with (
            execution_files.laid_out(job) as folders,
            PROCESSES.worker(self._world, job.printed.add) as worker,
        ):
            self._begin(worker, job, folders)
            for message in self._messages(worker, job):
                if message["type"] == "refused":
                    raise _not_loaded(job, message)
                record = channel.unpacked(message)
                if isinstance(record, Outcome):
                    worker.dismiss()
                    return record
                if record is not None:
                    report(record)
                    if channel.is_awaited(record):
                        worker.send({"type": "stored"})
        raise CrewFailed("The crew's process ended before the crew was done.")

    def _begin(self, worker: CrewProcess, job: Job, folders: tuple[str, str]) -> None:
        """Send the job, then its finished tasks and journal entries as separate messages, because each may be large."""
        recorded = job.recorded() if self._keeps_journal else []
        message = channel.job_message(job)
        message["done"] = len(job.done)
        state = job.flow_state() if self.kind == "flow" else None
        message["flow_state"] = state is not None
        message["folder"], message["written"] = folders
        message["largest_file"] = job.largest_file
        request = {**self._request, "owner": job.owner, "job": message, "trace": tracing.carrier()}
        if self._keeps_journal:
            request["journal"] = {
                "entries": len(recorded),
                "rules": self._told_rules,
                "ask_person": self._gives_ask_person,
                "flow_tools": self._flow_tools if self.kind == "flow" and self.rules else None,
            }
        worker.send(request)
        for task in job.done:
            worker.send({"type": "done", "task": task})
        if state is not None:
            worker.send({"type": "flow_state", "state": state})
        for entry in recorded:
            worker.send(channel.packed(entry))

    def _messages(self, worker: CrewProcess, job: Job) -> Iterator[Message]:
        try:
            yield from _messages(worker, job.cancelled)
        except CrewKilled as killed:
            if self._keeps_journal:
                raise
            raise CrewFailed(str(killed)) from None

    def forget_memory(self, before: float, stopping: Cancellation) -> None:
        try:
            self._asked({**self._request, "forget": before}, "forgotten", seconds=LOADING, stopping=stopping)
        except Cancelled:  # the next service goes on
            pass
        except (CrewFailed, ProcessPoolClosed, OSError) as error:
            log.warning("the crew's memory cannot be searched for what is too old: %s", _line(str(error)))

    def edit_problem(
        self,
        task_id: str,
        state: dict[str, Any],
        text: str,
        *,
        owner: str | None,
        stopping: Cancellation,
        report: Report,
    ) -> str | None:
        """Check an edited answer in a separate process, because models and guardrails are the crew's own code."""
        edit = {"task_id": task_id, "state": state, "text": text}
        try:
            request = {**self._request, "owner": owner, "edit": edit, "rules": self._told_rules}
            reply = self._asked(request, "checked", seconds=CHECKING, take=_nowhere, stopping=stopping, report=report)
        except (Cancelled, CrewFailed, ProcessPoolClosed) as error:
            problem: str | None = f"it cannot be checked now: {error}"
        else:
            problem = reply.get("problem", reply.get("reason"))
        return problem and _line(masked(problem, self.secrets))

    def _description(self, target: str) -> tuple[Message, list[str]]:
        """Load the crew in a process and return its description and secrets; raise `BadTarget` if that fails."""
        try:
            reply = self._asked({**self._request, "flow_tools": self._flow_tools}, "description", seconds=LOADING)
        except (Cancelled, CrewFailed, ProcessPoolClosed, OSError) as error:
            raise BadTarget(f"The crew {target!r} cannot be loaded: {_line(str(error))}") from None
        if reply["type"] == "refused" and "trace" in reply:
            raise BadTarget(f"The crew {target!r} cannot be loaded: {_line(reply['reason'])}", reply["trace"])
        if reply["type"] == "refused":
            raise BadTarget(f"The crew {target!r} cannot be served: {reply['reason']}")
        for text in reply["told"]:
            log.warning("%s", text)
        return reply["described"], reply["secrets"]

    def _asked(
        self,
        request: Message,
        answer: str,
        *,
        seconds: float,
        take: Callable[[bytes], None] | None = None,
        stopping: Cancellation | None = None,
        report: Report | None = None,
    ) -> Message:
        """Send one request about the crew to a process; return its answer or refusal."""
        limit = Cancellation()
        timer = threading.Timer(seconds, limit.set, [f"it takes more than {seconds:g} seconds"])
        timer.daemon = True
        timer.start()
        try:
            with PROCESSES.worker(self._world, take) as worker:
                worker.send(request)
                for message in _messages(worker, limit, stopping or limit):
                    if message["type"] in (answer, "refused"):
                        worker.dismiss()
                        return message
                    if report and isinstance(progress := channel.unpacked(message), TokensUsed):
                        report(progress)
            raise CrewFailed("its process ended.")
        finally:
            timer.cancel()


def _nowhere(printed: bytes) -> None:
    """Discard output: a guardrail may print the draft, which does not belong in the log."""


def _not_loaded(job: Job, message: Message) -> CrewFailed:
    """Log why a crew that loaded when the service started no longer does; return the failure."""
    reason = job.printed.masked(message.get("trace") or message["reason"])[-LONGEST_TRACE:]
    log.error("the crew cannot be loaded: %s", reason, extra={"execution_id": job.execution_id})
    return CrewFailed(message["reason"])


def _rules(target: str, options: JournalOptions) -> tuple[tuple[ToolRule, ...], list[str], bool]:
    """Return the tool rules, those from the command line first, a Flow's tools, and whether agents get `AskPerson`."""
    try:
        rules = (*options.rules, *project.tool_rules(target))
        return rules, [*options.flow_tools, *project.flow_tools(target)], project.has_ask_person(target)
    except BadRule as problem:
        raise BadTarget(f"The crew {target!r} cannot be served: in its pyproject.toml, {problem}.") from None
    except UnsupportedCrew as refusal:
        raise BadTarget(f"The crew {target!r} cannot be served: {refusal}") from None


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST]


def _messages(worker: CrewProcess, *cancelled: Cancellation) -> Iterator[Message]:
    """Yield the process's messages until it ends; raise if the crew fails or the process dies."""
    while True:
        for each in cancelled:
            each.raise_if_set()
        try:
            message = worker.receive(BATCH)
        except TimeoutError:
            continue
        if message is None:
            return
        if message["type"] == "failed":
            worker.dismiss()
            raise CrewFailed(message["error"], refused=message["refused"], unanswered=message["unanswered"])
        if message["type"] == UNBORN:
            raise OSError(message["errno"], "a crew's process cannot start")
        if message["type"] == "died":
            kind = CrewKilled if message["code"] < 0 else CrewFailed
            raise kind(f"The crew's process {_ended(message['code'])} before the crew was done.")
        yield message


def _ended(code: int) -> str:
    if code == LINK_CLOSED:
        return "exited because it had closed the descriptor through which it reports to the service,"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
