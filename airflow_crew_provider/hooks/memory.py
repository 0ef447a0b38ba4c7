"""What a task remembers from one try to the next, where Airflow keeps such things.

Airflow 3.3 has a task state store; before, a Variable named after the task instance serves. XCom does not: it is
emptied at each try.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import Variable

from airflow_crew_provider.models import Json

try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
except ImportError:  # before Airflow 3.3
    NEVER_EXPIRE = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_MISSING = re.compile(r"VARIABLE_NOT_FOUND|variable\b.*(not found|does not exist)", re.IGNORECASE | re.DOTALL)


class Memory(Protocol):
    """A small durable record of one task instance, the same for all its tries."""

    def recall(self) -> Json:
        """Return the record; empty if there is none."""

    def keep(self, record: Json) -> None:
        """Store the record, durably, before returning."""

    def forget(self) -> None:
        """Remove the record."""

    def over(self) -> None:
        """Leave nothing behind: the task is about to succeed."""


def memory_of(context: Any, name: str) -> Memory:
    """Return the memory of the task instance that runs, under a name of its own."""
    if NEVER_EXPIRE is None:
        return VariableMemory(task_identity(context), name)
    store = context.get("task_state_store")
    return NoMemory() if store is None else StateStoreMemory(store, name)


def task_identity(context: Any) -> Json:
    """Return what names a task instance, the same for all its tries."""
    ti = context["ti"]
    index = getattr(ti, "map_index", -1)
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": -1 if index is None else index,
    }


class StateStoreMemory:
    """Airflow 3.3: removed together with the DAG run."""

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name

    def recall(self) -> Json:
        return _record(self._store.get(self._name))

    def keep(self, record: Json) -> None:
        self._store.set(self._name, record, retention=NEVER_EXPIRE)

    def forget(self) -> None:
        self._store.delete(self._name)

    def over(self) -> None:
        """Keep the record: it tells a task that is cleared what it did before."""


class NoMemory:
    """A task that is called by hand, outside of any DAG run: there is no next try."""

    def recall(self) -> Json:
        return {}

    def keep(self, record: Json) -> None:
        log.debug("Airflow keeps no state for this call; nothing is remembered")

    forget = over = lambda self: None


class VariableMemory:
    """Airflow 2.11 to 3.2: a Variable, removed at the end by `forget`."""

    def __init__(self, identity: Json, name: str) -> None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        self._key = f"{name}__{identity['task_id'][:100]}__{digest}"

    def recall(self) -> Json:
        return _record(_quietly(lambda: Variable.get(self._key, deserialize_json=True)))

    def keep(self, record: Json) -> None:
        Variable.set(self._key, record, serialize_json=True)

    def forget(self) -> None:
        _quietly(lambda: Variable.delete(self._key))

    over = forget


def _quietly(access: Callable[[], Any]) -> Any:
    """Return None for a Variable that does not exist; each version of Airflow names that differently."""
    try:
        return access()
    except KeyError:
        return None
    except Exception as error:
        if _MISSING.search(str(error)):
            return None
        raise


def _record(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
