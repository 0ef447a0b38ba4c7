"""Reserves ports for processes that listen on them only later."""

from __future__ import annotations

import random
import socket

LOCALHOST = "127.0.0.1"
# Systems give higher ports to outgoing connections, so one could be taken while Airflow starts.
PORTS = range(20_000, 32_768)

_reserved: list[socket.socket] = []
_random = random.SystemRandom()  # Hypothesis seeds the other one, in each worker in the same way


def free_port() -> int:
    """Return a TCP port on which nothing listens; until this process ends, no other one gets it from here.

    The UDP port with this number, which nothing else uses, is the sign that it is reserved.
    """
    while True:
        port = _random.choice(PORTS)
        sign = socket.socket(type=socket.SOCK_DGRAM)
        try:
            sign.bind((LOCALHOST, port))
            with socket.socket() as probe:
                probe.bind((LOCALHOST, port))
        except OSError:
            sign.close()
            continue
        _reserved.append(sign)
        return port
