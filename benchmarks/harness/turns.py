"""Measures cases in turn (A B A B), so that the load of the machine affects all of them; medians, spread and ratios."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Figures = Mapping[str, float]
RESULTS = Path(__file__).resolve().parents[1] / "results"
PACKAGES = ("apache-airflow-core", "aiohttp", "airflow-crew-provider", "requests")


@dataclass
class Turns:
    """The figures of each case, one set per turn."""

    of: dict[str, list[Figures]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # cases that could not be measured, with the reasons

    def values(self, case: str, figure: str) -> list[float]:
        return [turn[figure] for turn in self.of[case]]

    def median(self, case: str, figure: str) -> float:
        return statistics.median(self.values(case, figure))

    def ratio(self, case: str, to: str, figure: str) -> str:
        """Return the median and spread of the ratios of adjacent turns."""
        pairs = zip(self.values(case, figure), self.values(to, figure), strict=False)
        return spread([one / other for one, other in pairs], 2)

    def shown(self, case: str, figure: str, digits: int = 0) -> str:
        return spread(self.values(case, figure), digits)


def spread(values: list[float], digits: int) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) < 2:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def in_turn(cases: Mapping[str, Callable[[], Figures]], rounds: int) -> Turns:
    """Measure each case once per round."""
    turns = Turns({case: [] for case in cases})
    for number in range(rounds):
        for case, measure in cases.items():
            turns.of[case].append(measure())
            print(f"  turn {number + 1} of {rounds}: {case}", flush=True)
    return turns


def keep(name: str, results: Any) -> Path:
    """Write results as JSON, with the versions that were measured."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    about = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "python": platform.python_version(), **versions()}
    path.write_text(json.dumps({"about": about, "results": results}, indent=1))
    return path


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
