"""Parameters of which `make test` takes a sample, because each costs much and differs little."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Return the values for `parametrize`; only the first and each `every`-th after it are run by `make test`.

    A tuple stands for several parameters.
    """
    return [value if number % every == 0 else _long(value) for number, value in enumerate(values)]


def crossed(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Return all pairs of the values for `parametrize`; `make test` only runs enough of them to have each value."""
    rows, columns = list(first), list(second)
    return [
        (a, b) if i % len(columns) == j or j % len(rows) == i else _long((a, b))
        for i, a in enumerate(rows)
        for j, b in enumerate(columns)
    ]


def _long(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
