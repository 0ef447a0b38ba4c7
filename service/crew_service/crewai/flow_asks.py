"""Lets a Flow's methods ask a person with `Flow.ask`, as agents do with their tool: no process waits for the answer.

The method runs again with its earlier answers and calls from the journal. The service answers at the deadline by
itself; `ask` then returns None. A Flow with an `input_provider` of its own keeps it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from crew_service.crewai import codec
from crew_service.crewai.ask_person import AskPerson
from crew_service.crewai.errors import Fatal
from crew_service.crewai.internals import flow_methods
from crew_service.crewai.internals.flow_methods import ASK
from crew_service.crewai.internals.wrapping import holding

log = logging.getLogger(__name__)

LONGEST_METADATA = 4 * 1024  # bytes of JSON
LONGEST_TIMEOUT = 10 * 366 * 86400.0  # seconds; a longer one never ends
KEEPS_PROVIDER = (
    "the Flow has an input_provider of its own, so its `ask` does not reach the people who answer this service's "
    "questions"
)
TIMEOUT: ContextVar[float | None] = ContextVar("the timeout of the running `Flow.ask`", default=None)


class AskForFlow(AskPerson):
    """Asks on behalf of a Flow's method."""

    timeout: float | None = None  # seconds, after which the answer is None
    metadata: dict[str, Any] | None = None

    def _run(self, question: str) -> str:
        raise Fatal("Flow.ask() needs the crew service's journal, but this call has none, so nobody was asked.")

    @property
    def terms(self) -> dict[str, Any]:
        """Return what people see beside the question, as plain JSON."""
        return {"timeout": self.timeout, "metadata": self.metadata}


class People:
    """The input provider of Flows that have none."""

    def request_input(
        self, message: str, flow: Any = None, metadata: dict[str, Any] | None = None, *_: Any, **__: Any
    ) -> str | None:
        timeout = TIMEOUT.get()
        bounded = timeout if timeout is not None and timeout <= LONGEST_TIMEOUT else None
        asking = AskForFlow(timeout=bounded, metadata=_shown(metadata))
        answer: str | None = asking._run(question=message)
        return answer


def keeps_provider(flow: Any) -> bool:
    """Return whether a Flow, or a class of Flows, asks in its own way."""
    return not ASK.missing and (flow_methods.has_input_provider(flow) or ASK["flow_config"].input_provider is not None)


def ask_people() -> None:
    """From now on, let the Flows in this process ask people, except those with an input provider of their own."""
    if ASK.missing or ASK["flow_config"].input_provider is not None:
        return
    ASK["flow_config"].input_provider = People()
    ASK.wrap("Flow.ask", _asked)


def _asked(ask: Callable[..., Any]) -> Callable[..., Any]:
    def asked(flow: Any, message: str, timeout: float | None = None, *args: Any, **kwargs: Any) -> Any:
        asks_people = isinstance(ASK["flow_config"].input_provider, People)
        if flow_methods.has_input_provider(flow) or not asks_people:
            return ask(flow, message, timeout, *args, **kwargs)
        with holding(TIMEOUT, timeout):  # CrewAI would wait in a thread
            return ask(flow, message, None, *args, **kwargs)

    return asked


def _shown(metadata: Any) -> dict[str, Any] | None:
    if metadata is None:
        return None
    plain = codec.shown(metadata)
    if isinstance(plain, dict) and len(json.dumps(plain)) <= LONGEST_METADATA:
        return plain
    log.warning("the metadata of a question is not shown: it must be an object of at most %d bytes", LONGEST_METADATA)
    return None
