"""Runs the user's callbacks when and how CrewAI would run them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from crewai import Agent, Crew

from crew_service.crewai import journal
from crew_service.crewai.coroutines import awaited
from crew_service.crewai.internals import crew_tasks
from crew_service.engine.crew import LONGEST_IN_STEP, Progress, StepDone

Callback = Callable[[Any], Any]


def callbacks_of(own: Callback | None, common: Callback | None) -> list[Callback]:
    """Return the callbacks that CrewAI runs after a task: the task's own, then the crew's if it differs."""
    return [callback for callback in (own, common if common != own else None) if callback]


def call(callback: Callback, argument: Any) -> Any:
    try:
        result = callback(argument)
        return awaited(result) if inspect.iscoroutine(result) else result
    except Exception as error:
        journal.note_outside(error)
        raise


def listen_to_steps(agents: Iterable[Any], report: Callable[[Progress], None], common: Callback | None = None) -> None:
    """Report the agents' steps; `common` is the callback of agents that have none."""
    for agent in filter(_has_steps, agents):
        agent.step_callback = NewSteps(_listener(agent.step_callback or common, report))


def pass_over_replayed_steps(crew: Crew) -> None:
    """Limit the step callbacks of a running crew's agents to new steps; repeated calls are harmless."""
    for agent in filter(_has_steps, crew_tasks.agents_of(crew)):
        callers: list[Any] = [agent, agent.agent_executor]  # the executor has had its own copy since the kickoff
        for caller in filter(None, callers):
            if caller.step_callback and not isinstance(caller.step_callback, NewSteps):
                caller.step_callback = NewSteps(caller.step_callback)


class NewSteps:
    """Wraps a step callback and skips steps from the journal: the callback received them in the last attempt."""

    def __init__(self, own: Callback) -> None:
        self._own = own

    def __call__(self, answer: Any) -> Any:
        return None if journal.is_replaying() else self._own(answer)


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
