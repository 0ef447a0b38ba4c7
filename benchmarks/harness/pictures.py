"""Draws the charts in docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def cost_by_number(costs: Mapping[str, Mapping[int, float]]) -> Path:
    """Draw the CPU usage by number of waits."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, by_number in costs.items():
        axes.plot(list(by_number), [each / 10 for each in by_number.values()], marker="o", label=name)
    axes.set(xlabel="waits, each polled every 10 s", ylabel="CPU of one core, %", ylim=(0, None), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    path = IMAGES / "poll-cost.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
