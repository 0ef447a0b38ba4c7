"""Runs the service on a socket that is bound before anything else happens."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import uvicorn

from crew_service.engine.crew import Crew
from crew_service.http.app import create_app
from crew_service.http.connections import HEADER_SECONDS, GuardedProtocol, InPieces, guarded
from crew_service.http.sender import WithPeer
from crew_service.http.slots import Slots
from crew_service.settings import Settings

BACKLOG = 2048
ACCEPTED_AT_ONCE = 64  # before the event loop handles them; enough file descriptors must remain for them


SEND_BUFFER = 256 * 1024  # bytes of responses that the kernel buffers per client, instead of megabytes
TICKS = 10  # of the server's main loop per second


class Server(uvicorn.Server):
    unread_seconds = HEADER_SECONDS

    async def on_tick(self, counter: int) -> bool:
        if counter % max(1, round(self.unread_seconds * TICKS)) == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, GuardedProtocol):
                    connection.end_unread()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Set how many clients may wait; the event loop's own backlog is also the number that it accepts at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)


def bind(host: str, port: int) -> socket.socket:
    """Start listening: clients that connect before the service is ready wait instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # each connection inherits it
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def server(settings: Settings, crews: Mapping[str, Crew]) -> Server:
    slots = Slots()
    config = uvicorn.Config(
        WithPeer(InPieces(create_app(settings, crews, slots))),
        proxy_headers=False,  # handled by `WithPeer`
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,  # longer than a poller's pause: the outcome of a POST to a closing connection is unknown
        backlog=ACCEPTED_AT_ONCE,
        http=guarded(settings, slots.unsent),
        ws="none",  # there are no WebSockets, and a handshake would be answered before the token is checked
    )
    serving = Server(config)
    serving.unread_seconds = settings.header_seconds
    return serving
