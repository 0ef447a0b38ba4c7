"""Tasks of crews started by a Flow's method: each may ask a person, and no finished task runs again.

A question ends the method, whatever the method catches or returns. With the answer, the method restarts, and finished
tasks of its crews return their stored outputs. A task is identified by its method, its texts, and how often the method
has run it before.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from crewai import Task, TaskOutput
from crewai.core.providers.human_input import set_provider
from crewai.hooks import InterceptionPoint, register_hook
from crewai.hooks.contexts import StepContext

from crew_service.crewai import internals, journal
from crew_service.crewai.callbacks import call, callbacks_of, pass_over_replayed_steps
from crew_service.crewai.channel import decision_from
from crew_service.crewai.description import named_tasks
from crew_service.crewai.errors import Fatal, Interrupted
from crew_service.crewai.feedback import NOT_STOPPED, OF_A_TASK, NestedFeedback
from crew_service.crewai.task_outputs import restored, save, stored
from crew_service.engine.approval import reads_like_approval
from crew_service.engine.crew import CrewFailed, ReviewDecision, Round
from crew_service.engine.crew import TaskOutput as StoredOutput

APPROVE, REVISE = "approve", "revise"


class TaskAsks(Interrupted):
    """A task that needs a review has its answer, so the method that started its crew stops here."""

    def __init__(self, place: str, answer: StoredOutput) -> None:
        super().__init__("a person decides on this answer")
        self.place, self.answer = place, answer


@dataclass
class MethodRun:
    """One call of a method: how often each task ran in it, and the question that ends it."""

    method: str
    counts: Counter[str] = field(default_factory=Counter)
    asked: TaskAsks | None = None

    def ask(self, place: str, answer: StoredOutput) -> TaskAsks:
        """Return the exception to raise; if several tasks ask at once, the first one wins."""
        self.asked = self.asked or TaskAsks(place, answer)
        return self.asked


METHOD: ContextVar[MethodRun | None] = ContextVar("the method that runs", default=None)


class NestedTasks:
    """`before`: the decision on the Flow's own last question, from which it continues with its finished methods."""

    def __init__(self, gate: ReviewDecision | None) -> None:
        known: dict[str, Any] = gate.state.get("nested", {}) if gate else {}
        self.before = (decision_from(known["before"]) if known["before"] else None) if known else gate
        self._finished: dict[str, StoredOutput] = known.get("finished", {})
        self._drafts: dict[str, StoredOutput] = known.get("drafts", {})
        self._decision = gate if known else None
        self._decided: str | None = known.get("asked")
        self._unused = self._decided  # until its task runs
        self._approved: dict[str, StoredOutput] = known.get("approved", {})
        if self._decided and self._is_approval():
            self._approved[self._decided] = self._drafts.pop(self._decided)
        self._skipped: int = known.get("skipped", 0)
        self._running: dict[int, str] = {}

    def watch(self) -> None:
        """Let nested tasks of this process ask and be replayed from now on."""
        internals.wrap_tasks(journal.going_back, self._settled, self._done)
        register_hook(InterceptionPoint.POST_STEP, self._answered)
        set_provider(NestedFeedback(self.rounds_of))

    @contextmanager
    def method(self, name: str) -> Iterator[None]:
        """Wrap a call of a method; raise `TaskAsks` if a task has asked, whatever the method did with it."""
        run = MethodRun(name)
        token = METHOD.set(run)
        journal.enter(name)
        try:
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
        self._over(name)

    def state(self, asks: TaskAsks) -> dict[str, Any]:
        """Return the state from which a run with the answer continues."""
        again = self._decision and self._decision.task_id == asks.answer["task_id"] and self._decided != asks.place
        return {
            "before": asdict(self.before) if self.before else None,
            "finished": self._finished,
            "drafts": self._drafts,
            "approved": self._approved,
            "asked": asks.place,
            "skipped": len(self._decision.rounds) if again and self._decision else self._skipped,
        }

    def rounds_of(self, task: Task | None) -> tuple[Round, ...] | None:
        """Return the earlier rounds of a task; None for a task that no method of the Flow started."""
        place = self._running.get(id(task))
        if place is None:
            return None
        revised = self._decision if place == self._decided and place not in self._approved else None
        return revised.rounds[self._skipped :] if revised else ()

    def _is_approval(self) -> bool:
        assert self._decision
        outcome = self._decision.outcome
        return outcome == APPROVE or (outcome is None and reads_like_approval(self._decision.feedback))

    def _settled(self, task: Task) -> TaskOutput | None:
        """Return the output of a task that need not run; None for one that must run."""
        run = METHOD.get()
        if run is None:
            return None
        if run.asked:
            raise run.asked
        place = self._running[id(task)] = _place(run, task)
        journal.enter(run.method, f"{place.partition('/')[2]} round {len(self.rounds_of(task) or ())}")
        if place in self._finished:
            task.output = _restored(task, self._finished[place])
            return task.output
        if place == self._unused:
            self._unused = None
        if place in self._approved:
            return self._approve(task, place)
        if place in self._drafts and place != self._decided:
            raise run.ask(place, self._drafts[place])
        if crew := internals.crew_of(task):
            pass_over_replayed_steps(crew)
        return None

    def _approve(self, task: Task, place: str) -> TaskOutput:
        """Do what CrewAI does after a task's answer, now that it is approved."""
        self._finished[place] = self._approved.pop(place)
        task.output = output = _restored(task, self._finished[place])
        crew = internals.crew_of(task)
        for callback in callbacks_of(crew, task) if crew else []:
            call(callback, output)
        if task.output_file:
            save(output, task.output_file, make_directory=bool(task.create_directory))
        return output

    def _answered(self, step: StepContext) -> None:
        run, place = METHOD.get(), self._running.get(id(step.task))
        if step.kind != "task" or not step.task.human_input:
            return
        if run is None or place is None:
            raise Fatal(OF_A_TASK)
        self._drafts[place] = self._stored(run, step.task, step.output)
        if self._decision and self._drafts[place]["task_id"] == self._decision.task_id:
            self._check_used(run.method)
        raise run.ask(place, self._drafts[place])

    def _done(self, task: Task, output: TaskOutput) -> None:
        run, place = METHOD.get(), self._running.get(id(task))
        if task.human_input:  # the hook did not stop it: someone cleared CrewAI's hooks
            raise Fatal(NOT_STOPPED)
        if run is not None and place is not None:
            self._finished[place] = self._stored(run, task, output)

    def _stored(self, run: MethodRun, task: Task, output: TaskOutput) -> StoredOutput:
        began = task.start_time.timestamp() if task.start_time else time.time()
        return stored(f"{run.method}.{_name(task)}", output, time.time() - began)

    def _over(self, method: str) -> None:
        """Forget the tasks of a finished method, since it may be called again."""
        self._check_used(method)
        for kept in (self._finished, self._drafts, self._approved):
            for place in [place for place in kept if _method(place) == method]:
                del kept[place]

    def _check_used(self, method: str) -> None:
        """Fail unless the answered task has run again."""
        if self._unused and _method(self._unused) == method:
            raise Fatal(
                f"The crew that the method {method!r} started is not the one that a person has answered: its "
                "tasks must have the same descriptions when the method runs again. Start it again."
            )


def _restored(task: Task, output: StoredOutput) -> TaskOutput:
    try:
        return restored(task, output)
    except CrewFailed as failure:  # the method could catch it
        raise Fatal(str(failure)) from None


def _place(run: MethodRun, task: Task) -> str:
    texts = json.dumps([task.name, task.description, task.expected_output, *journal.enclosing()])
    known = hashlib.sha256(texts.encode()).hexdigest()[:16]
    run.counts[known] += 1
    return f"{run.method}/{known}/{run.counts[known]}"


def _name(task: Task) -> str:
    crew = internals.crew_of(task)
    named = named_tasks(crew) if crew else {}
    return next((name for name, each in named.items() if each is task), task.name or "task")


def _method(place: str) -> str:
    return place.split("/")[0]
