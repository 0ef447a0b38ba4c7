"""How usage is compared with a limit and described to a person: each figure and each word."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_crew_provider.api.budget import (
    NO_BUDGET,
    Budget,
    amounts,
    figures,
    judged,
    known_cost,
    refuse_bad_choice,
    used_in,
)
from airflow_crew_provider.exceptions import CrewInvalidInput

UNPRICED = {"a": {"cost_usd": 0.5}, "b": {"cost_usd": None}}


def test_an_execution_may_use_all_that_its_limits_allow() -> None:
    budget = Budget(max_total_tokens=5, max_cost=0.5)
    assert budget.passed_by({"total_tokens": 5, "cost_usd": 0.5}) == ""
    assert budget.passed_by({"total_tokens": 6, "cost_usd": 0.75}) == (
        "used 6 tokens, more than max_total_tokens of 5 and cost 0.75 USD, more than max_cost of 0.5"
    )


def test_without_a_limit_nothing_is_passed_and_nothing_unknown() -> None:
    assert (NO_BUDGET.limits, NO_BUDGET.passed_by({"total_tokens": 10**9}), NO_BUDGET.unknown_in(None)) == ({}, "", "")
    assert Budget(max_cost=1).limits == {"max_cost": 1}


@pytest.mark.parametrize(
    ("budget", "usage", "unknown"),
    [
        (Budget(5), None, "how many tokens it used (max_total_tokens is 5)"),
        (Budget(max_cost=1), None, "what it cost (max_cost is 1)"),
        (Budget(5, 1), {}, "how many tokens it used (max_total_tokens is 5) and what it cost (max_cost is 1)"),
        (
            Budget(5, 1),
            {"total_tokens": 1, "cost_usd": 0.5, "uncounted_calls": 2},
            "how many tokens it used (max_total_tokens is 5; 2 model calls reported no usage) "
            "and what it cost (max_cost is 1)",
        ),
        (
            Budget(max_cost=1),
            {"by_model": {str(number): {"cost_usd": None} for number in range(5)}},
            "what it cost (max_cost is 1; cost unknown for '0', '1', '2', '3', '4')",
        ),
        (
            Budget(max_cost=1),
            {"by_model": {str(number): {"cost_usd": None} for number in range(6)}},
            "what it cost (max_cost is 1; cost unknown for '0', '1', '2', '3', '4', 1 more)",
        ),
        (
            Budget(max_cost=1),
            {"by_model": {"x" * 101: {"cost_usd": None}}},
            f"what it cost (max_cost is 1; cost unknown for '{'x' * 100}')",
        ),
    ],
)
def test_unreported_usage_needed_by_a_limit_is_named(budget: Budget, usage: Any, unknown: str) -> None:
    assert budget.unknown_in(usage) == unknown


def test_a_model_is_quoted_as_the_caller_asks() -> None:
    said = Budget(max_cost=1).unknown_in({"by_model": UNPRICED}, quoted=lambda name: f"<{name}>")
    assert said == "what it cost (max_cost is 1; cost unknown for <b>)"


@pytest.mark.parametrize(
    ("own", "chain"),
    [
        ({"total_tokens": 2}, {"total_tokens": 1}),
        ({"cost_usd": 2}, {"cost_usd": 1}),
        ({"by_model": UNPRICED}, {"cost_usd": 0.25}),
        ({"uncounted_calls": 1}, {"total_tokens": 5}),
    ],
)
def test_chain_usage_below_that_of_its_last_execution_is_unknown(own: Any, chain: Any) -> None:
    assert judged({**own, "chain_usage": chain}) == {}


@pytest.mark.parametrize(
    ("own", "chain"),
    [
        ({"total_tokens": 2}, {"total_tokens": 2}),
        ({"cost_usd": 0.3}, {"cost_usd": 0.1 + 0.2}),
        ({"cost_usd": 0.1 + 0.2}, {"cost_usd": 0.3}),
        ({"uncounted_calls": 1}, {"uncounted_calls": 1}),
        ({"total_tokens": 2}, {"cost_usd": 1}),
    ],
)
def test_otherwise_the_chain_is_compared_with_the_limits(own: Any, chain: Any) -> None:
    assert judged({**own, "chain_usage": chain}) == chain
    assert judged(own) == own


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (None, None),
        ({}, None),
        ({"cost_usd": 0}, 0),
        ({"cost_usd": 2, "by_model": UNPRICED}, 2),
        ({"by_model": UNPRICED}, 0.5),
        ({"by_model": {"a": {"cost_usd": 0}, "b": {"cost_usd": None}}}, 0),
        ({"by_model": {"b": {"cost_usd": None}}}, None),
        ({"by_model": {name: {"cost_usd": cost} for name, cost in (("a", 0.1), ("b", 0.2), ("c", None))}}, 0.3),
    ],
)
def test_known_cost_is_at_least_that_of_the_priced_models(usage: Any, cost: Any) -> None:
    assert known_cost(usage) == cost


@pytest.mark.parametrize(
    ("usage", "kept"),
    [
        (None, None),
        ({"note": 1}, None),
        ({"total_tokens": 7, "note": 1}, {"total_tokens": 7}),
        ({"total_tokens": 7, "uncounted_calls": 2}, {"total_tokens": 7, "uncounted_calls": 2}),
        ({"total_tokens": "7"}, {"unreadable": ["max_total_tokens"]}),
        ({"cost_usd": 3, "by_model": UNPRICED}, {"cost_usd": 3, "by_model": {"b": {"cost_usd": None}}}),
        ({"chain_usage": {"total_tokens": 9, "note": 1}}, {"chain_usage": {"total_tokens": 9}}),
        ({"total_tokens": 7, "chain_usage": {}}, {"total_tokens": 7, "chain_usage": {}}),
    ],
)
def test_the_figures_of_a_usage_are_kept_and_nothing_else(usage: Any, kept: Any) -> None:
    assert figures(usage) == kept
    assert figures(kept) == kept


@pytest.mark.parametrize(
    ("usage", "told", "without_cost"),
    [
        (None, [], []),
        ({"total_tokens": 12345, "cost_usd": 1234.5}, ["12,345 tokens", "1,234.5 USD"], ["12,345 tokens"]),
        ({"total_tokens": 0, "cost_usd": 0}, ["0 tokens", "0 USD"], ["0 tokens"]),
        ({"by_model": UNPRICED}, ["at least 0.5 USD"], []),
    ],
)
def test_a_person_is_told_what_is_known_of_the_usage(usage: Any, told: list[str], without_cost: list[str]) -> None:
    assert used_in(usage) == told
    assert used_in(usage, with_cost=False) == without_cost


def test_amounts_that_are_known_are_written() -> None:
    assert amounts(None, None, "at least ") == []
    assert amounts(1, 2.5) == ["1 tokens", "2.5 USD"]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("skip", "on_unknown_usage must be 'fail' or 'ignore', not 'skip'"),
        (
            "ask",
            "on_unknown_usage must be 'fail' or 'ignore', not 'ask'; only CrewUsageApprovalOperator supports 'ask'",
        ),
    ],
)
def test_a_choice_that_this_task_does_not_support_is_refused(chosen: str, said: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        refuse_bad_choice(chosen, ("fail", "ignore"))
    assert str(error.value) == said
    refuse_bad_choice("ignore", ("fail", "ignore"))
