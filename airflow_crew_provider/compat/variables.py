"""Airflow's Variables in a task: which exist, and what a failed read means on each version."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from airflow.providers.common.compat.sdk import Variable

__all__ = ["Variable", "found_or_none", "has_variable", "is_missing", "read", "remove"]

_MISSING = re.compile(r"VARIABLE_NOT_FOUND|variable\b.*(not found|does not exist)", re.IGNORECASE | re.DOTALL)


def has_variable(key: str) -> bool | None:
    """Whether a Variable with this name exists, whatever its value; None if Airflow does not report it (3.0 to 3.3)."""
    if hasattr(Variable, "keys"):
        return key in Variable.keys(prefix=key)
    table: Any = getattr(Variable, "__table__", None)
    if table is None:
        return None
    # Airflow 2.11, where tasks can access the database; its sessions are shared with the running task
    from airflow.settings import engine
    from sqlalchemy import select

    with cast("Any", engine).connect() as connection:
        return connection.execute(select(table.c.id).where(table.c.key == key)).first() is not None


def found_or_none(access: Callable[[], Any]) -> Any:
    """Return a call's result, or None if a Variable does not exist; each Airflow version reports that differently."""
    try:
        return access()
    except Exception as error:
        if is_missing(error):
            return None
        raise


def is_missing(error: Exception) -> bool:
    """Whether an error means that a Variable does not exist."""
    return isinstance(error, KeyError) or bool(_MISSING.search(str(error)))


def read(key: str, **how: Any) -> Any:
    """Return a Variable's value, or None if it does not exist; ``how`` are further arguments of `Variable.get`."""
    return found_or_none(lambda: Variable.get(key, **how))


def remove(key: str) -> None:
    """Remove a Variable, if it exists."""
    found_or_none(lambda: Variable.delete(key))
