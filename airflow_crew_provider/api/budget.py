"""What an execution may use, and how its usage compares with that."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, cost_usd, model_costs, reported, total_tokens

FAIL, IGNORE, ASK = "fail", "ignore", "ask"
UNCOUNTED = "uncounted_calls"  # of models that did not say how many tokens they used
MOST_NAMED, LONGEST_NAME = 5, 100  # models in a message, and characters of each


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
        tokens, cost = total_tokens(usage), known_cost(usage)
        said = []
        if self.max_total_tokens is not None and tokens is not None and tokens > self.max_total_tokens:
            said.append(f"used {tokens} tokens, more than max_total_tokens of {self.max_total_tokens}")
        if self.max_cost is not None and cost is not None and cost > self.max_cost:
            said.append(f"cost {at_least(usage)}{cost} USD, more than max_cost of {self.max_cost}")
        return " and ".join(said)

    def unknown_in(self, usage: Json | None, quoted: Callable[[str], str] = repr) -> str:
        """Return which figures are missing that a limit is compared with; empty if none is.

        :param quoted: how the name of a model is written, which is text of the service
        """
        missing = []
        uncounted = reported(usage, UNCOUNTED)
        if self.max_total_tokens is not None and (uncounted or total_tokens(usage) is None):
            calls = f"; {uncounted} calls of its models gave no figures" if uncounted else ""
            missing.append(f"how many tokens it used (max_total_tokens is {self.max_total_tokens}{calls})")
        if self.max_cost is not None and cost_usd(usage) is None:
            missing.append(f"what it cost (max_cost is {self.max_cost}{_without_cost(usage, quoted)})")
        return " and ".join(missing)


NO_BUDGET = Budget()


def figures(usage: Json | None) -> Json | None:
    """Return what of a usage a limit is compared with; None where nothing is known.

    Read again, it gives the same: of a cost that is not known, the parts that say the least that it was.
    """
    known: Json = {
        "total_tokens": total_tokens(usage),
        "cost_usd": cost_usd(usage),
        UNCOUNTED: reported(usage, UNCOUNTED),
    }
    if known["cost_usd"] is None and (costs := model_costs(usage)):
        known["cost_usd"] = reported(usage, "cost_usd")
        known["by_model"] = {model: {"cost_usd": cost} for model, cost in costs.items()}
    return {name: value for name, value in known.items() if value is not None} or None


def known_cost(usage: Json | None) -> float | None:
    """Read what an execution cost; where a model has no price, what the others did, which is the least that it cost."""
    whole = cost_usd(usage)
    parts = [cost for cost in model_costs(usage).values() if cost is not None]
    if whole is not None or not parts:
        return whole
    return max(round(sum(parts), 10), reported(usage, "cost_usd") or 0)


def at_least(usage: Json | None) -> str:
    """Return the words before a known cost that is not all."""
    return "at least " if cost_usd(usage) is None else ""


def _without_cost(usage: Json | None, quoted: Callable[[str], str]) -> str:
    unknown = [quoted(model[:LONGEST_NAME]) for model, cost in model_costs(usage).items() if cost is None]
    more = [f"{len(unknown) - MOST_NAMED} more"] if len(unknown) > MOST_NAMED else []
    return f"; not known is the cost of {', '.join(unknown[:MOST_NAMED] + more)}" if unknown else ""


def used_in(usage: Json | None, *, with_cost: bool = True) -> list[str]:
    """Write what an execution used for a person; what is not known is left out."""
    cost = known_cost(usage) if with_cost else None
    return amounts(total_tokens(usage), cost, at_least(usage))


def amounts(tokens: float | None, cost: float | None, before_cost: str = "") -> list[str]:
    """Write tokens and USD for a person."""
    written = [f"{tokens:,} tokens"] if tokens is not None else []
    return written + ([f"{before_cost}{cost:,} USD"] if cost is not None else [])


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
