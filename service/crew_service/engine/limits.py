"""How much work an execution may cost: the service's limits, which a kickoff may lower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Of one execution, over all its segments; the time waited for a person does not count."""

    max_seconds: float
    max_tokens: int | None = None  # None: as many as it takes

    def lowered(self, own: dict[str, Any] | None) -> Limits:
        """With an execution's own limits, which were checked at its kickoff; those of the service may be lower now."""
        own = own or {}
        tokens = [limit for limit in (self.max_tokens, own.get("max_tokens")) if limit is not None]
        return Limits(min(self.max_seconds, own.get("max_seconds") or self.max_seconds), min(tokens, default=None))

    def exceeded(self, seconds: float, tokens: int) -> str | None:
        """The error of an execution that has cost too much."""
        if seconds > self.max_seconds:
            return f"TimeLimitExceeded: the execution took longer than {self.max_seconds:g} seconds"
        if self.max_tokens is not None and tokens > self.max_tokens:
            return f"TokenLimitExceeded: the execution used {tokens} tokens, its limit is {self.max_tokens}"
        return None
