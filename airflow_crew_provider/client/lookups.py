"""A hook's connection and client: looked up once, shared by all waits on an event loop, refreshed when needed."""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, mask_secret

from airflow_crew_provider.client.deployment import CrewConnection, read_connection
from airflow_crew_provider.compat import traces
from airflow_crew_provider.compat.connections import aget_connection
from airflow_crew_provider.exceptions import CrewConnectionError, CrewInvalidInput
from airflow_crew_provider.models import reason, shortened, shown

if TYPE_CHECKING:
    from airflow_crew_provider.client.client import Client


# Maximum age of a lookup in seconds: the first for a wait that may be ending or whose token was refused, the second for
# one that continues or is retrying failed polls. A new wait always starts a lookup, or joins one that is under way.
FOR_A_REFRESH, WHILE_POLLING = 1.0, 60.0

LookUp = Callable[[], Coroutine[Any, Any, CrewConnection]]


@dataclass
class _Shared:
    task: asyncio.Task[CrewConnection]
    began: float

    def serves(self, max_age: float, refused: CrewConnection | None) -> bool:
        if not self.task.done():
            return True
        if self.task.cancelled() or time.monotonic() - self.began >= max_age:
            return False
        return refused is None or self.task.exception() is not None or self.task.result() is not refused


_by_loop: weakref.WeakKeyDictionary[Any, dict[str, _Shared]] = weakref.WeakKeyDictionary()


async def _shared(
    conn_id: str, look_up: LookUp, max_age: float = 0.0, refused: CrewConnection | None = None
) -> CrewConnection:
    here = _by_loop.setdefault(asyncio.get_running_loop(), {})
    held = here.get(conn_id)
    if held is None or not held.serves(max_age, refused):
        held = here[conn_id] = _Shared(asyncio.ensure_future(look_up()), time.monotonic())
    # Shielded: the wait that started the lookup may be cancelled while others are waiting for it too.
    return await asyncio.shield(held.task)


# The time at which blocking code in this process last looked up each connection, and the result, if any.
_looked_up: dict[str, tuple[float, CrewConnection | None]] = {}

CLIENT = "airflow_crew_provider.client.client"


class CachedConnection(BaseHook):
    """A hook that caches its connection and client."""

    def __init__(self, crew_conn_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(crew_conn_id, str):  # a template may render to anything
            raise CrewInvalidInput(f"crew_conn_id must be a string, not {shown(crew_conn_id)}. Nothing was sent")
        self.crew_conn_id = crew_conn_id
        self._connection: CrewConnection | None = None
        self._client: Client | None = None

    @property
    def connection(self) -> CrewConnection:
        """The connection, looked up once."""
        if self._connection is None:
            self._use(self._read())
        assert self._connection is not None
        return self._connection

    @property
    def client(self) -> Client:
        """The client of this connection."""
        if self._client is None:
            # Imported here, because parsing a DAG file must not load the HTTP libraries.
            from airflow_crew_provider.client.client import Client

            self._client = Client(self.connection.deployment, traces.of_call)
        return self._client

    @property
    def place(self) -> str:
        """The connection, and its base URL once looked up, for use in messages."""
        deployment = self._connection and self._connection.deployment
        at = f" ({deployment.mask(deployment.base_url)})" if deployment else ""
        return f"Connection {shown(self.crew_conn_id)}{at}"

    def mask_for_log(self, text: str) -> str:
        """Mask the secrets of a connection in use; before its first use, there is nothing to mask or look up."""
        return self._client.mask(text) if self._client else text

    def get_conn(self) -> Client:
        """Return the client, as Airflow expects of a hook."""
        return self.client

    async def hold(self) -> None:
        """Look up the connection, and keep this loop's shared session open until `release`."""
        await self._aconnect()
        await self.client.hold()

    async def release(self) -> None:
        """Release what `hold` acquired."""
        if self._client is not None:
            await self._client.release()

    async def _aconnect(self) -> None:
        if self._connection is None:
            self._use(await _shared(self.crew_conn_id, self._aread))
            await _load_client()

    def _read(self) -> CrewConnection:
        began = time.monotonic()
        _looked_up[self.crew_conn_id] = began, None
        connection = read_connection(self.look_up(self.crew_conn_id))
        _looked_up[self.crew_conn_id] = began, connection
        return connection

    async def _aread(self) -> CrewConnection:
        try:
            connection = await aget_connection(self.crew_conn_id)
        except Exception as error:
            problem = _named(error, self.crew_conn_id)
        else:
            return read_connection(connection)
        raise problem

    def look_up(self, conn_id: str) -> Any:
        """Return an Airflow connection.

        :raises CrewConnectionError: it cannot currently be looked up, or does not exist
        """
        try:
            return self.get_connection(conn_id)
        except Exception as error:
            problem = _named(error, conn_id)
        raise problem

    def refresh(self, *, at_once: bool = True) -> bool:
        """Look up the connection again; return whether it has changed.

        :param at_once: False if a lookup within the last minute suffices
        """
        began, connection = _looked_up.get(self.crew_conn_id, (float("-inf"), None))
        if at_once or time.monotonic() - began >= WHILE_POLLING:
            connection = self._read()
        return connection is not None and self._replaced_by(connection)

    async def arefresh(self, *, at_once: bool = True) -> bool:
        """Do what `refresh` does, and move the shared session to the new connection."""
        before = self.client
        max_age, refused = (FOR_A_REFRESH, self.connection) if at_once else (WHILE_POLLING, None)
        fresh = await _shared(self.crew_conn_id, self._aread, max_age, refused)
        replaced = self._replaced_by(fresh)
        if replaced:
            # In this order: if this is cancelled while the old session is closing, the new one must already be held.
            await self.client.hold()
            await before.release()
        return replaced

    def _replaced_by(self, fresh: CrewConnection) -> bool:
        changed = fresh.deployment != self.connection.deployment
        self._use(fresh)
        return changed

    def _use(self, connection: CrewConnection) -> None:
        if connection.flow_webhook_secret:
            mask_secret(connection.flow_webhook_secret)
        if self._connection is None or connection.deployment != self._connection.deployment:
            self._client = None
        self._connection = connection


class ConnectionNotFound(CrewConnectionError, AirflowNotFoundException):
    """Airflow has no connection with this id. It also reports this while the secrets backend is unavailable."""


def _named(error: Exception, conn_id: str) -> CrewConnectionError:
    if isinstance(error, AirflowNotFoundException):
        return ConnectionNotFound(shortened(str(error)))
    return CrewConnectionError(f"Connection {shown(conn_id)} could not be looked up ({reason(error)})")


async def _load_client() -> None:
    """Load the HTTP libraries in a thread: loading takes longer than an event loop may be blocked."""
    if CLIENT not in sys.modules:
        await asyncio.to_thread(import_module, CLIENT)
