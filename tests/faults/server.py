"""`FaultServer`: a socket that answers as it is told, and remembers every request that reached it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from faults.wire import Answer, Reply, Request, read_request, reset, send

Decide = Callable[[Request], Answer]


class FaultServer:
    """Serve on a free port until the block ends: ``with FaultServer() as server: server.on("GET /inputs", ...)``.

    :param decide: answers each request; by default what `on` was told
    :param certificate: a PEM file with a key and a certificate, for TLS
    :param listening: False for a port that refuses connections until `listen`
    """

    def __init__(
        self,
        decide: Decide | None = None,
        *,
        certificate: Path | None = None,
        listening: bool = True,
        family: socket.AddressFamily = socket.AF_INET,
    ) -> None:
        self._decide = decide or self._scripted
        self._tls = _server_context(certificate) if certificate else None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._scripts: dict[str, list[Any]] = defaultdict(list)
        self._open: set[socket.socket] = set()
        self.requests: list[Request] = []
        self.connections = 0
        self.reset_at_connect = 0
        self.handshakes_failed = 0
        self._accepting: threading.Thread | None = None
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        if listening:
            self.listen()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def use_certificate(self, certificate: Path) -> None:
        """Show another certificate to connections from now on."""
        self._tls = _server_context(certificate)

    def listen(self) -> None:
        """Accept connections from now on."""
        self._listener.listen(512)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def on(self, request: str, *answers: Answer | int | Any) -> FaultServer:
        """Answer a request such as ``GET /inputs`` so, one after the other; the last one again and again.

        A function is called with the request. An int is an answer of that status, from 400 on with the JSON of a
        refusal, a `Reply` is itself, and anything else the JSON of a 200. A path that ends in ``*`` stands for all
        that begin so.
        """
        with self._lock:
            self._scripts[request] = [_answer(each) for each in answers]
        return self

    def sent(self, request: str) -> list[Request]:
        """Return the requests of this method and path that have arrived."""
        with self._lock:
            return [each for each in self.requests if _matches(request, each)]

    def close(self) -> None:
        """Refuse connections and drop those that are open."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        if self._accepting:  # it could still accept at a socket opened since, which may get the same descriptor
            self._accepting.join()
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _scripted(self, request: Request) -> Answer:
        with self._lock:
            for name, answers in self._scripts.items():
                if _matches(name, request) and answers:
                    answer = answers.pop(0) if len(answers) > 1 else answers[0]
                    break
            else:
                answer = Reply(
                    status=404, body={"detail": f"nothing is scripted for {request.method} {request.target}"}
                )
        # Outside of the lock, so that a function may script the next answers.
        return _answer(answer(request)) if callable(answer) else answer

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                refused = self.reset_at_connect > 0
                self.reset_at_connect -= refused
                self._open.add(connection)
            if refused:
                reset(connection)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
                stack.enter_context(connection)
                plain = connection
                if self._tls:
                    connection = stack.enter_context(self._shake_hands(self._tls, connection))
                self._converse(connection)
                plain.close()
        finally:
            with self._lock:
                self._open.discard(connection)

    def _shake_hands(self, tls: ssl.SSLContext, connection: socket.socket) -> ssl.SSLSocket:
        try:
            return tls.wrap_socket(connection, server_side=True)
        except ssl.SSLError:
            self.handshakes_failed += 1
            raise

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while request := read_request(stream):
                with self._lock:
                    self.requests.append(request)
                if not send(connection, self._decide(request), self._stopped):
                    return


def _matches(name: str, request: Request) -> bool:
    method, _, path = name.partition(" ")
    if method != request.method:
        return False
    return request.target.startswith(path[:-1]) if path.endswith("*") else request.target == path


def _answer(value: Any) -> Any:
    if isinstance(value, Answer) or callable(value):
        return value
    if type(value) is int:
        return Reply(status=value, body={"detail": f"{value}"} if value >= 400 else b"")
    return Reply(body=value)


def _server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
