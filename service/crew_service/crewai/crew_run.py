"""Runs a crew from its last stored task to its end, or to the next task that needs a person.

Its callback stops a gated task after its answer is validated, converted and passed through all hooks, but before its
own callbacks run and its file is written; both happen after approval. The callback records the answer, so the return
value of `kickoff` does not matter. This module patches nothing in CrewAI: hooks, callbacks and outputs are public.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from crewai import Agent, Crew, Process, Task, TaskOutput
from crewai.hooks import InterceptionPoint
from crewai.tasks.conditional_task import ConditionalTask

from crew_service.crewai import execution_files, flow_values, hooks, journal, points, prepared_calls, usage
from crew_service.crewai.approved import finish
from crew_service.crewai.callbacks import Callback, call, callbacks_of, listen_to_steps
from crew_service.crewai.description import named_tasks
from crew_service.crewai.errors import Asked, Fatal, Interrupted
from crew_service.crewai.feedback import OF_A_TASK, StoredFeedback
from crew_service.crewai.internals import crew_tasks, human_input, step_events
from crew_service.crewai.internals.crew_tasks import CONTINUE
from crew_service.crewai.task_outputs import edited, restored, save, stored
from crew_service.crewai.tool_caches import ToolCaches
from crew_service.crewai.usage import TokenMeter
from crew_service.engine.crew import (
    CHANGED_DECISION,
    Completed,
    CrewFailed,
    Job,
    PendingReview,
    Progress,
    ReviewDecision,
    Round,
    TaskDone,
    TaskStarted,
)
from crew_service.engine.crew import TaskOutput as StoredOutput

TASK: ContextVar[str] = ContextVar("the running task", default="")


class GateReached(Interrupted):
    """A task that needs a review has produced its answer, so the crew stops here."""

    def __init__(self, task: Task, output: TaskOutput) -> None:
        super().__init__("a person must decide on this answer")
        self.task = task
        self.output = output


class CrewRun:
    def __init__(self, crew: Crew, job: Job, report: Callable[[Progress], None]) -> None:
        self._crew = crew
        self._inputs = job.inputs
        self._files = execution_files.of_kickoff(job)
        self._tasks = named_tasks(crew.tasks)
        self._names = {id(task): name for name, task in self._tasks.items()}
        self._by_id = {str(task.id): name for name, task in self._tasks.items()}
        self._report = TokenMeter(
            report, self._task_of, usage.models_of(crew_tasks.agents_of(crew), crew.manager_llm, crew.planning_llm)
        )
        job.check_tasks(list(self._tasks))
        self._finished = TaskOrder(self._tasks, job.done, self._report)
        over = {output["task_id"] for output in job.done}
        self._gate = job.decision if job.decision and job.decision.task_id not in over else None
        if self._gate and "task" not in self._gate.state:  # it was a Flow's
            raise CrewFailed(CHANGED_DECISION.format(self._gate.task_id))
        self._state: dict[str, Any] = job.decision.state if job.decision else {}
        self._common = crew.task_callback
        self._own: dict[int, Callback | None] = {}  # by task: its own callback
        self._finishers: dict[int, Callback] = {}  # likewise: what CrewAI calls instead
        approved = [self._gate.state["task"]] if self._gate and self._gate.is_approve else []
        self._caches = ToolCaches([*job.done, *approved])
        self._reached: GateReached | None = None

    def run(self) -> Completed | PendingReview:
        self._prepare()
        if self._gate:
            self._go_on_from(self._gate)
        if any(task.output for task in self._crew.tasks):
            self._keep_contexts()
        try:
            with self._hooked():
                result = self._crew.kickoff(inputs=dict(self._inputs), **self._files)
        except Asked:
            self._finished.check_kept()
            raise
        except BaseException:
            if self._reached is None:
                raise
        finally:
            self._report.tell()
        if self._reached:
            step_events.flush()
            return self._waiting(self._reached)
        self._finished.pass_over()
        return Completed(flow_values.text(result), flow_values.json_object(result))

    def _prepare(self) -> None:
        crew = self._crew
        crew.stream = False
        crew.after_kickoff_callbacks = [_or_given(hook) for hook in crew.after_kickoff_callbacks]
        for task in crew.tasks:
            self._take_callbacks(task)
        listen_to_steps(crew_tasks.agents_of(crew), self._report, crew.step_callback)
        if self._state.get("descriptions"):
            crew.planning = False
        if not CONTINUE.missing:
            crew.checkpoint_kickoff_event_id = "stored"
        elif any(task.output for task in crew.tasks):
            raise CrewFailed(f"The crew cannot continue after its finished tasks: {CONTINUE.reason}. Start it again.")

    def _take_callbacks(self, task: Task) -> None:
        """Call a task's callbacks from now on, also those that a hook has set since the last call."""
        crew = self._crew
        self._common, crew.task_callback = crew.task_callback or self._common, None
        if task.callback is not self._finishers.get(id(task), self):
            self._own[id(task)] = task.callback
            task.callback = self._finishers[id(task)] = self._finisher(task)

    def _go_on_from(self, gate: ReviewDecision) -> None:
        if not gate.is_approve:
            self._without_planning(self._tasks[gate.task_id])
            return
        task = self._tasks[gate.task_id]
        output = edited(task, gate.state["task"], gate.output)
        task.output = restored(task, output)
        self._crew.before_kickoff_callbacks.append(lambda inputs: self._settle(task, output, inputs))

    def _keep_contexts(self) -> None:
        """Give each async task without `context=` what it gets in an undisturbed run: no earlier outputs.

        CrewAI would give it the last output of the tasks that are skipped because they are finished.
        """
        for task in self._crew.tasks:
            if task.async_execution and not isinstance(task.context, list):
                task.context = None

    def _settle(self, task: Task, approved: StoredOutput, inputs: dict[str, Any]) -> dict[str, Any]:
        assert task.output
        with journal.going_back():
            journal.enter(approved["task_id"], "approved", self._tools())
            self._take_callbacks(task)
            finish(task, task.output, self._crew, self._callbacks_of(task), self._state.get("output_file"))
            self._finished.add(approved)
        return inputs

    def _without_planning(self, task: Task) -> None:
        """Turn off planning: as with CrewAI's own feedback, a revision continues from the answer without a new plan."""
        agent = self._crew.manager_agent if self._crew.process == Process.hierarchical else task.agent
        if isinstance(agent, Agent):
            agent.planning, agent.planning_config = False, None

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        human_input.ask(StoredFeedback(self._rounds_of))
        with ExitStack() as ends:
            ends.callback(hooks.register(InterceptionPoint.PRE_STEP, self._starting))
            yield

    def _rounds_of(self, task: Task | None) -> tuple[Round, ...] | None:
        """Return a task's rounds so far if it is the revised one; None for a task of another crew."""
        if not any(task is each for each in self._crew.tasks):
            return None
        revised = self._gate if self._gate and not self._gate.is_approve else None
        return revised.rounds if revised and task is self._tasks[revised.task_id] else ()

    def _starting(self, step: Any) -> None:
        if step.kind != "task":
            return
        name = self._names.get(id(step.task))
        if name is None:
            if step.task.human_input:
                raise Fatal(OF_A_TASK)
            return
        if self._reached:
            raise self._reached
        self._finished.pass_over(until=name)
        self._take_callbacks(step.task)  # a hook before the kickoff may have set others
        if planned := self._state.get("descriptions"):
            step.task.description = planned[name]
        self._report(TaskStarted(name, (step.agent_role or "").strip()))
        TASK.set(name)
        revised = self._gate if self._gate and self._gate.task_id == name and not self._gate.is_approve else None
        self._caches.begin(name, crew_tasks.agents_of(self._crew), revised.state["task"] if revised else None)
        journal.enter(name, f"round {len(revised.rounds)}" if revised else "", self._tools())

    def _tools(self) -> prepared_calls.Tools:
        return crew_tasks.tools_of(self._crew.tasks, crew_tasks.agents_of(self._crew))

    def _task_of(self, task_id: str | None) -> str:
        return self._by_id.get(task_id or "", TASK.get())

    def _finisher(self, task: Task) -> Callable[[TaskOutput], None]:
        def finish(output: TaskOutput) -> None:
            if task.human_input:
                self._reached = GateReached(task, output)
                raise self._reached
            for callback in self._callbacks_of(task):
                call(callback, output)
            # CrewAI writes the file later: if the process died before that, the task would not rerun.
            save(task, output, task.output_file)
            self._finished.add(self._stored(task, output))

        return finish

    def _callbacks_of(self, task: Task) -> list[Callback]:
        return callbacks_of(self._own[id(task)], self._common)

    def _stored(self, task: Task, output: TaskOutput) -> StoredOutput:
        name = self._names[id(task)]
        seconds = (datetime.now() - task.start_time).total_seconds() if task.start_time else 0.0
        if self._gate and self._gate.task_id == name:
            seconds += self._state["task"]["execution_time"]
        record = stored(name, task, output, seconds)
        if task is self._crew.tasks[-1] and not task.human_input:
            return record  # no later task needs the results of its tools
        with_results: StoredOutput = self._caches.with_results(record, crew_tasks.agents_of(self._crew), self._tools())
        return with_results

    def _waiting(self, reached: GateReached) -> PendingReview:
        answer = self._stored(reached.task, reached.output)
        self._finished.check_kept(answer)
        state: dict[str, Any] = {"task": answer}
        if reached.task.output_file:
            state["output_file"] = reached.task.output_file
        if plans := self._plans():
            state["descriptions"] = plans
        return PendingReview(answer["task_id"], answer["output"], answer["agent"], state)

    def _plans(self) -> dict[str, str] | None:
        """Return the task descriptions with the planner's additions, from this segment or an earlier one."""
        earlier: dict[str, str] | None = self._state.get("descriptions")
        if earlier or not self._crew.planning:
            return earlier
        return {name: task.description for name, task in self._tasks.items()}


class TaskOrder:
    """Reports finished tasks in the crew's order, so that the stored tasks are always the crew's first tasks.

    CrewAI continues from the first task without an output, and reruns any later task that finished in parallel.
    """

    def __init__(self, tasks: dict[str, Task], done: list[StoredOutput], report: Callable[[Progress], None]) -> None:
        for output in done:
            if problem := points.lost(output):
                raise CrewFailed(f"The crew cannot continue in a new process: {problem}. Start it again.")
        self._tasks = tasks
        self._kept = list(done)
        self._missing = list(tasks)[len(done) :]
        self._early: dict[str, StoredOutput] = {}
        self._report = report
        self._lock = threading.Lock()
        for task in tasks.values():
            task.output = None  # only what this execution has stored counts as finished
        for output in done:
            task = tasks[output["task_id"]]
            task.output = restored(task, output)

    def add(self, output: StoredOutput) -> None:
        with self._lock:
            self._early[output["task_id"]] = output
            while self._missing and self._missing[0] in self._early:
                output = self._early.pop(self._missing.pop(0))
                self._kept.append(output)
                self._report(TaskDone(output))

    def check_kept(self, *waiting: StoredOutput) -> None:
        """Fail before a person is asked if the process that continues would lack a part of an output."""
        if problem := next(filter(None, map(points.lost, (*self._kept, *waiting))), None):
            raise Fatal(
                f"A task asks a person, but nobody was asked: another process continues the crew after the answer, "
                f"and {problem}."
            )

    def pass_over(self, until: str | None = None) -> None:
        """Finish the conditional tasks before `until` (default: all) that CrewAI has skipped: they have no output."""
        for task_id, task in self._tasks.items():
            if task_id == until:
                return
            if isinstance(task, ConditionalTask) and task.output is None:
                task.output = task.get_skipped_task_output()
                self.add(stored(task_id, task, task.output, 0.0))


def _or_given(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let a hook that returns nothing, as one that only reports the answer, leave the answer as it is."""

    def hooked(inputs: Any) -> Any:
        answer = call(hook, inputs)
        return inputs if answer is None else answer

    return hooked
