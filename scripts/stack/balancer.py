"""A TCP load balancer as a process: each connection goes to the next backend that accepts it.

``python -m scripts.stack.balancer PORT BACKEND_PORT...`` listens on loopback and does not interpret the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence

CHUNK = 65536
CONNECT_TIMEOUT = 2.0


class Balancer:
    """Relays connections to the backends in turn, skipping those that refuse."""

    def __init__(self, backends: Sequence[int]) -> None:
        self._backends = backends
        self._turn: Iterator[int] = itertools.cycle(range(len(backends)))

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(self._relay, "127.0.0.1", port)
        async with server:
            await server.serve_forever()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = await self._connect()
        if backend is None:
            writer.close()
            return
        other_reader, other_writer = backend
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        start = next(self._turn)
        for offset in range(len(self._backends)):
            port = self._backends[(start + offset) % len(self._backends)]
            with contextlib.suppress(OSError, TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), CONNECT_TIMEOUT)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side closes, then close the other, so that a killed backend is noticed immediately."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


if __name__ == "__main__":
    asyncio.run(Balancer([int(port) for port in sys.argv[2:]]).serve(int(sys.argv[1])))
