"""An execution's language model usage so far, across all its segments, however they ended.

The `tokens` column contains the total in every release; `usage` contains its parts, and `model_usage` the parts whose
model is known. The three may disagree, because earlier releases of the service count only totals. Usage without a model
name has no price.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine.crew import TokensUsed
from crew_service.prices import COUNTED, FIGURES, UNCOUNTED

HEADER = "Crew-Usage"
CHAIN = "chain_usage"  # next to the usage of an execution that continues another
LONGEST_HEADER = 1024  # bytes; some proxies allow only 4 KiB for all headers of a response
MOST = 2**53 - 1  # tokens: the largest number that every JSON parser reads exactly
MOST_MODELS = 250  # counted separately per execution; any others share the unnamed entry
MOST_MODELS_OF_TASK = 20
LONGEST_NAME = 100  # characters of a model's name
COMPACT = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` would create one for each response
UNNAMED = ""  # the model name for tokens that a crew counts without one

Usage = dict[str, Any]
Figures = dict[str, int]
ByModel = dict[str, Figures]


def counted(usage: Mapping[str, Any] | None) -> Figures:
    """Return a crew's counts, ignoring everything that is not a number of tokens."""
    return _whole({name: _figure((usage or {}).get(name)) for name in COUNTED})


def _whole(figures: Figures) -> Figures:
    """Raise the total to at least the sum of its parts: a budget limits the total, so it must not miss any tokens."""
    parts = figures["prompt_tokens"] + figures["completion_tokens"]
    return {**figures, "total_tokens": _figure(max(figures["total_tokens"], parts))}


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Figures:
    return counted({name: one.get(name, 0) + other.get(name, 0) for name in COUNTED})


def of_model(value: Any) -> Figures:
    """Return one model's counts, including cached prompt tokens and calls without reported tokens."""
    figures = _whole({name: _figure(value.get(name) if isinstance(value, dict) else None) for name in FIGURES})
    return {name: figure for name, figure in figures.items() if figure or name in COUNTED}


def add_to(by_model: ByModel, model: str, more: Figures, *, most: int = MOST_MODELS) -> None:
    """Add to a model's counts; once there are `most` models, count any new one as unnamed."""
    name = model.encode("utf-8", "replace").decode()[:LONGEST_NAME]
    if name not in by_model and len(by_model) >= most:
        name = UNNAMED
    known = by_model.get(name, {})
    by_model[name] = of_model({each: known.get(each, 0) + more.get(each, 0) for each in FIGURES})


def merge(by_model: ByModel, more: Mapping[str, Figures]) -> ByModel:
    """Add to each model's counts; return all of them."""
    for model, figures in more.items():
        add_to(by_model, model, figures)
    return by_model


def read(stored: Any) -> ByModel:
    """Return stored figures by model."""
    return {name: of_model(figures) for name, figures in stored.items()} if isinstance(stored, dict) else {}


def by_model(totals: Mapping[str, Any] | None, models: Any) -> ByModel:
    """Return all of an execution's usage by model; what belongs to no known model is unnamed."""
    known = read(models)
    named = _sum(known.values())
    rest = {name: figure - named[name] for name, figure in counted(totals).items()}
    if rest["total_tokens"] > 0:
        add_to(known, UNNAMED, {name: max(0, figure) for name, figure in rest.items()})
    return known


def since(later: Figures, earlier: Figures) -> Figures:
    return {name: later.get(name, 0) - earlier.get(name, 0) for name in FIGURES}


def totals_of(row: Row[Any]) -> Figures:
    """Return an execution's totals from its row; release 0.1 stored only `tokens`."""
    figures = counted(row.usage)
    return {**figures, "total_tokens": max(figures["total_tokens"], row.tokens)}


def so_far(row: Row[Any]) -> Usage | None:
    """Return an execution's usage from its row; None if not counted."""
    if row.usage is None and not row.tokens:
        return None
    return _with_models(totals_of(row), read(row.model_usage))


def chain(row: Row[Any]) -> Usage | None:
    """Return the total usage of an execution and of those that it continues; None if it continues none."""
    if not isinstance(row.earlier_usage, dict):
        return None
    return _with_models(added(earlier(row), so_far(row) or {}), _models_of_chain(row))


def earlier(row: Row[Any]) -> Figures:
    """Return the totals of the executions that this one continues."""
    return counted((row.earlier_usage or {}).get("usage"))


def handed_on(row: Row[Any]) -> dict[str, Any]:
    """Return a chain's usage up to the end of an execution, in the form in which the next one stores it."""
    return {"usage": counted(chain(row) or so_far(row)), "model_usage": _models_of_chain(row)}


def _models_of_chain(row: Row[Any]) -> ByModel:
    return merge(read((row.earlier_usage or {}).get("model_usage")), read(row.model_usage))


def of_task(stored: Any) -> Usage | None:
    """Return a task's usage from its figures by model; None if not counted."""
    if not isinstance(stored, dict):
        return None
    by_model = read(stored)
    return _with_models(counted(_sum(by_model.values())), by_model)


def of_report(report: TokensUsed) -> Figures:
    return counted({**report.parts, "total_tokens": report.total})


def of_reports(reports: Iterable[TokensUsed]) -> tuple[Figures, ByModel]:
    """Return the totals and the usage by model of reports without tasks, each of which repeats what has not grown."""
    used = counted(None)
    models: ByModel = {}
    for each in reports:
        used = of_report(each)
        models |= each.by_task.get("", {})
    return used, read(models)


def _with_models(used: Figures, by_model: ByModel) -> Usage:
    """Add the models to the totals, the one with the most tokens first."""
    named = [(name, figures) for name, figures in by_model.items() if name != UNNAMED]
    named.sort(key=lambda each: -each[1]["total_tokens"])
    uncounted = sum(figures.get(UNCOUNTED, 0) for figures in by_model.values())
    whole = {**used, UNCOUNTED: uncounted} if uncounted else {**used}
    return {**whole, "by_model": dict(named)} if named else whole


def _sum(figures: Iterable[Figures]) -> Figures:
    several = list(figures)
    return {name: sum(each[name] for each in several) for name in COUNTED}


def told(used: Usage | None, of_chain: Usage | None) -> Usage | None:
    """Return an execution's usage as reported: its own and, if it continues others, its chain's."""
    return used if of_chain is None else {**(used or counted(None)), CHAIN: of_chain}


def header(used: Usage | None) -> dict[str, str]:
    """Return the usage as a header: ASCII, totals first, with as many models as fit; empty if not counted.

    The models of a chain are omitted.
    """
    if not used:
        return {}
    used = {**used, CHAIN: _without_models(used[CHAIN])} if CHAIN in used else used
    text = _ascii(_without_models(used))
    models, left = [], LONGEST_HEADER - len(text) - len(',"by_model":{}')
    for name, figures in used.get("by_model", {}).items():
        model = f"{_ascii(name)}:{_ascii(figures)}"
        left -= len(model) + 1
        if left < 0:
            break
        models.append(model)
    return {HEADER: f'{text[:-1]},"by_model":{{{",".join(models)}}}}}' if models else text}


def _without_models(used: Usage) -> Usage:
    return {name: value for name, value in used.items() if name != "by_model"}


def _ascii(value: Any) -> str:
    """Return JSON that is valid in a header: `json` escapes every forbidden character except DEL."""
    return COMPACT.encode(value).replace("\x7f", "\\u007f")


def _figure(value: Any) -> int:
    return max(0, min(value, MOST)) if type(value) is int else 0
