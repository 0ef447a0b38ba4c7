"""Finds the caches in which CrewAI keeps results of tools, and what is added to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from crew_service.crewai.internals import Seam
from crew_service.crewai.internals.crew_tasks import BASE_AGENT

KEPT = "later tasks in another process get the same results"
CACHES = Seam(
    "after a question or restart, a crew with `cache=True` repeats equal calls of tools that finished tasks made",
    {
        "crewai.agents.cache.cache_handler:CacheHandler.add": KEPT,
        "crewai.agents.cache.cache_handler:CacheHandler.read": KEPT,
        f"{BASE_AGENT}.tools_handler": "agents have a cache of their own or their crew's",
        "crewai.agents.tools_handler:ToolsHandler.cache": "agents have a cache of their own or their crew's",
    },
)


def watch(added: Callable[[Any, str, str], None]) -> None:
    """Report each cache to which a result is added, with the tool's name and the call's arguments."""

    def wrapped(add: Any) -> Callable[..., None]:
        parameters = inspect.signature(add)

        def adding(*args: Any, **kwargs: Any) -> None:
            add(*args, **kwargs)
            added(*[*parameters.bind(*args, **kwargs).arguments.values()][:3])

        return adding

    if not CACHES.missing:
        CACHES.wrap("CacheHandler.add", wrapped)


def of_agents(agents: Iterable[Any]) -> list[Any]:
    """Return each cache of these agents once."""
    handlers = (getattr(agent, "tools_handler", None) for agent in agents)
    caches = (getattr(handler, "cache", None) for handler in handlers)
    return list({id(cache): cache for cache in caches if cache is not None}.values())
