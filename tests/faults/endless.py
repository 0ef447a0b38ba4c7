"""`EndlessServer`: begins every response, and never ends it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class EndlessServer:
    """After the first bytes from a client, send ``head`` once and ``piece`` again and again, until the client is gone.

    :param pause: seconds before each piece
    """

    def __init__(self, head: bytes, piece: bytes, pause: float = 0.0) -> None:
        self._head, self._piece, self._pause = head, piece, pause
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = self.gone = self.sent = 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> EndlessServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # else it might accept at another socket that gets the same descriptor
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(self._head)
            while not self._stopped.wait(self._pause):
                connection.sendall(self._piece)
                self.sent += len(self._piece)
        self.gone += 1
