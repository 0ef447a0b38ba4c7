"""Passes a person's feedback to the agent as conversation turns; CrewAI never asks at a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from crewai import Task

from crew_service.crewai.errors import Fatal
from crew_service.crewai.internals import human_input
from crew_service.crewai.internals.flow_methods import ASK
from crew_service.engine.crew import Round

AT_A_TERMINAL = "The crew requests terminal input, but has no terminal; use a task with human_input to ask a person."
ASKED = "The Flow requests terminal input, but has no terminal; ask a person with self.ask() or @human_feedback."
OF_A_TASK = "A crew started by a task asks a person for feedback, but only the served crew's own tasks can do so."


def refuse(module: str) -> NoReturn:
    """Fail: this module of CrewAI would read from a terminal."""
    if not module.startswith("crewai.flow."):
        raise Fatal(AT_A_TERMINAL)
    raise Fatal(f"The Flow asks a person, but nobody can be asked: {ASK.reason}." if ASK.missing else ASKED)


class StoredFeedback:
    """Answers CrewAI's requests for human input from the stored decisions: a human input provider.

    :param rounds_of: returns a task's earlier rounds; None for a task that cannot ask
    """

    def __init__(self, rounds_of: Callable[[Task | None], tuple[Round, ...] | None]) -> None:
        self._rounds_of = rounds_of

    def __getattr__(self, name: str) -> Any:
        """Do as CrewAI's own provider does what a later release asks of providers, too."""
        return human_input.default(name)

    def setup_messages(self, *_: Any, **__: Any) -> bool:
        return False

    def post_setup_messages(self, context: Any, *_: Any, **__: Any) -> None:
        """Restore the conversation from the earlier rounds of the task that is starting."""
        for earlier in self._rounds_of(context.task) or ():
            context.messages.append({"role": "assistant", "content": earlier.output})
            context.messages.append(human_input.feedback_message(context, earlier.feedback))

    def handle_feedback(self, formatted_answer: Any, context: Any, *_: Any, **__: Any) -> Any:
        """Accept the answer unchanged: the crew then stops so that a person can decide."""
        if self._rounds_of(context.task) is None:
            raise Fatal(OF_A_TASK)
        return formatted_answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any, *_: Any, **__: Any) -> Any:
        return self.handle_feedback(formatted_answer, context)
