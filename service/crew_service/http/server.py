"""Runs the service on a socket that is bound before anything else happens."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import requires, version
from typing import Any

import uvicorn

from crew_service.engine.crew import Crew
from crew_service.http.app import create_app
from crew_service.http.errors import Answered
from crew_service.http.sender import WithPeer
from crew_service.http.slots import Slots
from crew_service.http.starting import BACKLOG
from crew_service.http.unsent import InPieces
from crew_service.settings import Settings
from crew_service.versions import key

ACCEPTED_AT_ONCE = 64  # before the event loop handles them; enough file descriptors must remain for them


ANSWERING = 10  # seconds for open requests when the service stops
TICKS = 10  # of the server's main loop per second


class Server(uvicorn.Server):
    unread_seconds = Settings.header_seconds
    waiting: Sequence[socket.socket] = ()  # clients that were accepted before the server was started

    async def on_tick(self, counter: int) -> bool:
        if counter % max(1, round(self.unread_seconds * TICKS)) == 0:
            for connection in list(self.server_state.connections):
                if end_unread := getattr(connection, "end_unread", None):
                    end_unread()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take over the clients that wait, and set how many may wait for the event loop.

        Its own backlog is also the number that it accepts at once.
        """
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        for client in self.waiting:
            with suppress(OSError):  # it has left
                await loop.connect_accepted_socket(self._connection, client)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    def _connection(self) -> Any:
        of_client: Any = self.config.http_protocol_class
        return of_client(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def unbounded() -> str | None:
    """Return why this uvicorn's connections cannot be limited, as a clause; None if they can."""
    release = version("uvicorn")
    wanted = next(each for each in requires("airflow-crew-service") or () if each.startswith("uvicorn"))
    ends = {operator: key(end) for operator, end in re.findall(r"([<>]=?)\s*([\d.]+)", wanted)}
    if ends[">="] <= key(release) < ends["<"]:
        return None
    return f"uvicorn {release} is installed, but connections are limited only with {wanted}"


def _protocol(settings: Settings, slots: Slots) -> Any:
    if unbounded():
        return "httptools"
    from crew_service.http.connections import guarded  # overrides what uvicorn keeps private

    return guarded(settings, slots.unsent)


def server(settings: Settings, crews: Mapping[str, Crew]) -> Server:
    slots = Slots()
    config = uvicorn.Config(
        Answered(WithPeer(InPieces(create_app(settings, crews, slots)))),
        proxy_headers=False,  # handled by `WithPeer`
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=ANSWERING,
        timeout_keep_alive=75,  # longer than a poller's pause: the outcome of a POST to a closing connection is unknown
        backlog=ACCEPTED_AT_ONCE,
        http=_protocol(settings, slots),
        ws="none",  # there are no WebSockets, and a handshake would be answered before the token is checked
    )
    serving = Server(config)
    serving.unread_seconds = settings.header_seconds
    return serving
