"""A transaction pooler like PgBouncer: each transaction of a client may run on another server connection."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
from queue import Queue
from urllib.parse import urlsplit, urlunsplit

import psycopg2

SERVERS = 3
SSL, GSS, CANCEL = 80877103, 80877104, 80877102  # codes in place of a protocol version
TOLD = ("server_version", "server_encoding", "client_encoding", "DateStyle", "TimeZone", "integer_datetimes")
ENDS_REQUEST = (b"Q", b"S")  # the client then waits until the server is ready again


class TransactionPooler:
    """Listens on a free port of this machine.

    :param url: the database's, ``postgresql://user@host:port/name``
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connections = [psycopg2.connect(url) for _ in range(SERVERS)]  # they log in; then only the sockets count
        self._told = {name: self._connections[0].get_parameter_status(name) for name in TOLD}
        self._told["standard_conforming_strings"] = "on"
        self._free: Queue[socket.socket] = Queue()
        for connection in self._connections:
            server = socket.socket(fileno=os.dup(connection.fileno()))
            server.setblocking(True)
            self._free.put(server)
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        parts = urlsplit(self._url)
        user = (parts.netloc.rpartition("@")[0] or "postgres").partition(":")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self._listener.getsockname()[1]}"))

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._greet(client):
                while self._transaction(client):
                    pass

    def _greet(self, client: socket.socket) -> bool:
        code = SSL
        while code in (SSL, GSS):
            length, code = struct.unpack("!II", _read(client, 8))
            _read(client, length - 8)
            if code in (SSL, GSS):
                client.sendall(b"N")
        answer = _message(b"R", struct.pack("!I", 0))
        for name, value in self._told.items():
            answer += _message(b"S", f"{name}\0{value}\0".encode())
        client.sendall(answer + _message(b"K", secrets.token_bytes(8)) + _message(b"Z", b"I"))
        return code != CANCEL

    def _transaction(self, client: socket.socket) -> bool:
        """Pass on one transaction; return False once the client has left."""
        kind, message = _next(client)
        if kind == b"X":
            return False
        server = self._free.get()
        state = b"I"
        try:
            while True:
                server.sendall(message)
                if kind in ENDS_REQUEST and (state := self._answer(server, client)) == b"I":
                    return True
                kind, message = _next(client)
        finally:
            if state != b"I":
                server.sendall(_message(b"Q", b"ROLLBACK\0"))
                while _next(server)[0] != b"Z":
                    pass
            self._free.put(server)

    def _answer(self, server: socket.socket, client: socket.socket) -> bytes:
        kind = b""
        while kind != b"Z":
            kind, message = _next(server)
            client.sendall(message)
        return message[-1:]


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _next(peer: socket.socket) -> tuple[bytes, bytes]:
    head = _read(peer, 5)
    return head[:1], head + _read(peer, struct.unpack("!I", head[1:])[0] - 4)


def _read(peer: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = peer.recv(size - len(got))
        if not piece:
            raise EOFError
        got += piece
    return bytes(got)
