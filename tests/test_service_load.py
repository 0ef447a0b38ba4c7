"""What a measurement counts on a machine that is late."""

from __future__ import annotations

import asyncio
import os

from benchmarks.service_load import CONNECTIONS, Side, request


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    await writer.drain()
    writer.close()


def test_turn_whose_time_passed_while_connecting_has_answers() -> None:
    async def turn() -> Side:
        async with await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
            side = Side(os.getpid(), server.sockets[0].getsockname()[1], [request("GET", "/status/x")])
            await side.turn(0)
        return side

    assert asyncio.run(turn()).answers == CONNECTIONS
