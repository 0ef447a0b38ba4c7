"""Which JSON values Airflow hands from task to task as they are. Pure."""

from __future__ import annotations

import json
from typing import Any

DEEPEST = 64  # levels of objects and lists in each other; more depend on the room that the interpreter has left
# Airflow refuses an object with one of these, and makes something else of one with both of the others.
RESERVED = {"__classname__", "__id__"}
OLD_FORM = {"__type", "__var"}
# Airflow's processes exchange no larger whole numbers.
SMALLEST, LARGEST = -(2**63), 2**64 - 1
# From here on PostgreSQL returns a float as a whole number.
FLOATS_BELOW = 1e16


def handed_on(value: Any) -> Any:
    """Return a JSON value as tasks hand it on: one that an XCom would not bring back becomes its text."""
    return value if is_kept(value) else json.dumps(value, ensure_ascii=False)


def is_kept(value: Any) -> bool:
    """Return whether an XCom brings a JSON value back as it was."""
    open_ones = [(value, 0)]
    while open_ones:
        each, depth = open_ones.pop()
        if not _is_kept(each) or depth > DEEPEST:
            return False
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        open_ones += [(part, depth + 1) for part in inner]
    return True


def _is_kept(value: Any) -> bool:
    if isinstance(value, dict):
        return RESERVED.isdisjoint(value) and not value.keys() >= OLD_FORM
    if isinstance(value, float):
        return abs(value) < FLOATS_BELOW
    return not isinstance(value, int) or SMALLEST <= value <= LARGEST
