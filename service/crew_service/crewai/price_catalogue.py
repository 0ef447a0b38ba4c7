"""The price catalogue that CrewAI ships, found without importing CrewAI.

CrewAI does not document it: where it is missing or has another shape, there are no default prices, and nothing else
changes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from crew_service.prices import HIGHEST, MILLION, Catalogue

log = logging.getLogger(__name__)

FILE = "crewai/llms/litellm_catalog/model_prices_and_context_window.json"  # from CrewAI 1.15.30 on
MODES = ("chat", "completion", "responses")
INPUT, OUTPUT = "input_cost_per_token", "output_cost_per_token"
CACHED, WRITTEN = "cache_read_input_token_cost", "cache_creation_input_token_cost"
TIER = f"{INPUT}_above_"
HIGHER_TIERS = tuple(f"{TIER}{thousands}k_tokens" for thousands in (200, 272, 512))


def installed() -> Catalogue | None:
    """Return the catalogue of the installed CrewAI, which is read only when it is needed; None if it has none."""
    try:
        distribution = metadata.distribution("crewai")
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(FILE)))
    return Catalogue(f"crewai {distribution.version}", _reader(path)) if path.is_file() else None


def _reader(path: Path) -> Callable[[], dict[str, Any]]:
    return lambda: _read(path)


def _read(path: Path) -> dict[str, Any]:
    """Return the prices in USD per million tokens, by the name in the catalogue; empty if they cannot be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
        priced = {name: _entry(fields) for name, fields in content.items() if isinstance(fields, dict)}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        log.warning("the price catalogue of CrewAI cannot be read: %s", type(error).__name__)
        return {}
    return {name: entry for name, entry in priced.items() if entry}


def _entry(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return a model's prices; None if they are not known. A price of 0 means that nobody has entered one."""
    prices = {name: _price(fields.get(key)) for name, key in (("input", INPUT), ("output", OUTPUT))}
    tiers = [key for key in fields if key.startswith(TIER) and key.endswith("_tokens")]
    if fields.get("mode") not in MODES or None in prices.values() or not set(tiers) <= set(HIGHER_TIERS):
        return None
    more = {"cached": _price(fields.get(CACHED)), "written": _price(fields.get(WRITTEN))}
    known = {name: price for name, price in more.items() if price is not None}
    return {
        "provider": str(fields.get("litellm_provider", "")),
        **prices,
        **known,
        **({"tiered": True} if tiers else {}),
    }


def _price(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    price = value * MILLION if is_number else 0.0
    return round(price, 9) if 0 < price <= HIGHEST else None
