"""Airflow's Variables in a task: which exist, and what a failed read means on each version.

Airflow also reports "not found" when it fails to read or decrypt a Variable. Where something depends on a Variable's
absence, `find` makes sure of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast
from uuid import uuid4

from airflow.providers.common.compat.sdk import Variable
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.supervisor import is_awaitable

PROOF = "__readable"  # the end of a name: of a Variable that exists for a moment
NOT_DECRYPTED = (
    "exists but cannot be decrypted: [core] fernet_key has changed. Nothing is sent without this record. Add the old "
    "key after the new one, separated by a comma; then a retry continues"
)
_MISSING = re.compile(r"VARIABLE_NOT_FOUND|variable\b.*(not found|does not exist)", re.IGNORECASE | re.DOTALL)


def has_variable(key: str) -> bool | None:
    """Whether a Variable with this name exists, whatever its value; None if Airflow does not report it (3.0 to 3.2)."""
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


@contextmanager
def _if_found() -> Iterator[None]:
    """Ignore that a Variable does not exist, which each Airflow version reports differently."""
    try:
        yield
    except Exception as error:
        if not (isinstance(error, KeyError) or _MISSING.search(str(error))):
            raise


def read(key: str) -> Any:
    """Return a Variable's value, or None if it does not exist."""
    with _if_found():
        return Variable.get(key)
    return None


class Unreadable(Exception):
    """A Variable exists, but Airflow does not return its value."""


def find(key: str, description: str) -> str | None:
    """Return a Variable's value; None only if there certainly is no such Variable.

    It counts as missing only if none has its name or, if Airflow does not report that, if another one can be read at
    the same time.

    :param description: of that other one
    """
    value: str | None = read(key)
    if value is not None:
        return value
    is_named = has_variable(key)
    if is_named is False:
        return None
    _prove_readable(f"{key}{PROOF}", description)
    value = read(key)
    if value is None and is_named:
        raise Unreadable(f"Variable {key}, {NOT_DECRYPTED}")
    return value


def _prove_readable(key: str, description: str) -> None:
    try:
        keep(key, json.dumps({"proof": uuid4().hex}), description)
    finally:
        with suppress(Exception):
            remove(key)


async def aread(key: str) -> Any:
    """Return the same as `read` without blocking the event loop."""
    get = getattr(Variable, "aget", None)  # Airflow 3.4 needs no thread for this, and a triggerer has few
    if get is None or not is_awaitable():
        return await sync_to_async(read)(key)
    with _if_found():
        return await get(key)
    return None


def write(key: str, text: str, description: str) -> None:
    """Store a Variable; Airflow may only log a failure."""
    Variable.set(key, text, description=description)


def keep(key: str, text: str, description: str) -> None:
    """Store a Variable and read it back; raise a RuntimeError if it differs."""
    write(key, text, description)
    if read(key) != text:
        raise RuntimeError(f"Airflow Variable {key} does not read back as it was stored")


def remove(key: str) -> None:
    """Remove a Variable, if it exists."""
    with _if_found():
        Variable.delete(key)
