"""Runs the service on a socket that is bound before anything else is promised."""

from __future__ import annotations

import socket

import uvicorn

from .app import create_app
from .crews import Crew
from .settings import Settings

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Listen from now on: who connects before the service is ready waits, and is not refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def server(settings: Settings, crew: Crew) -> uvicorn.Server:
    config = uvicorn.Config(
        create_app(settings, crew),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,  # longer than a poller's pause: a POST on a connection just closed has no outcome
        backlog=BACKLOG,
    )
    return uvicorn.Server(config)
