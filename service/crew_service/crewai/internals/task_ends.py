"""Does what CrewAI does after a person has accepted a task's answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from types import SimpleNamespace
from typing import Any

from crewai import Task, TaskOutput
from crewai.events import TaskCompletedEvent

from crew_service.crewai.internals import Seam, step_events
from crew_service.crewai.internals.crew_tasks import TASKS, wrap_each_task
from crew_service.crewai.internals.wrapping import holding

log = logging.getLogger(__name__)

DRAFTING: ContextVar[bool] = ContextVar("whether a person must approve the answer of a running task", default=False)
SAVE = "BaseAgentExecutor._save_to_memory"
REMEMBER = Seam(
    "agents remember none of their answers",
    {f"crewai.agents.agent_builder.base_agent_executor:{SAVE}": "CrewAI remembers answers that people may reject"},
)


def keep_drafts_from_memory() -> None:
    """From now on, remember no answer that a person must still approve; if that is impossible, remember none.

    Nor is an answer remembered that another agent gives for such a task: the draft may consist of it.
    """
    if not TASKS.missing:
        wrap_each_task(_as_draft)
    if not REMEMBER.missing:
        REMEMBER.wrap(SAVE, _unless_gated)
    elif memory := _memory():
        memory.extract_memories = lambda *_, **__: []


def remembers_drafts() -> Seam | None:
    """Return why CrewAI may remember an answer before a person approves it; None if it does not."""
    return REMEMBER if REMEMBER.missing and _memory() is None else None


def _memory() -> Any:
    """Return the class that remembers an agent's answers; None if this CrewAI has no such class."""
    with suppress(ImportError):
        from crewai.memory import unified_memory

        memory = getattr(unified_memory, "Memory", None)
        return memory if hasattr(memory, "extract_memories") else None
    return None


def _unless_gated(save: Callable[..., None]) -> Callable[..., None]:
    def saved(executor: Any, *args: Any, **kwargs: Any) -> None:
        if not (DRAFTING.get() or (executor.task and executor.task.human_input)):
            save(executor, *args, **kwargs)

    return saved


@contextmanager
def _as_draft(task: Task, *_: Any, **__: Any) -> Iterator[None]:
    with holding(DRAFTING, DRAFTING.get() or bool(task.human_input)):
        yield


def remember(task: Task, output: TaskOutput, crew: Any) -> None:
    """Save an approved answer to the agent's or the crew's memory, and wait until it is there."""
    if REMEMBER.missing:
        return
    memory = getattr(task.agent, "memory", None) or getattr(crew, "_memory", None)
    agent = SimpleNamespace(memory=memory, role=output.agent, _logger=SimpleNamespace(log=_warn))
    REMEMBER[SAVE].__wrapped__(SimpleNamespace(agent=agent, crew=crew, task=output), SimpleNamespace(text=output.raw))
    stored: Any = getattr(memory, "_memory", None) or memory  # a scope's or a slice's
    if hasattr(stored, "drain_writes"):
        stored.drain_writes()


def _warn(level: str, text: str) -> None:
    log.warning("%s", text)


def tell_listeners(task: Task, output: TaskOutput) -> None:
    """Emit the event of the task's end, which does not close the event that the crew's start has opened."""
    copy_context().run(_emit, task, output)


def _emit(task: Task, output: TaskOutput) -> None:
    try:
        from crewai.events.event_context import push_event_scope
    except ImportError:  # then CrewAI prints a warning
        pass
    else:
        push_event_scope(str(task.id), "task_started")
    step_events.emit(task, TaskCompletedEvent(output=output, task=task))
