"""Keeps CrewAI from reading a terminal, and gives it what people said."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

from crewai.flow.flow import Flow

from crew_service.crewai.internals import Seam

PROVIDERS = "crewai.core.providers.human_input"
PEOPLE = Seam(
    "tasks with human_input are refused",
    {
        f"{PROVIDERS}:set_provider": "CrewAI asks a provider whether a person accepts an answer",
        f"{PROVIDERS}:SyncHumanInputProvider": "threads of other code use this one, which takes no answer for consent",
        f"{PROVIDERS}:ExecutorContext._format_feedback_message": "an agent is told feedback in CrewAI's own words",
        "crewai:Task._guardrail": "an edited answer must pass what the agent's answer must pass",
        "crewai:Task._guardrails": "an edited answer must pass what the agent's answer must pass",
    },
)


def ask(provider: Any) -> None:
    """Let CrewAI ask this provider in the running context."""
    if not PEOPLE.missing:
        PEOPLE["set_provider"](provider)


def default(name: str) -> Any:
    """Return what CrewAI's own provider does."""
    return getattr(PEOPLE["SyncHumanInputProvider"](), name)


def feedback_message(context: Any, feedback: str) -> Any:
    """Return a person's feedback as the message that CrewAI sends to an agent."""
    return context._format_feedback_message(feedback)


def refuse_terminal(refuse: Callable[[str], NoReturn]) -> None:
    """Call `refuse` with the module that would read from a terminal: CrewAI does not check whether there is one.

    Some of its modules would go on as if somebody had consented.
    """
    read = builtins.input

    def asked(prompt: object = "") -> str:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return refuse(caller) if caller.partition(".")[0] == "crewai" else read(prompt)

    def answered(*_: Any, **__: Any) -> NoReturn:
        refuse(PROVIDERS)

    builtins.input = asked
    chat = getattr(Flow, "chat", None)  # not in every version; it has got hold of the other `input`

    def chatted(flow: Any, *args: Any, **options: Any) -> Any:
        return chat(flow, *args, **options) if chat and "input_fn" in options else refuse(Flow.__module__)

    if chat:
        Flow.chat = wraps(chat)(chatted)  # type: ignore[method-assign, assignment]
    if not PEOPLE.missing:
        provider = PEOPLE["SyncHumanInputProvider"]
        provider.handle_feedback = provider.handle_feedback_async = answered
