"""Limits on the work of an execution: the service's limits, which a kickoff may lower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Limits for one execution, across all segments; waiting for a person does not count."""

    max_seconds: float
    max_tokens: int | None = None  # None: no limit

    def lowered(self, own: dict[str, Any] | None) -> Limits:
        """Apply an execution's own limits, which were checked at its kickoff; the service's limits may be lower now."""
        own = own or {}
        tokens = [int(limit) for limit in (self.max_tokens, own.get("max_tokens")) if limit is not None]
        seconds = float(own.get("max_seconds") or self.max_seconds)
        return Limits(min(self.max_seconds, seconds), min(tokens, default=None))

    def exceeded(self, seconds: float, tokens: int, earlier_tokens: int = 0) -> str | None:
        """Return the error for an execution that exceeds its limits; None if it does not.

        :param earlier_tokens: tokens used by the executions that it continues
        """
        if seconds > self.max_seconds:
            return f"TimeLimitExceeded: the execution took longer than {self.max_seconds:g} seconds"
        if self.has_too_many(tokens + earlier_tokens):
            before = f" and continues one that used {earlier_tokens}" if earlier_tokens else ""
            return f"TokenLimitExceeded: the execution used {tokens} tokens{before}; its limit is {self.max_tokens}"
        return None

    def has_too_many(self, tokens: int) -> bool:
        return self.max_tokens is not None and tokens > self.max_tokens
