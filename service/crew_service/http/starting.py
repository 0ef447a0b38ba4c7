"""Answers probes while crews are loaded. All other clients wait for the server, as if they had not been accepted yet:
a refusal at that moment could be the answer to a kickoff.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
from contextlib import suppress
from typing import Any


def _response(code: str, **body: str) -> bytes:
    content = json.dumps(body)
    head = f"HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\nConnection: close\r\n\r\n{content}".encode()


LOADING = _response("503 Service Unavailable", status="unavailable", detail="The crews are being loaded.")
PROBES = {b"GET /livez ": _response("200 OK", status="ok"), b"GET /readyz ": LOADING, b"GET /healthz ": LOADING}
LONGEST_HEAD = 16_384  # bytes of a probe
MOST_WAITING = 256  # clients; the kernel keeps the others


class Starting:
    """Accepts clients in a thread while it is entered.

    :param listener: the socket on which the server will listen
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._left, self._leave = socket.socketpair()
        self._thread = threading.Thread(target=self._answer, name="probes", daemon=True)
        self.waiting: list[socket.socket] = []  # clients that have been accepted and not read, in order of arrival

    def __enter__(self) -> Starting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.close()
        self._thread.join()
        self._left.close()

    def _answer(self) -> None:
        with selectors.DefaultSelector() as selector:
            self._listener.setblocking(False)
            selector.register(self._left, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for ready in {key.fileobj for key, _ in selector.select()}:
                    if ready is self._left:
                        return
                    if ready is self._listener:
                        self._accept(selector)
                    else:
                        selector.unregister(ready)
                        self._answer_probe(ready)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with suppress(OSError):  # the client has left
            client, _ = self._listener.accept()
            client.setblocking(False)
            self.waiting.append(client)
            selector.register(client, selectors.EVENT_READ)
        if len(self.waiting) >= MOST_WAITING:
            selector.unregister(self._listener)

    def _answer_probe(self, client: Any) -> None:
        """Answer a probe and close its connection; leave any other client's request unread."""
        try:
            head = client.recv(LONGEST_HEAD, socket.MSG_PEEK)
            answer = next((answer for start, answer in PROBES.items() if head.startswith(start)), None)
            if head and answer is None:
                return
            client.recv(len(head))
            if answer:
                client.sendall(answer)
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has left
        self.waiting.remove(client)
        client.close()
