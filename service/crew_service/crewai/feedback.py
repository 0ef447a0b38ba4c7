"""Passes a person's feedback to the agent as conversation turns; CrewAI never asks at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from crewai import Task
from crewai.agents.parser import AgentFinish
from crewai.core.providers.human_input import AsyncExecutorContext, ExecutorContext, SyncHumanInputProvider

from crew_service.crewai import internals
from crew_service.crewai.errors import Fatal
from crew_service.engine.crew import Round

NOT_STOPPED = "A task that asks a person for feedback was not stopped; the crew must not clear CrewAI's hooks."
AT_A_TERMINAL = "The crew requests terminal input, but has no terminal; use a task with human_input to ask a person."
ASKED = "The Flow requests terminal input, but has no terminal; use a method with @human_feedback to ask a person."
OF_A_TASK = "A crew started by a task asks a person for feedback, but only the served crew's own tasks can do so."


def refuse(*args: object, **values: object) -> NoReturn:
    raise Fatal(AT_A_TERMINAL)


def refuse_console(*args: object, **values: object) -> NoReturn:
    raise Fatal(ASKED)


class StoredFeedback(SyncHumanInputProvider):
    """Answers CrewAI's requests for human input from the stored decisions."""

    def __init__(self, tasks: list[Task], revised: Task | None, rounds: tuple[Round, ...]) -> None:
        self._tasks = tasks
        self._revised = revised
        self._rounds = rounds

    def post_setup_messages(self, context: ExecutorContext) -> None:
        """Restore the conversation from the earlier rounds if the task that is starting is the revised one."""
        if context.task is None or context.task is not self._revised:
            return
        _tell(context, self._rounds)

    def handle_feedback(self, formatted_answer: AgentFinish, context: ExecutorContext) -> AgentFinish:
        """Accept the answer unchanged: the crew then stops so that a person can decide."""
        if not any(context.task is task for task in self._tasks):
            raise Fatal(OF_A_TASK)
        return formatted_answer

    async def handle_feedback_async(self, formatted_answer: AgentFinish, context: AsyncExecutorContext) -> AgentFinish:
        return self.handle_feedback(formatted_answer, context)


class NestedFeedback(StoredFeedback):
    """Answers requests for human input from tasks of crews that a Flow's methods start.

    :param rounds_of: returns a task's earlier rounds; None for a task that cannot ask
    """

    def __init__(self, rounds_of: Callable[[Task | None], tuple[Round, ...] | None]) -> None:
        super().__init__([], None, ())
        self._rounds_of = rounds_of

    def post_setup_messages(self, context: ExecutorContext) -> None:
        _tell(context, self._rounds_of(context.task) or ())

    def handle_feedback(self, formatted_answer: AgentFinish, context: ExecutorContext) -> AgentFinish:
        if self._rounds_of(context.task) is None:
            raise Fatal(OF_A_TASK)
        return formatted_answer


def _tell(context: ExecutorContext, rounds: tuple[Round, ...]) -> None:
    for earlier in rounds:
        context.messages.append({"role": "assistant", "content": earlier.output})
        context.messages.append(internals.feedback_message(context, earlier.feedback))
