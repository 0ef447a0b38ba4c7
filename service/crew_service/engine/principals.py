"""Callers: the organization, or a user, who sees only their own executions. Only hashes of tokens are kept."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from crew_service.budgets import Owner


class BadToken(ValueError):
    """The tokens are not unique, or one cannot be sent in a header."""


class Principal(Owner):
    """The holder of a token, who owns what it starts."""

    __slots__ = ()

    @property
    def key(self) -> str:
        return "organization" if self.user is None else f"user:{self.user}"

    def may_see(self, owner: str | None) -> bool:
        return self.user is None or self.user == owner


def is_key(name: str) -> bool:
    """Return whether a name looks like a token holder's key."""
    word = name.strip().casefold()
    return word == Principal().key or word.startswith("user:")


def usable(token: str, name: str = "a token") -> str:
    """Return a token without the whitespace around it, such as the newline at the end of a file.

    :param name: the token's option or variable, for the error
    :raises BadToken: it cannot be sent in a header
    """
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise BadToken(f"{name[0].upper()}{name[1:]} must be printable ASCII without spaces, to be sent in a header.")
    return token


class Tokens:
    def __init__(self, tokens: Sequence[tuple[Principal, str]]) -> None:
        self._callers = [(_digest(token), holder) for holder, token in tokens]
        for _, token in tokens:
            usable(token)
        if len({digest for digest, _ in self._callers}) < len(self._callers):
            raise BadToken("The tokens must be unique, since they identify the caller.")

    @property
    def digests(self) -> list[tuple[bytes, Principal]]:
        return self._callers

    def caller(self, token: str) -> Principal | None:
        """Find the token's holder; always compare with every known token, so that timing reveals nothing."""
        digest = _digest(token)
        holder = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                holder = caller
        return holder

    def of_header(self, authorization: str) -> Principal | None:
        scheme, _, token = authorization.partition(" ")
        return self.caller(token.strip()) if scheme.lower() == "bearer" else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
