"""A body is kept up to its limit, byte for byte, and refused beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from airflow_crew_provider.api.responses import BodyTooLarge, acollect, collect


class Pieces:
    """Bytes in pieces of a size; knows how many were asked for."""

    def __init__(self, total: int, size: int) -> None:
        self._left, self._size, self.read = total, size, 0

    def __iter__(self) -> Iterator[bytes]:
        while self._left > 0:
            piece = b"x" * min(self._size, self._left)
            self._left -= len(piece)
            self.read += len(piece)
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_a_body_of_the_limit_is_read_whole(size: int) -> None:
    assert collect(Pieces(10, size), 10) == b"x" * 10
    assert asyncio.run(acollect(Pieces(10, size), 10, drained=5)) == b"x" * 10


@pytest.mark.parametrize("size", [1, 3, 11])
def test_a_body_of_one_byte_more_is_refused(size: int) -> None:
    with pytest.raises(BodyTooLarge):
        collect(Pieces(11, size), 10)
    with pytest.raises(BodyTooLarge):
        asyncio.run(acollect(Pieces(11, size), 10, drained=100))


def test_nothing_is_read_after_the_limit() -> None:
    pieces = Pieces(1000, 1)
    with pytest.raises(BodyTooLarge):
        collect(pieces, 10)
    assert pieces.read == 11


def test_a_body_is_drained_to_its_limit_and_no_further() -> None:
    pieces = Pieces(1000, 1)
    with pytest.raises(BodyTooLarge):
        asyncio.run(acollect(pieces, 10, drained=20))
    assert pieces.read == 31
    pieces = Pieces(1000, 1)
    with pytest.raises(BodyTooLarge):
        asyncio.run(acollect(pieces, 10))
    assert pieces.read == 11


def test_the_order_of_the_pieces_is_kept() -> None:
    assert collect([b"a", b"", b"bc"], 3) == b"abc"
