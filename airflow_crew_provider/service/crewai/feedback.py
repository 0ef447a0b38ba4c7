"""Passes a person's feedback to the agent as turns of a conversation; CrewAI never asks at a terminal."""

from __future__ import annotations

from crewai import Task
from crewai.agents.parser import AgentFinish
from crewai.core.providers.human_input import AsyncExecutorContext, ExecutorContext, SyncHumanInputProvider

from airflow_crew_provider.service.crewai import internals
from airflow_crew_provider.service.engine.crew import CrewFailed, Round

OF_A_TASK = "A crew that was started by a task asks a person; only the served crew's own tasks can."
OF_A_METHOD = (
    "A crew that was started by a method asks a person, and the Flow cannot stop inside a method. "
    "Return the crew's answer from a method with @human_feedback instead of setting human_input on its task."
)


class StoredFeedback(SyncHumanInputProvider):
    """Answers CrewAI's question for human input from what the service has stored."""

    def __init__(
        self, tasks: list[Task], revised: Task | None, rounds: tuple[Round, ...], *, refusal: str = OF_A_TASK
    ) -> None:
        self._refusal = refusal
        self._tasks = tasks
        self._revised = revised
        self._rounds = rounds

    def post_setup_messages(self, context: ExecutorContext) -> None:
        """Go on where the rounds before this one ended, when it is the revised task that starts."""
        if context.task is None or context.task is not self._revised:
            return
        for earlier in self._rounds:
            context.messages.append({"role": "assistant", "content": earlier.output})
            context.messages.append(internals.feedback_message(context, earlier.feedback))

    def handle_feedback(self, formatted_answer: AgentFinish, context: ExecutorContext) -> AgentFinish:
        """Take the answer as it is: the crew stops after it, and the person decides then."""
        if not any(context.task is task for task in self._tasks):
            raise CrewFailed(self._refusal)
        return formatted_answer

    async def handle_feedback_async(self, formatted_answer: AgentFinish, context: AsyncExecutorContext) -> AgentFinish:
        return self.handle_feedback(formatted_answer, context)
