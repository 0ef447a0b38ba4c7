"""Handles tasks of crews that a Flow's methods start: each may ask a question, and no finished task runs again.

A question stops the method, whatever the method catches or returns. After the answer, the method restarts, and finished
tasks of its crews return their stored outputs. A task is identified by its method, the texts of its crew, how many
times the method has started that crew, and the task's position in the crew.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from crewai import Crew, Task, TaskOutput

from crew_service.crewai import answers, journal, points, tool_caches
from crew_service.crewai.approved import finish
from crew_service.crewai.callbacks import callbacks_of, watch_callbacks
from crew_service.crewai.channel import decision_from
from crew_service.crewai.description import named_tasks
from crew_service.crewai.errors import Fatal, Interrupted
from crew_service.crewai.feedback import OF_A_TASK, StoredFeedback
from crew_service.crewai.internals import crew_tasks, human_input
from crew_service.crewai.internals.wrapping import holding
from crew_service.crewai.task_outputs import restored, save, stored
from crew_service.crewai.tool_caches import ToolCaches
from crew_service.engine.approval import reads_like_approval
from crew_service.engine.crew import ReviewDecision, Round
from crew_service.engine.crew import TaskOutput as StoredOutput

APPROVE, REVISE = "approve", "revise"


class TaskAsks(Interrupted):
    """A task that needs a review has produced its answer, so the method that started its crew stops here."""

    def __init__(self, place: str, answer: StoredOutput) -> None:
        super().__init__("a person must decide on this answer")
        self.place, self.answer = place, answer


@dataclass
class MethodRun:
    """Tracks one method call: how many times it has started each crew and task, and the question that stops it."""

    method: str
    counts: Counter[str] = field(default_factory=Counter)
    asked: TaskAsks | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, texts: list[Any], as_text: Callable[[Any], str] = answers.prompt_as_text) -> str:
        """Record that the crew or task with these texts has started, and return its position.

        A planner's task names the tools of the planned crew, with addresses that differ in every process.
        """
        text = as_text([*texts, *journal.enclosing()])
        known = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        with self._lock:
            self.counts[known] += 1
            return f"{self.method}/{known}/{self.counts[known]}"

    def ask(self, place: str, answer: StoredOutput) -> TaskAsks:
        """Return the exception to raise; if several tasks ask at once, the first one wins."""
        self.asked = self.asked or TaskAsks(place, answer)
        return self.asked


METHOD: ContextVar[MethodRun | None] = ContextVar("the running method", default=None)
CREW: ContextVar[tuple[str, list[Task]]] = ContextVar("the running crew: its place and tasks", default=("", []))


class NestedTasks:
    """The tasks of crews that a Flow's methods start.

    `before` is the decision on the Flow's own last question, from which the Flow continues.

    :param done: the methods that have finished
    """

    def __init__(self, gate: ReviewDecision | None, done: Sequence[str]) -> None:
        known: dict[str, Any] = gate.state.get("nested", {}) if gate else {}
        self.before = (decision_from(known["before"]) if known["before"] else None) if known else gate
        self._lock = threading.Lock()
        self._earlier: dict[str, str] = known.get("places", {})
        self._begun = set(map(_crew, self._earlier))  # before this segment
        new = {earlier: place for place, earlier in self._earlier.items()}
        # Rejected drafts are kept until their tasks have answered again, perhaps after another question.
        self._finished, self._drafts, self._approved, self._rejected = (
            {new.get(place, place): output for place, output in known.get(name, {}).items()}
            for name in ("finished", "drafts", "approved", "rejected")
        )
        self._rounds: dict[str, list[dict[str, str]]] = {
            new.get(place, place): list(rounds) for place, rounds in known.get("rounds", {}).items()
        }
        self._decision = gate if known else None
        task_place: str | None = known.get("asked")
        self._decided = new.get(task_place, task_place) if task_place else None
        self._skipped: int = known.get("skipped", 0)
        if self._decided and self._is_approval():
            self._approved[self._decided] = self._drafts.pop(self._decided)
            self._rounds.pop(self._decided, None)
        elif self._decided and gate:
            self._rejected[self._decided] = self._drafts.pop(self._decided)
            # An earlier release counted only the rounds before this draft's.
            since = gate.rounds[-1:] if "rounds" in known else gate.rounds[self._skipped :]
            self._rounds.setdefault(self._decided, []).extend(map(asdict, since))
        self._unused = {place for place in (self._decided, *self._rejected) if place}  # until their tasks run
        self._running: dict[int, str] = {}
        for method in done[known.get("done", len(done)) :]:  # since the question; it may be called again
            self._forget(method)

    def watch(self) -> None:
        """From now on, let nested tasks in this process ask people questions, and replay the finished ones."""
        crew_tasks.wrap_crews(_of_crew)
        self._caches = ToolCaches()
        crew_tasks.wrap_tasks(_going_back, self._settled, self._answered, self._done)
        human_input.ask(StoredFeedback(self.rounds_of))

    @contextmanager
    def method(self, name: str) -> Iterator[None]:
        """Wrap a method call; if it asks a question, raise `TaskAsks` or `Asked`, even if the method catches them."""
        run = MethodRun(name)
        token = METHOD.set(run)
        journal.enter(name)
        try:
            journal.stop_if_asked()  # by an earlier call, whose journal this one shares
            yield
        except asyncio.CancelledError:  # it lost a race, so nobody is asked
            raise
        except BaseException:
            if run.asked is None:
                raise
        finally:
            METHOD.reset(token)
        if run.asked:
            raise run.asked
        journal.stop_if_asked()
        self._over(name)

    def state(self, asks: TaskAsks, done: int) -> dict[str, Any]:
        """Return the state from which a run continues after the answer, with places that release 0.2.0 can read.

        :param done: how many methods have finished
        """

        def named(known: dict[str, Any]) -> dict[str, Any]:
            return {self._earlier.get(place, place): value for place, value in dict(known).items()}

        again = self._decision and self._decision.task_id == asks.answer["task_id"] and self._decided != asks.place
        return {
            "before": asdict(self.before) if self.before else None,
            "finished": named(self._finished),
            "drafts": named(self._drafts),
            "approved": named(self._approved),
            "rejected": named(self._rejected),
            "rounds": named(self._rounds),
            "asked": self._earlier.get(asks.place, asks.place),
            "places": self._earlier,
            "done": done,
            "skipped": len(self._decision.rounds) if again and self._decision else self._skipped,
        }

    def lost(self) -> list[str]:
        """List why outputs of tasks cannot be stored."""
        outputs = [output for known in self._by_place()[:-1] for output in [*known.values()]]
        return [problem for output in outputs if (problem := points.lost(output))]

    def rounds_of(self, task: Task | None) -> tuple[Round, ...] | None:
        """Return a task's earlier rounds; None if none of the Flow's methods started the task."""
        place = self._running.get(id(task))
        if place is None:
            return None
        return tuple(Round(**each) for each in self._rounds.get(place, ()))

    def _is_approval(self) -> bool:
        assert self._decision
        outcome = self._decision.outcome
        return outcome == APPROVE or (outcome is None and reads_like_approval(self._decision.feedback))

    def _settled(self, task: Task) -> TaskOutput | None:
        """Return the task's output if the task need not run; None if it must run."""
        run = METHOD.get()
        if run is None:
            return None
        place = self._running[id(task)] = _place(run, task)
        self._find_earlier(run.begin(_texts(task), json.dumps), place)
        if run.asked:
            raise run.asked
        is_over = place in self._finished or place in self._approved
        part = f"{place.partition('/')[2]} round {len(self.rounds_of(task) or ())}"
        journal.enter(run.method, part, _tools(task), is_over=is_over)
        if place in self._finished:
            return self._restored(task, place)
        self._unused.discard(place)
        if place in self._approved:
            return self._approve(task, place)
        if place in self._drafts:
            raise run.ask(place, self._drafts[place])
        self._caches.begin(place, _agents(task), self._rejected.get(place))
        watch_callbacks(task, crew_tasks.crew_of(task))
        return None

    def _restored(self, task: Task, place: str) -> TaskOutput:
        self._caches.put_back(self._finished[place], _agents(task))
        task.output = output = restored(task, self._finished[place])
        return output

    def _find_earlier(self, earlier: str, place: str) -> None:
        """Move a task's data stored by release 0.2.0, which identified tasks by their texts and count, to its place.

        Journal entries stay where they are, so that a run-once tool's call there is never taken for this task's.
        """
        with self._lock:
            self._earlier = {**{new: old for new, old in self._earlier.items() if old != earlier}, place: earlier}
        for known in self._by_place():
            if earlier in known:
                known[place] = known.pop(earlier)
        if earlier in self._unused:
            self._unused = {*self._unused, place} - {earlier}
        if self._decided == earlier:
            self._decided = place

    def _approve(self, task: Task, place: str) -> TaskOutput:
        self._finished[place] = self._approved.pop(place)
        output, crew = self._restored(task, place), crew_tasks.crew_of(task)
        callbacks = callbacks_of(task.callback, crew.task_callback) if crew else []
        finish(task, output, crew, callbacks, task.output_file)
        return output

    def _answered(self, task: Task, output: TaskOutput) -> NoReturn:
        run, place = METHOD.get(), self._running.get(id(task))
        if run is None or place is None:
            raise Fatal(OF_A_TASK)
        self._drafts[place] = self._stored(run, place, task, output)
        self._rejected.pop(place, None)
        is_like_answered = self._decision and self._drafts[place]["task_id"] == self._decision.task_id
        # A crew that started earlier may run in parallel with the answered one, which may not have started yet.
        if is_like_answered and self._decided in self._unused and _crew(place) not in self._begun:
            self._check_used(run.method)
        raise run.ask(place, self._drafts[place])

    def _done(self, task: Task, output: TaskOutput) -> None:
        run, place = METHOD.get(), self._running.get(id(task))
        if run is not None and place is not None:
            save(task, output, task.output_file)
            self._rejected.pop(place, None)  # its revision needed no review
            self._finished[place] = self._stored(run, place, task, output)

    def _stored(self, run: MethodRun, place: str, task: Task, output: TaskOutput) -> StoredOutput:
        began = task.start_time.timestamp() if task.start_time else time.time()
        record = stored(f"{run.method}.{_name(task)}", task, output, time.time() - began)
        with_results: StoredOutput = self._caches.with_results(record, _agents(task), _tools(task), of=place)
        return with_results

    def _over(self, method: str) -> None:
        """Forget the tasks of a finished method, because it may be called again."""
        self._check_used(method)
        self._forget(method)

    def _forget(self, method: str) -> None:
        self._unused = {place for place in self._unused if _method(place) != method}
        for known in self._by_place():
            for place in [place for place in list(known) if _method(place) == method]:
                del known[place]
        with self._lock:
            self._earlier = {new: old for new, old in self._earlier.items() if _method(new) != method}

    def _by_place(self) -> tuple[dict[str, Any], ...]:
        return self._finished, self._drafts, self._approved, self._rejected, self._rounds

    def _check_used(self, method: str) -> None:
        """Fail if the task whose question was answered has not run again."""
        if any(_method(place) == method for place in list(self._unused)):
            raise Fatal(
                f"The crew that the method {method!r} started is not the one whose question a person answered: "
                "its tasks and agents must have the same texts when the method runs again. Start the Flow again."
            )


@contextmanager
def _of_crew(crew: Crew) -> Iterator[None]:
    """Give a crew its place before any of its tasks begins, so that tasks of parallel crews cannot swap places."""
    run = METHOD.get()
    with holding(CREW, (_begin(run, crew.tasks, crew_tasks.agents_of(crew)), crew.tasks) if run else CREW.get()):
        yield


def _begin(run: MethodRun, tasks: list[Task], agents: list[Any]) -> str:
    roles = [[agent.role, agent.goal, agent.backstory] for agent in agents]
    return run.begin([[_texts(task) for task in tasks], roles])


def _texts(task: Task) -> list[Any]:
    return [task.name, task.description, task.expected_output]


def _place(run: MethodRun, task: Task) -> str:
    crew, tasks = CREW.get()
    position = next((position for position, each in enumerate(tasks) if each is task), None)
    if position is None:  # it runs without a crew
        return f"{_begin(run, [task], [task.agent] if task.agent else [])}/0"
    return f"{crew}/{position}"


@contextmanager
def _going_back() -> Iterator[None]:
    with journal.going_back(), tool_caches.going_back():
        yield


def _agents(task: Task) -> list[Any]:
    crew = crew_tasks.crew_of(task)
    return crew_tasks.agents_of(crew) if crew else list(filter(None, [task.agent]))


def _tools(task: Task) -> list[tuple[str, Any]]:
    crew = crew_tasks.crew_of(task)
    return list(crew_tasks.tools_of(crew.tasks if crew else [task], _agents(task)))


def _name(task: Task) -> str:
    crew = crew_tasks.crew_of(task)
    named = named_tasks(crew.tasks) if crew else {}
    return next((name for name, each in named.items() if each is task), task.name or "task")


def _crew(place: str) -> str:
    return place.rpartition("/")[0]


def _method(place: str) -> str:
    return place.split("/")[0]
