"""Look-ups of connections, shared by the waits of an event loop: one per connection, not one per wait."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from airflow_crew_provider.hooks.connection import CrewConnection

# How old a connection may be, in seconds, for a wait that was refused with another one. One that begins asks anew,
# together with those that begin while it asks.
FOR_A_REFRESH = 1.0

LookUp = Callable[[], Coroutine[Any, Any, CrewConnection]]


@dataclass
class _Shared:
    task: asyncio.Task[CrewConnection]
    began: float

    def found(self) -> CrewConnection | None:
        done = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if done else None

    def serves(self, max_age: float, refused: CrewConnection | None) -> bool:
        if not self.task.done():
            return True
        found = self.found()
        return found is not None and found is not refused and time.monotonic() - self.began < max_age


_by_loop: weakref.WeakKeyDictionary[Any, dict[str, _Shared]] = weakref.WeakKeyDictionary()


async def for_new_wait(conn_id: str, look_up: LookUp) -> CrewConnection:
    """Look up a connection, together with the waits that look it up at this moment."""
    return await _shared(conn_id, look_up, 0.0, None)


async def for_refresh(conn_id: str, look_up: LookUp, refused: CrewConnection) -> CrewConnection:
    """Return a connection that was looked up after the one that was refused, or with which nothing was found."""
    return await _shared(conn_id, look_up, FOR_A_REFRESH, refused)


async def _shared(conn_id: str, look_up: LookUp, max_age: float, refused: CrewConnection | None) -> CrewConnection:
    here = _by_loop.setdefault(asyncio.get_running_loop(), {})
    held = here.get(conn_id)
    if held is None or not held.serves(max_age, refused):
        held = here[conn_id] = _Shared(asyncio.ensure_future(look_up()), time.monotonic())
    # Shielded: the wait that began the look-up may be cancelled while others wait for it too.
    return await asyncio.shield(held.task)
