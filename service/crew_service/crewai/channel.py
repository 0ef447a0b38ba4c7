"""Messages between the service and a crew's process: JSON objects, one a line, over a socket.

A line that is no JSON object is what a process wrote while it was killed; it is dropped.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

LINK_CLOSED = 98  # the exit code of a process whose crew has closed its end of the socket
LARGEST = 64 * 1024 * 1024  # bytes in one message; a crew's output is text that people read

Message = dict[str, Any]


class MessageTooLarge(Exception):
    """The other side sent more in one message than this side is willing to hold."""


class Channel:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._received = bytearray()
        self._searched = 0

    def send(self, message: Message) -> None:
        line = json.dumps(message, default=str).encode() + b"\n"
        with self._sending:
            self._link.sendall(line)

    def receive(self, timeout: float | None = None) -> Message | None:
        """Wait for the next message: None at the end of the connection, `TimeoutError` when there is none yet."""
        while True:
            line = self._next_line()
            if line is None:
                self._link.settimeout(timeout)
                if not self._fill():
                    return None
            elif (message := _parsed(line)) is not None:
                return message

    def close(self) -> None:
        self._link.close()

    def _next_line(self) -> bytes | None:
        end = self._received.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._received)
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return line

    def _fill(self) -> bool:
        try:
            data = self._link.recv(65536)
        except ConnectionError:
            return False
        self._received += data
        if len(self._received) > LARGEST:
            raise MessageTooLarge(f"more than {LARGEST} bytes in one message")
        return bool(data)


def _parsed(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
