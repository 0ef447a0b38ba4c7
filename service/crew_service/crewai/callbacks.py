"""Runs the user's callbacks when and how CrewAI would run them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from crewai import Agent, Crew, Task

from crew_service.crewai import journal
from crew_service.crewai.coroutines import awaited
from crew_service.engine.crew import LONGEST_IN_STEP, Progress, StepDone

Callback = Callable[[Any], Any]


def callbacks_of(own: Callback | None, common: Callback | None) -> list[Callback]:
    """Return the callbacks that CrewAI runs after a task: the task's own, then the crew's if it differs."""
    return [callback for callback in (own, common if common != own else None) if callback]


def call(callback: Callback, argument: Any) -> Any:
    with _noted():
        result = callback(argument)
        return awaited(result) if inspect.iscoroutine(result) else result


@contextmanager
def _noted() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        journal.note_outside(error)
        raise


def listen_to_steps(agents: Iterable[Any], report: Callable[[Progress], None], common: Callback | None = None) -> None:
    """Report the agents' steps; `common` is the callback of agents that have none."""
    for agent in filter(_has_steps, agents):
        agent.step_callback = NewSteps(_listener(agent.step_callback or common, report))


@contextmanager
def working(agent: Agent) -> Iterator[None]:
    """Attribute calls to an agent that works within this block, and limit its step callback to new steps."""
    callers = (agent, getattr(agent, "agent_executor", None))  # which has had its own copy since a crew's kickoff
    for caller in filter(None, callers):
        if caller.step_callback and not isinstance(caller.step_callback, NewSteps):
            caller.step_callback = NewSteps(caller.step_callback)
    with journal.works(agent):
        yield


def watch_callbacks(task: Task, crew: Crew | None) -> None:
    """Watch the callbacks that CrewAI calls after a task that is about to run; repeated calls are harmless."""
    for owner, name in ((task, "callback"), (crew, "task_callback")):
        own = getattr(owner, name, None)
        if own and not isinstance(own, Watched):
            setattr(owner, name, Watched(own))


class Watched:
    """Wraps a callback that CrewAI calls: its failure does not mean that an answer of the crew was rejected.

    It is no dataclass: `Agent.copy` would make a dict of it.
    """

    def __init__(self, own: Callback) -> None:
        self._own = own

    def __call__(self, argument: Any) -> Any:
        with _noted():
            result = self._own(argument)
        return self._awaited(result) if inspect.iscoroutine(result) else result

    async def _awaited(self, result: Coroutine[Any, Any, Any]) -> Any:
        with _noted():
            return await result


class NewSteps(Watched):
    """Skips steps from the journal: the callback received them in the last attempt."""

    def __call__(self, answer: Any) -> Any:
        return None if journal.is_replaying() else super().__call__(answer)


def _has_steps(agent: Any) -> bool:
    return isinstance(agent, Agent)


def _listener(own: Callback | None, report: Callable[[Progress], None]) -> Callback:
    def step(answer: Any) -> None:
        if hasattr(answer, "thought"):  # not the bare result that CrewAI reports before the action
            report(_step(answer))
        if own:
            call(own, answer)

    return step


def _step(answer: Any) -> StepDone:
    if not hasattr(answer, "tool"):  # the agent's last
        return StepDone(thought=answer.thought[:LONGEST_IN_STEP], result=str(answer.output)[:LONGEST_IN_STEP])
    return StepDone(
        thought=answer.thought[:LONGEST_IN_STEP],
        tool=answer.tool,
        tool_input=str(answer.tool_input)[:LONGEST_IN_STEP],
        result=str(answer.result or "")[:LONGEST_IN_STEP],
    )
