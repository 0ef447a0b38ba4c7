"""A condition on JSON columns of Airflow's database."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import String, cast, true


def mentions(column: Any, text: str) -> Any:
    """Whether a JSON column contains a text; a caller must check each row that matches."""
    if not text.isascii():  # databases differ in how they write it
        return true()
    return cast(column, String).contains(json.dumps(text)[1:-1], autoescape=True)
