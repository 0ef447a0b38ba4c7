"""Which try of a task runs, what a task keeps between its tries, and what tasks of a run tell each other.

A retry leaves a task instance's `max_tries` alone; a clear sets it to the tries so far plus the task's `retries`, a
number that only grows while `retries` stays the same. Where `retries` was edited, a clear may leave the same number as
a retry: no other figure tells them apart, since `clear_number` counts clears of the run's other tasks too. In doubt it
is a retry, since a retry starts nothing twice; a further clear then changes the number. So is a clear of a task that
runs, which leaves `max_tries` alone on every version.

Airflow 3.3 has a task state store. Before, a Variable named after the task instance serves, and from 3.4 on again:
there a clear empties the store, and the next try would not know what to stop, or what was sent. XCom does not serve: it
is emptied at each try. A record that cannot be read or written is an error, never an empty record. XComs by which tasks
tell each other where webhooks are kept stand in Airflow's database whole, also where an XCom backend is configured that
keeps values elsewhere, as did those of earlier releases, which are still read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import uuid4

from airflow.providers.common.compat.sdk import Variable, XCom
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.loops import region_of
from airflow_crew_provider.compat.supervisor import is_awaitable
from airflow_crew_provider.compat.version import clears_discard_task_state
from airflow_crew_provider.exceptions import CrewConnectionError
from airflow_crew_provider.models import Json

try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
except ImportError:  # before Airflow 3.3
    NEVER_EXPIRE = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_MISSING = re.compile(r"VARIABLE_NOT_FOUND|variable\b.*(not found|does not exist)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Attempt:
    """A try of a task instance.

    :param try_number: counts from 1, over retries and clears
    :param max_tries: of the task instance
    :param retries: of the task, as its DAG file says now
    :param clears: how often tasks of the DAG run were cleared; None where this Airflow does not say
    :param run_started: when the DAG run started, in epoch seconds; None where this Airflow does not say
    """

    try_number: int = 1
    max_tries: int = 0
    retries: int = 0
    clears: int | None = None
    run_started: float | None = None

    @classmethod
    def of(cls, context: Any, task: Any) -> Attempt:
        """Return the try that runs."""
        ti, dag_run = context["ti"], context.get("dag_run")
        started = getattr(dag_run, "start_date", None)
        return cls(
            try_number=getattr(ti, "try_number", 1),
            max_tries=getattr(ti, "max_tries", 0),
            retries=getattr(task, "retries", None) or 0,
            clears=getattr(dag_run, "clear_number", None),
            run_started=started.timestamp() if isinstance(started, datetime) else None,
        )

    def with_clears_as_retries(self) -> Attempt:
        """Return this try for a task whose POST must not be repeated by a clear either."""
        return replace(self, max_tries=0, retries=0)

    def as_dict(self) -> Json:
        """Return what a record keeps of this try; without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def follows(self, kept: Json) -> bool:
        """Whether a record may be of an earlier try; else the DAG run was deleted and created again under its id.

        :param kept: the record; of release 0.1 without the number of its try, of 0.2.0 without the start of its run
        """
        return bool(kept.get("try_number", 0) < self.try_number) and not self.is_of_another_run(kept)

    def is_of_another_run(self, kept: Json) -> bool:
        """Whether the DAG run has another start than when a record was kept, which no clear explains.

        A clear that lets a run that was over start again is counted, in the same transaction.
        """
        now, then = (self.run_started, self.clears), (kept.get("run_started"), kept.get("clears"))
        return None not in (*now, *then) and now[0] != then[0] and now[1] <= then[1]  # type: ignore[operator]

    def follows_clear(self, kept: Json) -> bool:
        """Whether the task was cleared since the try that a record was kept by.

        :param kept: what `as_dict` returned then
        """
        return bool(kept.get("max_tries", self.max_tries) != self.max_tries)

    def may_follow_clear(self, kept: Json) -> bool:
        """Whether a clear would have left the very numbers of this retry, since the task's `retries` was edited."""
        edited = kept.get("retries", self.retries) != self.retries
        return edited and not self.follows_clear(kept) and self.max_tries == self.try_number - 1 + self.retries

    def tell_doubt(self, kept: Json) -> None:
        """Log where a retry and a clear look alike."""
        if self.may_follow_clear(kept):
            log.warning(
                "The task's retries were edited from %s to %s, so that a retry and a clear look alike. It counts as a "
                "retry, which starts nothing twice; if you have cleared the task to start anew, clear it once more",
                kept["retries"],
                self.retries,
            )


# --- what a task keeps ---


class TaskStateUnavailable(CrewConnectionError):
    """Airflow cannot read or write the state of a task at the moment."""


class TaskState(Protocol):
    """A small durable record of one task instance, the same for all its tries.

    :raises TaskStateUnavailable: from every method that reads or writes
    """

    outlives_run: bool  # whether it stays when its DAG run is deleted

    def recall(self) -> Json:
        """Return the record; empty if there is none."""

    def keep(self, record: Json) -> None:
        """Store the record, durably, before returning."""

    def forget(self) -> None:
        """Remove the record."""

    def over(self, record: Json) -> None:
        """Store the last record of a task that is about to succeed, or leave nothing behind."""


def task_state_of(context: Any, name: str) -> TaskState:
    """Return the state of the running task instance, under its own name."""
    if NEVER_EXPIRE is None:
        return VariableTaskState(task_identity(context), name)
    store = context.get("task_state_store")
    if store is None:
        return NoTaskState()
    stored = StoredTaskState(store, name)
    return VariableTaskState(task_identity(context), name, stored) if clears_discard_task_state() else stored


def task_identity(context: Any) -> Json:
    """Return what names a task instance, the same for all its tries; in a loop also its iteration."""
    ti = context["ti"]
    index = getattr(ti, "map_index", -1)
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": -1 if index is None else index,
        **region_of(context),
    }


class StoredTaskState:
    """Airflow 3.3: removed together with the DAG run. From 3.4 on also with each clear."""

    outlives_run = False

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name

    def recall(self) -> Json:
        return _record(_checked("read", lambda: self._store.get(self._name)))

    def keep(self, record: Json) -> None:
        _checked("stored", lambda: self._store.set(self._name, record, retention=NEVER_EXPIRE))

    def forget(self) -> None:
        _checked("removed", lambda: self._store.delete(self._name))

    def over(self, record: Json) -> None:
        """Keep the record: a cleared task reads from it what it did before."""
        self.keep(record)


class NoTaskState:
    """A task that is called by hand, outside of any DAG run: it has no next try."""

    outlives_run = False

    def recall(self) -> Json:
        return {}

    def keep(self, record: Json) -> None:
        log.debug("Airflow keeps no state for this call; nothing is stored")

    over = keep

    def forget(self) -> None:
        """Nothing is kept."""


class VariableTaskState:
    """A Variable: up to Airflow 3.2 removed at the end by `over`, from 3.4 on by the inbox (`inbox.store.sweep`).

    Airflow answers "not found" also when it fails to read a Variable, and only logs that it failed to store one. So
    a Variable counts as missing only where another one can be read at the same time, and what is stored is read back.

    :param stored: from Airflow 3.4 on, where the record of a task may stand that ran before an upgrade
    """

    outlives_run = True

    def __init__(self, identity: Json, name: str, stored: StoredTaskState | None = None) -> None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        self.key = f"{name}__{identity['task_id'][:100]}__{digest}"
        self._run = {"dag_id": identity["dag_id"], "run_id": identity["run_id"]}
        self._stored = stored

    def recall(self) -> Json:
        found = self._get(self.key)
        if found is None:
            self._prove_readable()
            found = self._get(self.key)
        if found is None and self._stored:
            return self._stored.recall()
        return {name: value for name, value in _record(found).items() if name not in self._run}

    def keep(self, record: Json) -> None:
        self._set(self.key, {**record, **self._run})

    def forget(self) -> None:
        _checked("removed", lambda: found_or_none(lambda: Variable.delete(self.key)))
        if self._stored:
            self._stored.forget()

    def over(self, record: Json) -> None:
        """Keep the record where it is removed some day, which a cleared task needs; nothing else would remove it."""
        if record and self._stored:
            self.keep(record)
        else:
            self.forget()

    def _prove_readable(self) -> None:
        proof = f"{self.key}__readable"
        try:
            self._set(proof, {"proof": uuid4().hex})
        finally:
            with suppress(Exception):
                Variable.delete(proof)

    def _get(self, key: str) -> Any:
        return _checked("read", lambda: found_or_none(lambda: Variable.get(key, deserialize_json=True)))

    def _set(self, key: str, value: Json) -> None:
        said = "What a task of {dag_id} keeps between its tries, in {run_id}".format_map(self._run)
        _checked("stored", lambda: Variable.set(key, value, description=said, serialize_json=True))
        if self._get(key) != json.loads(json.dumps(value)):
            raise TaskStateUnavailable(f"Airflow's Variable {key} does not read as it was stored")


def found_or_none(access: Callable[[], Any]) -> Any:
    """Return None for a Variable that does not exist; each version of Airflow names that differently."""
    try:
        return access()
    except Exception as error:
        if is_missing(error):
            return None
        raise


def is_missing(error: Exception) -> bool:
    """Whether an error says that a Variable does not exist."""
    return isinstance(error, KeyError) or bool(_MISSING.search(str(error)))


def _checked(what: str, access: Callable[[], Any]) -> Any:
    try:
        return access()
    except Exception as error:
        problem = f"The stored state of this task could not be {what} ({type(error).__name__}: {str(error)[:200]})"
    raise TaskStateUnavailable(problem)


def _record(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


# --- what tasks tell each other ---


def push_shared(context: Any, key: str, value: Any) -> None:
    """Push an XCom of the task that runs, past an XCom backend."""
    ti = context["ti"]
    if XCom is not _plain():
        index = -1 if ti.map_index is None else ti.map_index
        where = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}
        _plain().set(key=key, value=value, **where)
        return
    ti.xcom_push(key=key, value=value)


def pull_shared(context: Any, task_ids: list[str], key: str) -> list[Any]:
    """Return what tasks of this run have pushed by `push_shared`."""
    ti = context["ti"]
    if XCom is not _plain():
        where = {"dag_id": ti.dag_id, "run_id": ti.run_id, "key": key}
        return [value for task_id in task_ids for value in _plain().get_all(task_id=task_id, **where) or []]
    return ti.xcom_pull(task_ids=task_ids, key=key) or []


def get_shared(**where: Any) -> Any:
    """Return the value of an XCom that an earlier release of the inbox wrote; None if there is none.

    :param where: `key`, `dag_id`, `run_id`, `task_id` and `map_index`
    """
    return _plain().get_one(**where)


async def aget_shared(**where: Any) -> Any:
    """Do what `get_shared` does without blocking the event loop."""
    # Airflow 3.3 reads without a thread, of which a triggerer has few.
    get_one = (is_awaitable() and getattr(_plain(), "aget_one", None)) or sync_to_async(_plain().get_one)
    return await get_one(**where)


def _plain() -> Any:
    """Return Airflow's own XCom, whatever backend is configured."""
    try:
        from airflow.sdk.bases.xcom import BaseXCom
    except ImportError:  # Airflow 2.11, which has no inbox
        return XCom
    return BaseXCom
