"""What an execution may use, and how its usage compares with that."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, reported, total_tokens

FAIL, IGNORE, ASK = "fail", "ignore", "ask"


@dataclass(frozen=True)
class Budget:
    """The limits of one execution; None means no limit.

    :param max_total_tokens: how many tokens it may use
    :param max_cost: how much it may cost, in USD
    """

    max_total_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        """Refuse, when the DAG file is parsed, what is not a limit."""
        if self.max_total_tokens is not None:
            refuse_bad_limit(self.max_total_tokens)
        if self.max_cost is not None:
            _refuse_bad_cost(self.max_cost)

    @property
    def limits(self) -> Json:
        """Return the limits that were given, by their parameters."""
        given = {"max_total_tokens": self.max_total_tokens, "max_cost": self.max_cost}
        return {name: value for name, value in given.items() if value is not None}

    def passed_by(self, usage: Json | None) -> str:
        """Return which limits are known to be passed, with the figures; empty if none is."""
        tokens, cost = total_tokens(usage), cost_usd(usage)
        said = []
        if self.max_total_tokens is not None and tokens is not None and tokens > self.max_total_tokens:
            said.append(f"used {tokens} tokens, more than max_total_tokens of {self.max_total_tokens}")
        if self.max_cost is not None and cost is not None and cost > self.max_cost:
            said.append(f"cost {cost} USD, more than max_cost of {self.max_cost}")
        return " and ".join(said)

    def unknown_in(self, usage: Json | None) -> str:
        """Return which figures are missing that a limit is compared with; empty if none is."""
        missing = []
        if self.max_total_tokens is not None and total_tokens(usage) is None:
            missing.append(f"how many tokens it used (max_total_tokens is {self.max_total_tokens})")
        if self.max_cost is not None and cost_usd(usage) is None:
            missing.append(f"what it cost (max_cost is {self.max_cost})")
        return " and ".join(missing)


NO_BUDGET = Budget()


def figures(usage: Json | None) -> Json | None:
    """Return what of a usage a limit is compared with; None where nothing is known."""
    known = {"total_tokens": total_tokens(usage), "cost_usd": cost_usd(usage)}
    return {name: value for name, value in known.items() if value is not None} or None


def cost_usd(usage: Json | None) -> int | float | None:
    """Read what an execution cost; None where the service does not say, or a model has no price."""
    return reported(usage, "cost_usd")


def refuse_bad_limit(most: Any) -> None:
    """Refuse what is not a number of tokens."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise CrewInvalidInput(f"max_total_tokens must be an integer >= 1, not {most!r}")


def _refuse_bad_cost(most: Any) -> None:
    if isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < math.inf:
        raise CrewInvalidInput(f"max_cost must be a number of USD above 0, not {most!r}")


def refuse_bad_choice(chosen: Any, choices: Collection[str]) -> None:
    """Refuse a word for `on_unknown_usage` that this task does not know."""
    if chosen not in choices:
        known = " or ".join(map(repr, choices))
        asks = f"; only CrewUsageApprovalOperator can {ASK}" if chosen == ASK else ""
        raise CrewInvalidInput(f"on_unknown_usage must be {known}, not {chosen!r}{asks}")
