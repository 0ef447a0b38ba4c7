"""What an execution has used of language models so far, over all its segments and however each of them ended.

The column `tokens` has the total in every release; `usage` also has its parts, as far as they are known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Row

COUNTED = ("total_tokens", "prompt_tokens", "completion_tokens")
HEADER = "Crew-Usage"
MOST = 2**53 - 1  # tokens: what every reader of JSON takes as it is

Usage = dict[str, Any]


def counted(given: Mapping[str, Any] | None) -> Usage:
    """Return the figures that a crew gave; what is no number of tokens counts as none."""
    return {name: _figure((given or {}).get(name)) for name in COUNTED}


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Usage:
    return counted({name: one.get(name, 0) + other.get(name, 0) for name in COUNTED})


def so_far(row: Row[Any]) -> Usage | None:
    """Return what an execution has used, from its row; None where nobody has counted."""
    if row.usage is None and not row.tokens:
        return None
    used = counted(row.usage)
    return {**used, "total_tokens": max(used["total_tokens"], row.tokens)}


def header(used: Usage | None) -> dict[str, str]:
    """Write it as a header: ASCII, and three figures of at most `MOST`, so well under 1 KiB; none if nobody counted."""
    return {HEADER: json.dumps(used, separators=(",", ":"))} if used else {}


def _figure(value: Any) -> int:
    return max(0, min(value, MOST)) if type(value) is int else 0
