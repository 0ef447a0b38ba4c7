"""Registers hooks with CrewAI by the functions that it documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crewai.hooks import InterceptionPoint, on, unregister_hook


def register(point: InterceptionPoint, hook: Callable[[Any], None]) -> Callable[[], None]:
    """Call `hook` at this point from now on; return what ends that."""

    def called(context: Any) -> None:  # CrewAI sets attributes on a hook, which a bound method cannot have
        hook(context)

    on(point)(called)

    def end() -> None:
        unregister_hook(point, called)

    return end
