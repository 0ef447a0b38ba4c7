"""What an execution has used of language models so far, over all its segments and however each of them ended.

The column `tokens` has the total in every release; `usage` has its parts, and `model_usage` what is known by model. The
three need not agree: a service of an earlier release counts totals only. What no named model accounts for has no price.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.engine import Row

from crew_service.prices import CACHED, UNCOUNTED

COUNTED = ("total_tokens", "prompt_tokens", "completion_tokens")
OF_MODEL = (*COUNTED, CACHED, UNCOUNTED)
HEADER = "Crew-Usage"
LONGEST_HEADER = 1024  # bytes; proxies allow 4 KiB for all headers of an answer
MOST = 2**53 - 1  # tokens: what every reader of JSON takes as it is
MOST_MODELS = 250  # that one execution is counted by; more share the entry without a name
MOST_MODELS_OF_TASK = 20
LONGEST_NAME = 100  # characters of a model's name
UNNAMED = ""  # the model of tokens that a crew counts without one

Usage = dict[str, Any]
Figures = dict[str, int]
ByModel = dict[str, Figures]


def counted(given: Mapping[str, Any] | None) -> Figures:
    """Return the figures that a crew gave; what is no number of tokens counts as none."""
    return _whole({name: _figure((given or {}).get(name)) for name in COUNTED})


def _whole(figures: Figures) -> Figures:
    """Make the total no less than its parts: a budget, which is of the total, must not miss what they tell."""
    parts = figures["prompt_tokens"] + figures["completion_tokens"]
    return {**figures, "total_tokens": _figure(max(figures["total_tokens"], parts))}


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Figures:
    return counted({name: one.get(name, 0) + other.get(name, 0) for name in COUNTED})


def of_model(given: Any) -> Figures:
    """Return the figures of one model, also how much of its prompts was cached, and how many calls gave no figures."""
    figures = _whole({name: _figure(given.get(name) if isinstance(given, dict) else None) for name in OF_MODEL})
    return {name: figure for name, figure in figures.items() if figure or name in COUNTED}


def add_to(by_model: ByModel, model: str, more: Figures, *, most: int = MOST_MODELS) -> None:
    """Add a model's figures to those of others, of which there are not too many."""
    name = model.encode("utf-8", "replace").decode()[:LONGEST_NAME]
    if name not in by_model and len(by_model) >= most:
        name = UNNAMED
    known = by_model.get(name, {})
    by_model[name] = of_model({each: known.get(each, 0) + more.get(each, 0) for each in OF_MODEL})


def read(stored: Any) -> ByModel:
    """Return stored figures by model."""
    return {name: of_model(figures) for name, figures in stored.items()} if isinstance(stored, dict) else {}


def since(later: Figures, earlier: Figures) -> Figures:
    return {name: later.get(name, 0) - earlier.get(name, 0) for name in OF_MODEL}


def so_far(row: Row[Any]) -> Usage | None:
    """Return what an execution has used, from its row; None where nobody has counted."""
    if row.usage is None and not row.tokens:
        return None
    used = counted(row.usage)
    total = max(used["total_tokens"], row.tokens)
    return _with_models({**used, "total_tokens": total}, read(row.model_usage))


def of_task(stored: Any) -> Usage | None:
    """Return what a task has used, from its figures by model; None where nobody has counted."""
    if not isinstance(stored, dict):
        return None
    by_model = read(stored)
    return _with_models(counted(_sum(by_model.values())), by_model)


def _with_models(used: Figures, by_model: ByModel) -> Usage:
    """Put the models beside the totals, the one with most tokens first."""
    named = [(name, figures) for name, figures in by_model.items() if name != UNNAMED]
    named.sort(key=lambda each: -each[1]["total_tokens"])
    uncounted = sum(figures.get(UNCOUNTED, 0) for figures in by_model.values())
    told = {**used, UNCOUNTED: uncounted} if uncounted else {**used}
    return {**told, "by_model": dict(named)} if named else told


def _sum(figures: Iterable[Figures]) -> Figures:
    several = list(figures)
    return {name: sum(each[name] for each in several) for name in COUNTED}


def header(used: Usage | None) -> dict[str, str]:
    """Write it as a header: ASCII, the totals first, and as many models as fit; none if nobody counted."""
    if not used:
        return {}
    text = _ascii({name: value for name, value in used.items() if name != "by_model"})
    models, left = [], LONGEST_HEADER - len(text) - len(',"by_model":{}')
    for name, figures in used.get("by_model", {}).items():
        model = f"{_ascii(name)}:{_ascii(figures)}"
        left -= len(model) + 1
        if left < 0:
            break
        models.append(model)
    return {HEADER: f'{text[:-1]},"by_model":{{{",".join(models)}}}}}' if models else text}


def _ascii(value: Any) -> str:
    """JSON that a header may hold: of what `json.dumps` leaves as it is, only DEL is refused there."""
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")


def _figure(value: Any) -> int:
    return max(0, min(value, MOST)) if type(value) is int else 0
