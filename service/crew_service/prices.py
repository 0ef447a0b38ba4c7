"""Computes the cost of model tokens from a table of prices.

A model that is not in the table has no price, so its cost is unknown rather than zero.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from crew_service import versions

log = logging.getLogger(__name__)

COUNTED = ("total_tokens", "prompt_tokens", "completion_tokens")
CACHED = "cached_prompt_tokens"  # the cached part of the prompt tokens, if any
WRITTEN = "cache_creation_tokens"  # the part of the prompt tokens that the provider has stored in its cache, if any
LONG = "long_calls"  # calls with more prompt tokens than `LONG_PROMPT`, if any
LONG_PROMPT = 200_000  # beyond which some providers charge more
UNCOUNTED = "uncounted_calls"  # calls without reported token counts, if any
FIGURES = (*COUNTED, CACHED, WRITTEN, LONG, UNCOUNTED)  # of one model
MILLION = 1_000_000
MOST_WARNINGS = 250  # about models without a price
HIGHEST = 1_000_000  # USD per million tokens; higher prices are mistakes, and costs must stay finite


class BadPrices(ValueError):
    """The price file cannot be used; the message gives the reason in one sentence."""


@dataclass(frozen=True)
class Price:
    """USD per million tokens.

    :param cached: of input tokens that the provider had cached; None if unknown
    :param written: of input tokens that it has stored in its cache; None if unknown
    :param is_tiered: whether long prompts cost more, so that their cost is unknown
    """

    input: float
    cached: float | None
    output: float
    written: float | None = None
    is_tiered: bool = False

    def of(self, figures: Mapping[str, int]) -> float | None:
        """Return the cost of a model's tokens; None if some have no price, or are neither input nor output."""
        prompt, completion = figures["prompt_tokens"], figures["completion_tokens"]
        if prompt + completion < figures["total_tokens"] or (self.is_tiered and figures.get(LONG)):
            return None
        cached = min(figures.get(CACHED, 0), prompt)
        written = min(figures.get(WRITTEN, 0), prompt - cached)
        if (cached and self.cached is None) or (written and self.written is None):
            return None
        usual = (prompt - cached - written) * self.input + completion * self.output
        return (usual + cached * (self.cached or 0.0) + written * (self.written or 0.0)) / MILLION


@dataclass(frozen=True)
class Catalogue:
    """Prices that a release of CrewAI brings along.

    :param source: its name and version, separated by a space
    :param read: returns the entries by the name of the model: `provider`, `input`, `output`, and if known `cached`,
        `written` and `tiered`
    """

    source: str
    read: Callable[[], dict[str, Any]]


def version_of(source: str) -> versions.Key:
    """Return the version of a catalogue's package, to compare two catalogues."""
    return versions.key(source.partition(" ")[2])


class Prices:
    """The prices by model name; without any, costs are not reported.

    :param default: where prices come from if none are given; the engine keeps them in the database (`engine.pricing`)
    """

    def __init__(self, prices: Mapping[str, Price] | None = None, *, default: Catalogue | None = None) -> None:
        self._prices = dict(prices or {})
        self._missed: set[str] = set()
        self._shown = f"Prices({self._prices!r})"
        self.default = default
        self.source: str | None = None  # of default prices, once they are known

    def take(self, source: str, entries: Mapping[str, Any]) -> None:
        """Use a catalogue from now on."""
        self._prices, self._missed = _of_catalogue(entries), set()
        self.source, self._shown = source, f"Prices({source!r})"

    @classmethod
    def read(cls, path: str) -> Prices:
        """Read a TOML or JSON file with a table for each model: `input`, `output` and, optionally, `cached`."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            content = (
                json.loads(text, object_pairs_hook=_without_twins)
                if path.lower().endswith(".json")
                else tomllib.loads(text)
            )
        except OSError as error:
            raise BadPrices(f"The prices in {path!r} cannot be read: {error.strerror}.") from None
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split()).rstrip(".") or "it is nested too deeply"
            raise BadPrices(f"The prices in {path!r} cannot be read: {reason}.") from None
        if not isinstance(content, dict) or not content:
            raise BadPrices(f"The prices in {path!r} name no model.")
        return cls({model: _price(path, model, entry) for model, entry in content.items()})

    def __bool__(self) -> bool:
        return bool(self._prices) or self.default is not None

    def __repr__(self) -> str:
        return self._shown  # so that two tables can be told apart

    def cost(self, model: str, figures: Mapping[str, int]) -> float | None:
        """Return the cost of a model's tokens in USD; log each model without a price once."""
        if figures.get(UNCOUNTED):
            return None
        if not figures["total_tokens"]:
            return 0.0
        price = self._prices.get(model)
        if price is None and self.default is None:
            price = self._prices.get(model.partition("/")[2])
        if price is not None:
            return price.of(figures)
        if model not in self._missed and len(self._missed) <= MOST_WARNINGS:
            self._missed.add(model)
            log.warning("%s has no price; its cost is unknown", repr(model) if model else "a model without a name")
        return None

    def priced(self, used: dict[str, Any] | None) -> dict[str, Any] | None:
        """Add the cost of each model and the total, which is None if a price or the model of some tokens is unknown."""
        if used is None or not self:
            return used
        by_model = {
            model: figures | {"cost_usd": self._rounded(model, figures)}
            for model, figures in used.get("by_model", {}).items()
        }
        costs = [figures["cost_usd"] for figures in by_model.values()]
        is_whole = sum(figures["total_tokens"] for figures in by_model.values()) >= used["total_tokens"]
        known = is_whole and None not in costs and not used.get(UNCOUNTED)
        totals = {**used, "cost_usd": round(sum(costs), 10) if known else None}
        totals.pop("by_model", None)
        return {**totals, "by_model": by_model} if by_model else totals

    def _rounded(self, model: str, figures: Mapping[str, int]) -> float | None:
        cost = self.cost(model, figures)
        return None if cost is None else round(cost, 10)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject repeated names, as TOML does."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} occurs twice")
    return dict(pairs)


def _price(path: str, model: str, entry: Any) -> Price:
    named = f"The prices in {path!r} cannot be used: {model!r}"
    if not model:
        raise BadPrices(f"The prices in {path!r} cannot be used: a model has no name.")
    if not isinstance(entry, dict) or not {"input", "output"} <= entry.keys() <= {"input", "cached", "output"}:
        raise BadPrices(f"{named} must have input and output, and optionally cached, in USD per million tokens.")
    for name, value in entry.items():
        if type(value) not in (int, float) or not 0 <= value <= HIGHEST:
            raise BadPrices(f"{named} has a price for {name} that is not a number from 0 to {HIGHEST:,}.")
    return Price(**{"cached": entry["input"], "written": entry["input"], **entry})


def _of_catalogue(entries: Mapping[str, Any]) -> dict[str, Price]:
    """Return the prices of a catalogue by every name of a model: with its provider, and alone if all providers agree.

    Providers of one model agree if input and output cost the same; what else differs is unknown.
    """
    prices: dict[str, Price] = {}
    offers: dict[str, list[Price]] = {}
    for name, entry in entries.items():
        more = entry.get("written"), bool(entry.get("tiered"))
        price = Price(entry["input"], entry.get("cached"), entry["output"], *more)
        provider, slash, bare = name.partition("/")
        bare = bare if slash else name
        prices.setdefault(f"{entry.get('provider', provider)}/{bare}", price)
        if slash:
            prices[name] = price
        if "/" not in bare:  # what follows a provider may be a region or another provider, at a price of its own
            offers.setdefault(bare, []).append(price)
    return prices | {bare: agreed for bare, several in offers.items() if (agreed := _agreed(several))}


def _agreed(several: list[Price]) -> Price | None:
    if len({(price.input, price.output) for price in several}) > 1:
        return None
    cached, written = ({getattr(price, name) for price in several} for name in ("cached", "written"))
    return Price(
        several[0].input,
        cached.pop() if len(cached) == 1 else None,
        several[0].output,
        written.pop() if len(written) == 1 else None,
        any(price.is_tiered for price in several),
    )
