"""Runs a Flow from its last question to its end, or to the next method that asks a person a question.

A gate ends only its own branch: parallel branches continue to their own end or gate. Then all of the Flow's data is
stored in the gate's state, except the Flow's own state (see `flow_state`). If several gates are waiting, their
questions are asked one after another. What would not come back the same (see `codec`) ends the Flow before anybody is
asked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crewai.flow import HumanFeedbackPending, PendingFeedbackContext

from crew_service.crewai import codec, flow_values, journal, task_outputs
from crew_service.crewai.errors import Asked, Fatal
from crew_service.crewai.flow_branches import Branches, Question
from crew_service.crewai.flow_persistence import without_pauses
from crew_service.crewai.flow_replay import Ended, Replay, answer_point
from crew_service.crewai.flow_source import FlowSource
from crew_service.crewai.flow_state import FlowState
from crew_service.crewai.internals import flow_methods, step_events
from crew_service.crewai.nested_tasks import APPROVE, METHOD, REVISE, NestedTasks, TaskAsks
from crew_service.crewai.usage import TokenMeter
from crew_service.engine.crew import (
    Completed,
    CrewFailed,
    Job,
    PendingReview,
    Report,
    TaskDone,
    TaskOutput,
    TaskStarted,
)

LONGEST_SHOWN = 8 * 1024 * 1024  # characters of a state that a question shows
NOT_ASKED = (
    "{!r} asks a person, but nobody was asked: another process continues the Flow after the answer, and {}. Create it "
    "where it is used, and keep it out of the Flow's state and of return values."
)


class FlowRun:
    def __init__(self, source: FlowSource, job: Job, report: Report) -> None:
        self._nested = NestedTasks(job.decision, [task["task_id"] for task in job.done])
        self._seconds: dict[str, float] = job.decision.state.get("seconds", {}) if job.decision else {}
        self._asks: dict[int, TaskAsks] = {}
        # Calls to one method share a journal, which is erased when a call ends, so they take turns.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._job = job = replace(job, decision=self._nested.before, inputs=source.inputs_of(job))
        self._report = TokenMeter(report, lambda task_id: run.method if (run := METHOD.get()) else "")
        self._name = source.name
        self._stored: dict[str, Any] = job.decision.state if job.decision else {}
        since = job.done[self._stored.get("done", 0) :]
        self._answer_is_stored = bool(job.decision and since)
        self._done = len(job.done)
        self._flow = source.new(job.inputs)
        self._packages = codec.loaded_packages()
        self._state = FlowState(self._flow, job.flow_state(), self._packages)
        self._lost: list[str] = []  # why return values cannot be stored, since the last question
        self._own_persistence = self._flow.persistence
        waiting = [Question.of(stored, _decoded) for stored in self._stored.get("waiting", [])]
        question = waiting[0] if waiting else None
        self._asked = question.context if question else None
        self._replay = Replay(since, job.execution_id, self._state, self._asked)
        self._branches = Branches(self._flow, question, waiting[1:], self._answered)

    def run(self) -> Completed | PendingReview:
        # The model that maps a person's text to an outcome is called for each question, even if the text is the same.
        journal.enter("", f"after {self._stored.get('done', 0)}")
        self._prepare()
        try:
            result = self._resume(self._asked) if self._asked else self._kickoff()
        finally:
            self._report.tell()
        # If a question is waiting, ignore the return value: a Flow may override `kickoff` and return anything.
        if waiting := self._branches.waiting:
            asks = next((self._asks[id(each.context)] for each in waiting if id(each.context) in self._asks), None)
            if asks or journal.question():  # its method runs again, after the finished ones are replayed
                problems = [*self._lost, *self._nested.lost(), *filter(None, [self._state.problem])]
                self._refuse_to_ask(waiting[0].context.method_name, problems)
            if not asks and journal.question():
                return Completed("")  # the call's question replaces it
            return self._pending_in_method(asks) if asks else self._pending(waiting)
        return Completed(flow_values.text(result), flow_values.json_object(result))

    def _prepare(self) -> None:
        flow = self._flow
        flow.stream = False
        flow_methods.set_persistence(flow, without_pauses(self._own_persistence))
        flow_methods.add_inputs_by_name(flow)
        self._branches.separate()
        flow_methods.replace(flow, "_execute_method", self._reported)
        flow_methods.replace(flow, "_run_human_feedback_step", self._asking)
        flow_methods.replace(flow, "_finalize_human_feedback", self._decided)
        flow_methods.replace(flow, "_persist_method_completion", self._saved)
        flow_methods.set_feedback_provider(_Asking(flow))
        self._nested.watch()
        journal.keep_branches()

    def _kickoff(self) -> Any:
        if self._job.restore_from:
            self._restore(self._job.restore_from)
        flow_methods.stamp(self._flow, self._job.execution_id)
        return self._flow.kickoff(inputs=dict(self._job.inputs))

    def _restore(self, state_id: str) -> None:
        state = self._own_persistence.load_state(state_id) if self._own_persistence else None
        if not state:
            reason = "has no state with that id" if self._own_persistence else "has no @persist"
            raise CrewFailed(f"The Flow cannot start from the state {state_id}: it {reason}.")
        flow_methods.restore_state(self._flow, state)

    def _resume(self, gate: PendingFeedbackContext) -> Any:
        assert self._job.decision
        if "state" in self._stored:  # by release 0.2.0
            flow_methods.restore_state(self._flow, self._stored["state"])
        elif not self._state.is_kept:
            reason = self._state.problem or "its state was not kept"
            raise CrewFailed(f"The Flow cannot continue after the answer: {reason}. Start the Flow again.")
        self._replay.begin(self._flow)
        flow_methods.stamp(self._flow, self._job.execution_id)
        flow_methods.remember(self._flow, self._stored["memory"], _decoded)
        flow_methods.wait_at(self._flow, gate)
        # CrewAI learns nothing from an empty text.
        feedback = "" if self._replay.answer else self._job.decision.feedback
        with step_events.dropped(self._is_repeated):
            return self._flow.resume(feedback)

    def _reported(self, original: flow_methods.AsyncCall) -> flow_methods.AsyncCall:
        """Report the start and end of each method; do not rerun one that finished before a crash."""

        async def execute(name: str, method: Any, *args: Any, **values: Any) -> Any:
            async with self._turns[name]:
                self._replay.begin(self._flow)
                async with self._replay.turn(name) as earlier:
                    if not earlier:
                        return await in_turn(name, method, *args, **values)
                    flow_methods.note_end(self._flow, name, earlier[0].result, earlier[0].answer)
                    if self._replay.has_new_id:
                        await flow_methods.save(self._flow, name)
                    return earlier[0].result, None  # no event, which what follows would name as its cause

        async def in_turn(name: str, method: Any, *args: Any, **values: Any) -> Any:
            await asyncio.to_thread(self._report, TaskStarted(name, self._name))
            began, answers = time.monotonic(), len(self._flow.human_feedback_history)
            try:
                with self._nested.method(name):
                    finished = await original(name, method, *args, **values)
            except (TaskAsks, Asked) as asks:
                question = flow_methods.question_in(self._flow, name)
                if isinstance(asks, TaskAsks):  # a call's question is in the journal
                    self._asks[id(question)] = asks
                raise HumanFeedbackPending(context=question) from None
            finally:
                self._seconds[name] = round(time.monotonic() - began, 3)
            result = finished[0]
            answer = flow_methods.answer_in(self._flow, name, answers)
            point = Ended(result, None if answer is result else answer).stored(self._packages, name)
            self._lost += [part["problem"] for part in point.values() if "problem" in part]
            await self._tell({**self._record(name, result), "point": point}, self._state.changed())
            return finished

        return execute

    def _asking(self, original: flow_methods.AsyncCall) -> flow_methods.AsyncCall:
        """Stop at the question before CrewAI creates a model: a chosen outcome needs none."""

        async def ask(name: str, feedback: Any, output: Any, *args: Any, **values: Any) -> Any:
            if feedback.learn or feedback.provider is not None:
                return await original(name, feedback, output, *args, **values)
            raise HumanFeedbackPending(context=flow_methods.gate(self._flow, name, feedback, output))

        return ask

    def _decided(self, original: flow_methods.AsyncCall) -> flow_methods.AsyncCall:
        """Accept a chosen outcome directly; pass free text to the model, as CrewAI does."""

        async def finalize(*args: Any, **values: Any) -> Any:
            if self._replay.answer:
                flow_methods.note_answer(self._flow, self._replay.answer)
                return self._replay.answer
            decision = self._job.decision
            is_asked = self._asked and values.get("method_name") == self._asked.method_name
            chosen = decision.outcome if decision and is_asked else None
            if chosen is None:
                return await original(*args, **values)
            result = await original(**{**values, "emit": None, "default_outcome": None})
            result.outcome = chosen
            return result

        return finalize

    def _saved(self, original: Callable[..., None]) -> Callable[..., None]:
        def save(*args: Any, **values: Any) -> None:
            if not self._replay.answer or self._replay.has_new_id:
                original(*args, **values)

        return save

    def _is_repeated(self, source: Any, event: Any) -> bool:
        answer, method = self._replay.answer, getattr(event, "method_name", None)
        return answer is not None and source is self._flow and method == answer.method_name

    async def _answered(self) -> None:
        assert self._asked
        self._replay.answer = None
        if not self._answer_is_stored:
            record = self._record(self._asked.method_name, self._asked.method_output)
            await self._tell({**record, "point": answer_point(self._flow.human_feedback_history[-1])})

    async def _tell(self, record: TaskOutput, state: str | None = None) -> None:
        self._done += 1
        await asyncio.to_thread(self._report, TaskDone(record, state))

    def _record(self, name: str, result: Any) -> TaskOutput:
        return task_outputs.of_value(name, self._name, result, self._seconds.get(name, 0.0))

    def _refuse_to_ask(self, method: str, problems: list[str]) -> None:
        if problems:
            raise Fatal(NOT_ASKED.format(method, problems[0]))

    def _pending(self, waiting: list[Question]) -> PendingReview:
        context = waiting[0].context
        flow_state = self._state.changed()
        self._refuse_to_ask(context.method_name, list(filter(None, [self._state.problem])))

        def keep(value: Any, method: str) -> str:
            stored = flow_values.stored(value, self._packages, method)
            self._refuse_to_ask(context.method_name, list(filter(None, [stored.get("problem")])))
            return str(stored["kept"])

        state = {
            "waiting": [question.to_dict(keep) for question in waiting],
            "memory": flow_methods.memory(self._flow, keep),
            "done": self._done,
            "seconds": self._seconds,
        }
        return PendingReview(
            context.method_name,
            flow_values.text(context.method_output),
            self._name,
            state,
            question=context.message,
            outcomes=list(context.emit or ()),
            details={
                "flow_class": context.flow_class.rpartition(".")[2],
                "default_outcome": context.default_outcome,
                "metadata": codec.shown(context.metadata),
                "state": self._shown(),
            },
            flow_state=flow_state,
        )

    def _pending_in_method(self, asks: TaskAsks) -> PendingReview:
        """Ask as a Flow does, so that every kind of answer is accepted; other waiting gates rerun, as after a crash."""
        answer = asks.answer
        task = answer["task_id"]
        state = {"nested": self._nested.state(asks, self._done), "seconds": self._seconds}
        return PendingReview(
            task,
            answer["output"],
            answer["agent"],
            state,
            question=f"Do you approve the answer from the task {task.partition('.')[2]}?",
            outcomes=[APPROVE, REVISE],
            details={
                "flow_class": self._name,
                "default_outcome": None,
                "metadata": {},
                "state": self._shown(),
            },
        )

    def _shown(self) -> Any:
        """Return the state as CrewAI shows it; only its id if it is too large to be sent."""
        plain = codec.shown(self._flow.state)
        return plain if len(json.dumps(plain)) <= LONGEST_SHOWN else {"id": self._job.execution_id}


class PlainFlowRun:
    """Runs a Flow by CrewAI's public API only, from its beginning to its end; nobody is asked anything."""

    def __init__(self, source: FlowSource, job: Job, report: Report) -> None:
        if job.decision or job.done or job.restore_from:
            off = flow_methods.off()
            raise CrewFailed(f"The Flow cannot continue: {off and off.reason}. Start it again.")
        self._job = job = replace(job, inputs=source.inputs_of(job))
        self._report = TokenMeter(report, lambda task_id: "")
        self._flow = source.new(job.inputs)

    def run(self) -> Completed:
        self._flow.stream = False
        flow_methods.set_feedback_provider(_NotAsking())
        flow_methods.stamp(self._flow, self._job.execution_id)
        try:
            # With inputs, even none of them, CrewAI checks all defaults.
            result = self._flow.kickoff(inputs=dict(self._job.inputs) or None)
        finally:
            self._report.tell()
        return Completed(flow_values.text(result), flow_values.json_object(result))


def _decoded(text: str) -> Any:
    try:
        return codec.decoded(text)
    except Exception as error:  # raised by a user's class
        reason = f"a stored value cannot be restored ({error})"
        raise CrewFailed(f"The Flow has changed: {reason}. Start it again.") from None


class _Asking:
    """Asks on CrewAI's behalf if the question did not stop the method earlier: with `learn` and in nested Flows."""

    def __init__(self, flow: Any) -> None:
        self._flow = flow

    def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> str:
        if flow is not self._flow:
            raise Fatal(
                "A Flow started by a method asks a person for feedback, but only the served Flow itself can do so."
            )
        raise HumanFeedbackPending(context=context)


class _NotAsking:
    """Fails on CrewAI's behalf: this Flow cannot pause."""

    def request_feedback(self, *_: Any, **__: Any) -> str:
        off = flow_methods.off()
        raise Fatal(f"A Flow's method asks a person, but Flows cannot pause: {off and off.reason}.")
