"""Listens, and answers probes while the service and its crews are loaded.

All other clients wait for the server, as if they had not been accepted yet: a refusal at that moment could be the
answer to a kickoff. This module imports nothing that takes time, so that probes are answered from the first moment.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import threading
from contextlib import suppress
from typing import Any

BACKLOG = 2048
SEND_BUFFER = 256 * 1024  # bytes of responses that the kernel buffers per client, instead of megabytes


def _response(code: str, **body: str) -> bytes:
    content = json.dumps(body)
    head = f"HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\nConnection: close\r\n\r\n{content}".encode()


LOADING = _response("503 Service Unavailable", status="unavailable", detail="The crews are being loaded.")
PROBES = {b"GET /livez ": _response("200 OK", status="ok"), b"GET /readyz ": LOADING, b"GET /healthz ": LOADING}
LONGEST_HEAD = 16_384  # bytes of a probe
MOST_WAITING = 256  # clients; the kernel keeps the others


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", type=_host, default="127.0.0.1")
    parser.add_argument("--port", type=port, default=8300)


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return number


def _host(text: str) -> str:
    if not text:  # the socket would listen on every interface
        raise argparse.ArgumentTypeError("must not be empty; 0.0.0.0 listens on every interface")
    return text


def bind(host: str, port: int) -> socket.socket:
    """Start listening: clients that connect before the service is ready wait instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # each connection inherits it
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def started(words: list[str]) -> Starting | None:
    """Start what `serve` with these arguments needs; None if the command itself must say what is wrong with them."""
    if words[:1] != ["serve"]:
        return None
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    add_to(parser)
    with suppress(argparse.ArgumentError, SystemExit, OSError):
        options, _ = parser.parse_known_args(words[1:])
        return Starting(bind(options.host, options.port))
    return None


class Starting:
    """Accepts clients in a thread until it is left.

    :param listener: the socket on which the server will listen
    """

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.waiting: list[socket.socket] = []  # clients that have been accepted and not read, in order of arrival
        self._left, self._leave = socket.socketpair()
        self._thread = threading.Thread(target=self._answer, name="probes", daemon=True)
        self._thread.start()

    def __enter__(self) -> Starting:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.close()
        self._thread.join()
        self._left.close()

    def _answer(self) -> None:
        with selectors.DefaultSelector() as selector:
            self.listener.setblocking(False)
            selector.register(self._left, selectors.EVENT_READ)
            selector.register(self.listener, selectors.EVENT_READ)
            while True:
                for ready in {key.fileobj for key, _ in selector.select()}:
                    if ready is self._left:
                        return
                    if ready is self.listener:
                        if not self._accept(selector):
                            selector.unregister(self.listener)
                        continue
                    selector.unregister(ready)
                    if self._answer_probe(ready) and self.listener not in selector.get_map():
                        selector.register(self.listener, selectors.EVENT_READ)

    def _accept(self, selector: selectors.BaseSelector) -> bool:
        """Accept a client; return whether there is room for another one."""
        try:
            client, _ = self.listener.accept()
            client.setblocking(False)
            self.waiting.append(client)
            selector.register(client, selectors.EVENT_READ)
        except (BlockingIOError, ConnectionError):
            pass  # the client has left
        except OSError:
            return False  # the process may open no more files
        return len(self.waiting) < MOST_WAITING

    def _answer_probe(self, client: Any) -> bool:
        """Answer a probe and close its connection, and return True; leave any other client's request unread."""
        try:
            head = client.recv(LONGEST_HEAD, socket.MSG_PEEK)
            answer = next((answer for start, answer in PROBES.items() if head.startswith(start)), None)
            if head and answer is None:
                return False
            client.recv(len(head))
            if answer:
                client.sendall(answer)
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has left
        self.waiting.remove(client)
        client.close()
        return True
