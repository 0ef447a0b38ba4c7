"""Limits on an execution, and how its usage compares with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import (
    CHAIN,
    HIGHEST_FIGURE,
    REQUESTS,
    Json,
    cost_usd,
    is_unreadable,
    model_costs,
    reported,
    shown,
    total_tokens,
)

FAIL, IGNORE, ASK = "fail", "ignore", "ask"
UNCOUNTED = "uncounted_calls"  # model calls without a reported number of tokens
UNREADABLE = "unreadable"  # a key in the result of `figures`: limits whose reported usage could not be read
# The usage fields that count towards each limit: if one of them cannot be read, usage against that limit is unknown.
BASES = {
    "max_total_tokens": ("total_tokens", "prompt_tokens", "completion_tokens", UNCOUNTED, *REQUESTS),
    "max_cost": ("cost_usd", UNCOUNTED, *REQUESTS),
}
MOST_NAMED, LONGEST_NAME = 5, 100  # models named in a message, characters per name


@dataclass(frozen=True)
class Budget:
    """The limits of one execution; None means no limit.

    :param max_total_tokens: the maximum number of tokens
    :param max_cost: the maximum cost, in USD
    """

    max_total_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        """Refuse invalid limits when the DAG file is parsed."""
        if self.max_total_tokens is not None:
            refuse_bad_limit(self.max_total_tokens)
        if self.max_cost is not None:
            _refuse_bad_cost(self.max_cost)

    @property
    def limits(self) -> Json:
        """Return the limits that are set, by parameter name."""
        limits = {"max_total_tokens": self.max_total_tokens, "max_cost": self.max_cost}
        return {name: value for name, value in limits.items() if value is not None}

    def passed_by(self, usage: Json | None) -> str:
        """Describe the limits that the reported usage exceeds; empty if it exceeds none."""
        if self.max_total_tokens is None and self.max_cost is None:
            return ""
        return self._passed_by(judged(usage)) or self._passed_by(usage)

    def _passed_by(self, usage: Json | None) -> str:
        tokens, cost = total_tokens(usage), known_cost(usage)
        reasons = []
        if self.max_total_tokens is not None and tokens is not None and tokens > self.max_total_tokens:
            reasons.append(f"used {tokens} tokens, more than max_total_tokens of {self.max_total_tokens}")
        if self.max_cost is not None and cost is not None and cost > self.max_cost:
            reasons.append(f"cost {at_least(usage)}{cost} USD, more than max_cost of {self.max_cost}")
        return " and ".join(reasons)

    def unknown_in(self, usage: Json | None, quoted: Callable[[str], str] = repr) -> str:
        """Describe the missing usage that is needed to check the limits; empty if none is missing.

        :param quoted: how to quote a model's name, which comes from the service
        """
        missing = []
        usage = judged(usage)
        uncounted, unreadable = reported(usage, UNCOUNTED), _unreadable(usage)
        if self.max_total_tokens is not None and (
            uncounted or "max_total_tokens" in unreadable or total_tokens(usage) is None
        ):
            calls = f"; {uncounted} model calls reported no usage" if uncounted else ""
            missing.append(f"how many tokens it used (max_total_tokens is {self.max_total_tokens}{calls})")
        if self.max_cost is not None and (uncounted or "max_cost" in unreadable or cost_usd(usage) is None):
            missing.append(f"what it cost (max_cost is {self.max_cost}{_without_cost(usage, quoted)})")
        return " and ".join(missing)


NO_BUDGET = Budget()


def figures(usage: Json | None) -> Json | None:
    """Return the numbers to compare with limits; None if nothing is known.

    The result is valid usage itself. If the cost is unknown, the result contains the known minimum, and some of the
    models whose cost is unknown.
    """
    known = _figures(usage)
    chain = judged(usage)
    return known if chain is usage else {**(known or {}), CHAIN: _figures(chain) or {}}


def judged(usage: Json | None) -> Any:
    """Return the usage to compare with a limit; for an execution that continues others, the total for all of them.

    A chain's total counts as unknown if it is less than the usage of its last execution.
    """
    chain = usage.get(CHAIN) if isinstance(usage, dict) else None
    if chain is None:
        return usage
    return {} if _is_less(chain, usage) else chain


def _is_less(chain: Any, own: Json | None) -> bool:
    used = [(total_tokens(each), known_cost(each), reported(each, UNCOUNTED) or 0) for each in (chain, own)]
    pairs = [(whole, part) for whole, part in zip(*used, strict=True) if whole is not None and part is not None]
    return any(whole < part and not math.isclose(whole, part) for whole, part in pairs)


def _figures(usage: Json | None) -> Json | None:
    known: Json = {
        "total_tokens": total_tokens(usage),
        "cost_usd": cost_usd(usage),
        UNCOUNTED: reported(usage, UNCOUNTED),
        UNREADABLE: _unreadable(usage) or None,
    }
    if known["cost_usd"] is None and (costs := model_costs(usage)):
        known["cost_usd"] = known_cost(usage)
        unknown = [model[:LONGEST_NAME] for model, cost in costs.items() if cost is None][:MOST_NAMED]
        known["by_model"] = {model: {"cost_usd": None} for model in unknown}
    return {name: value for name, value in known.items() if value is not None} or None


def _unreadable(usage: Any) -> list[str]:
    """Return the limits whose figures are reported in an unreadable form."""
    listed = usage.get(UNREADABLE) if isinstance(usage, dict) else None
    listed = listed if isinstance(listed, list) else []
    return [limit for limit, names in BASES.items() if limit in listed or is_unreadable(usage, names)]


def known_cost(usage: Json | None) -> float | None:
    """Return the cost of an execution; if a model has no price, a lower bound from the known costs."""
    whole = cost_usd(usage)
    if whole is not None:
        return whole
    known = [reported(usage, "cost_usd"), *model_costs(usage).values()]
    parts = [cost for cost in known[1:] if cost is not None]
    least = min(max(round(sum(parts), 10), known[0] or 0), HIGHEST_FIGURE)
    return least if least or parts else None


def at_least(usage: Json | None) -> str:
    """Return the words that go before a cost that is only a lower bound; empty if the cost is complete."""
    return "at least " if cost_usd(usage) is None else ""


def _without_cost(usage: Json | None, quoted: Callable[[str], str]) -> str:
    unknown = [quoted(model[:LONGEST_NAME]) for model, cost in model_costs(usage).items() if cost is None]
    more = [f"{len(unknown) - MOST_NAMED} more"] if len(unknown) > MOST_NAMED else []
    return f"; cost unknown for {', '.join(unknown[:MOST_NAMED] + more)}" if unknown else ""


def used_in(usage: Json | None, *, with_cost: bool = True) -> list[str]:
    """Describe an execution's usage for a person; leave out what is unknown."""
    cost = known_cost(usage) if with_cost else None
    return amounts(total_tokens(usage), cost, at_least(usage))


def amounts(tokens: float | None, cost: float | None, before_cost: str = "") -> list[str]:
    """Format tokens and USD for a person."""
    written = [f"{tokens:,} tokens"] if tokens is not None else []
    return written + ([f"{before_cost}{cost:,} USD"] if cost is not None else [])


def refuse_bad_limit(most: Any) -> None:
    """Refuse anything but a positive number of tokens."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise CrewInvalidInput(f"max_total_tokens must be an integer >= 1, not {shown(most)}")


def _refuse_bad_cost(most: Any) -> None:
    if isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < math.inf:
        raise CrewInvalidInput(f"max_cost must be a number of USD above 0, not {shown(most)}")


def refuse_bad_choice(chosen: Any, choices: Collection[str]) -> None:
    """Refuse a value for `on_unknown_usage` that this task does not support."""
    if chosen not in choices:
        known = " or ".join(map(repr, choices))
        asks = f"; only CrewUsageApprovalOperator supports {ASK!r}" if chosen == ASK else ""
        raise CrewInvalidInput(f"on_unknown_usage must be {known}, not {shown(chosen)}{asks}")
