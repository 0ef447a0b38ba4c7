"""A body that arrives in pieces: kept up to a size, and refused beyond. No I/O; client, inbox and service share it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable


class BodyTooLarge(Exception):
    """A body has more bytes than its reader takes."""


class CappedBody:
    """The pieces so far.

    :param limit: the most bytes that are kept
    :param drained: how many more are read and dropped; a peer that is still sending does not read an answer
    """

    def __init__(self, limit: int, drained: int = 0) -> None:
        self._limit, self._drained = limit, drained
        self._kept, self._size = bytearray(), 0

    def add(self, piece: bytes) -> None:
        """Take the next piece; raise as soon as reading on is useless."""
        self._size += len(piece)
        if self._size <= self._limit:
            self._kept += piece
        elif self._size > self._limit + self._drained:
            raise BodyTooLarge

    def content(self) -> bytes:
        """Return the whole body; raise if it was too large."""
        if self._size > self._limit:
            raise BodyTooLarge
        return bytes(self._kept)


def collect(pieces: Iterable[bytes], limit: int) -> bytes:
    """Read a body to its end."""
    body = CappedBody(limit)
    for piece in pieces:
        body.add(piece)
    return body.content()


async def acollect(pieces: AsyncIterable[bytes], limit: int, drained: int = 0) -> bytes:
    """Do what `collect` does with pieces that are awaited."""
    body = CappedBody(limit, drained)
    async for piece in pieces:
        body.add(piece)
    return body.content()
