"""A task's current try, the state that a task keeps between its tries, and the values that tasks in a run share.

A retry does not change a task instance's `max_tries`; a clear sets it to the tries so far plus the task's `retries`.
While `retries` stays the same, `max_tries` only grows. If `retries` was edited, a clear may leave the same number as a
retry: no other number distinguishes them, because `clear_number` also counts clears of the run's other tasks. When in
doubt, the try counts as a retry, because a retry starts nothing twice; another clear then changes the number. A clear
of a running task also counts as a retry, because it leaves `max_tries` unchanged on every version.

On Airflow 3.3, the state is in the task state store. On all other versions, it is in a Variable named after the task
instance: 3.4 has the store too, but a clear empties it, and the next try would not know what to stop or what was sent.
XCom is unsuitable because it is cleared at the start of each try. A record that cannot be read or written is an error,
never an empty record. XComs that tell other tasks where webhooks are stored go to Airflow's database in full, even if
an XCom backend stores values elsewhere, as did those from earlier releases, which can still be read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Protocol, cast
from uuid import uuid4

from airflow.providers.common.compat.sdk import Variable, XCom
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.loops import region_of
from airflow_crew_provider.compat.supervisor import is_awaitable
from airflow_crew_provider.compat.version import clears_discard_task_state, has_inbox
from airflow_crew_provider.exceptions import CrewConnectionError
from airflow_crew_provider.models import Json

try:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
except ImportError:  # before Airflow 3.3
    NEVER_EXPIRE = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

NOT_DECRYPTED = (
    "exists but cannot be decrypted: [core] fernet_key has changed. Nothing is sent without this record. Add the old "
    "key after the new one, separated by a comma; then a retry continues"
)
_MISSING = re.compile(r"VARIABLE_NOT_FOUND|variable\b.*(not found|does not exist)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Attempt:
    """A try of a task instance.

    :param try_number: counts from 1, across retries and clears
    :param max_tries: the task instance's value
    :param retries: the task's current value from its DAG file
    :param clears: how often tasks in the DAG run have been cleared; None if this Airflow does not report it
    :param run_started: the start of the DAG run, in epoch seconds; None if this Airflow does not report it
    :param run_after: the earliest start of the DAG run, likewise; it never changes while the run exists
    """

    try_number: int = 1
    max_tries: int = 0
    retries: int = 0
    clears: int | None = None
    run_started: float | None = None
    run_after: float | None = None

    @classmethod
    def of(cls, context: Any, task: object) -> Attempt:
        """Return the current try."""
        ti, dag_run = context["ti"], context.get("dag_run")
        return cls(
            try_number=getattr(ti, "try_number", 1),
            max_tries=getattr(ti, "max_tries", 0),
            retries=getattr(task, "retries", None) or 0,
            clears=getattr(dag_run, "clear_number", None),
            run_started=_seconds(getattr(dag_run, "start_date", None)),
            run_after=_seconds(getattr(dag_run, "run_after", None)),
        )

    def with_clears_as_retries(self) -> Attempt:
        """Return this try with clears counting as retries, for a task whose POST must not be repeated after a clear."""
        return replace(self, max_tries=0, retries=0)

    def as_dict(self) -> Json:
        """Return the fields of this try to store in a record; omit unknown ones."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def follows(self, kept: Json) -> bool:
        """Whether a record may be from an earlier try; if not, the DAG run was deleted and recreated with the same id.

        :param kept: the record; release 0.1 stored neither the number of the try nor the start of the run
        """
        return bool(kept.get("try_number", 0) < self.try_number) and not self.is_of_another_run(kept)

    def is_of_another_run(self, kept: Json) -> bool:
        """Whether a record is known to be from a different DAG run.

        A run that differs only in its start may have been set to queued or running by hand.
        """
        if not self.started_again(kept):
            return False
        after = (self.run_after, kept.get("run_after"))
        differs = None not in after and after[0] != after[1]
        return differs or kept["clears"] > self.clears or kept.get("try_number", 0) >= self.try_number

    def started_again(self, kept: Json) -> bool:
        """Whether the DAG run's start differs from the record's without a clear that explains it.

        A clear that restarts a finished run is counted in the same transaction.
        """
        now, then = (self.run_started, self.clears), (kept.get("run_started"), kept.get("clears"))
        return None not in (*now, *then) and now[0] != then[0] and now[1] <= then[1]  # type: ignore[operator]

    def follows_clear(self, kept: Json) -> bool:
        """Whether the task has been cleared since the try that stored a record.

        :param kept: the value of `as_dict` at that time
        """
        return bool(kept.get("max_tries", self.max_tries) != self.max_tries)

    def may_follow_clear(self, kept: Json) -> bool:
        """Whether a clear would have left the same numbers as this retry, because `retries` was edited."""
        edited = kept.get("retries", self.retries) != self.retries
        return edited and not self.follows_clear(kept) and self.max_tries == self.try_number - 1 + self.retries

    def tell_doubt(self, kept: Json) -> None:
        """Log a warning if a retry looks like a clear, or like a try in a DAG run that was deleted and recreated."""
        if self.may_follow_clear(kept):
            log.warning(
                "The task's retries were edited from %s to %s, so a retry and a clear look alike. This try counts as a "
                "retry, which starts nothing twice; if you cleared the task to start again, clear it once more",
                kept["retries"],
                self.retries,
            )
        if self.started_again(kept) and not self.is_of_another_run(kept):
            log.warning(
                "The DAG run has started again without a clear. What this task did before still counts, so nothing is "
                "started twice; if the run was deleted and recreated with the same id, clear the task to start again"
            )


def _seconds(at: Any) -> float | None:
    return at.timestamp() if isinstance(at, datetime) else None


# --- what a task keeps ---


class TaskStateUnavailable(CrewConnectionError):
    """Airflow currently cannot read or write the state of a task."""


class TaskState(Protocol):
    """A small durable record of one task instance, shared by all its tries.

    :raises TaskStateUnavailable: from every method that reads or writes
    """

    outlives_run: bool  # whether it remains after its DAG run is deleted

    def recall(self) -> Json:
        """Return the record; empty if there is none."""

    def keep(self, record: Json) -> None:
        """Store the record durably before returning."""

    def forget(self) -> None:
        """Remove the record."""

    def close(self, record: Json) -> None:
        """Store the last record of a task that is about to succeed, or leave nothing behind."""


def check_move(thing: str, before: str, move: str, after: str, allowed: Collection[str | None]) -> None:
    """Check a move of a stored record.

    :param allowed: the states to which the record's `MOVES` lead
    :raises RuntimeError: `after` is not one of them
    """
    if after not in allowed:
        raise RuntimeError(f"A {thing} that is {before} cannot become {after} by {move}")


def task_state_of(context: Any, name: str) -> TaskState:
    """Return the running task instance's state with this name."""
    if NEVER_EXPIRE is None:
        return VariableTaskState(task_identity(context), name)
    store = context.get("task_state_store")
    if store is None:
        return NoTaskState()
    stored = StoredTaskState(store, name)
    return VariableTaskState(task_identity(context), name, stored) if clears_discard_task_state() else stored


def map_index_of(ti: Any) -> int:
    """Return the map index of a task instance; -1 if it is not mapped."""
    index = getattr(ti, "map_index", None)
    return -1 if index is None else index


def task_identity(context: Any) -> Json:
    """Return the fields that identify a task instance across its tries; in a loop, including the iteration."""
    ti = context["ti"]
    return {
        "dag_id": ti.dag_id,
        "run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": map_index_of(ti),
        **region_of(context),
    }


class StoredTaskState:
    """The task state store of Airflow 3.3 and newer, emptied if the DAG run is deleted and, from 3.4 on, by a clear."""

    outlives_run = False

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name

    def recall(self) -> Json:
        return _record(_checked("read", lambda: self._store.get(self._name)))

    def keep(self, record: Json) -> None:
        _checked("stored", lambda: self._store.set(self._name, record, retention=NEVER_EXPIRE))

    def forget(self) -> None:
        _checked("removed", lambda: self._store.delete(self._name))

    def close(self, record: Json) -> None:
        """Keep the record: a cleared task reads its earlier actions from it."""
        self.keep(record)


class NoTaskState:
    """A task called directly, outside any DAG run: it has no next try."""

    outlives_run = False

    def recall(self) -> Json:
        return {}

    def keep(self, record: Json) -> None:
        log.debug("Airflow keeps no state for this call; nothing is stored")

    close = keep

    def forget(self) -> None:
        """Nothing is kept."""


class VariableTaskState:
    """A Variable, removed by `close` on Airflow 2.11, and by the inbox on newer versions (`inbox.store.sweep`).

    Airflow also reports "not found" when it fails to read or decrypt a Variable, and only logs a failure to store one.
    So a Variable counts as missing only if none has its name or, if Airflow cannot report that, if another one can be
    read at the same time; and every stored value is read back.

    :param stored: from Airflow 3.4 on, the possible location of a record from before an upgrade
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
            is_named = _checked("read", lambda: has_variable(self.key))
            if is_named is not False:
                self._prove_readable()
                found = self._get(self.key)
            if found is None and is_named:
                raise TaskStateUnavailable(f"The record of this task, Variable {self.key}, {NOT_DECRYPTED}")
        if found is None and self._stored:
            return self._stored.recall()
        return {name: value for name, value in _record(found).items() if name not in self._run}

    def keep(self, record: Json) -> None:
        self._set(self.key, {**record, **self._run})

    def forget(self) -> None:
        _checked("removed", lambda: found_or_none(lambda: Variable.delete(self.key)))
        if self._stored:
            self._stored.forget()

    def close(self, record: Json) -> None:
        """Keep the record for a cleared task if something will eventually remove it; otherwise, remove it now."""
        if record and has_inbox():
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
        said = "State that a task of {dag_id} keeps between tries, in {run_id}".format_map(self._run)
        _checked("stored", lambda: Variable.set(key, value, description=said, serialize_json=True))
        if self._get(key) != json.loads(json.dumps(value)):
            raise TaskStateUnavailable(f"Airflow Variable {key} does not read back as it was stored")


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


def _checked(what: str, access: Callable[[], Any]) -> Any:
    try:
        return access()
    except Exception as error:
        problem = f"The stored state of this task could not be {what} ({type(error).__name__}: {str(error)[:200]})"
    raise TaskStateUnavailable(problem)


def _record(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


# --- what tasks share ---


class RelatedTask(Protocol):
    """An Airflow task, from which its upstream and downstream tasks can be found."""

    def has_dag(self) -> bool:
        """Whether it belongs to a DAG; a task that is called directly does not."""

    def get_flat_relatives(self, upstream: bool = False) -> Iterable[Any]:
        """Return the tasks downstream of it, or those upstream."""


def push_shared(context: Any, key: str, value: Any) -> None:
    """Push an XCom for the running task, bypassing any XCom backend."""
    ti = context["ti"]
    if XCom is not _plain():
        where = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": map_index_of(ti)}
        _plain().set(key=key, value=value, **where)
        return
    ti.xcom_push(key=key, value=value)


def pull_shared(context: Any, task_ids: list[str], key: str) -> list[Any]:
    """Return what tasks in this run pushed with `push_shared`."""
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
    # Airflow 3.3 can read without a thread, of which a triggerer has few.
    get_one = (is_awaitable() and getattr(_plain(), "aget_one", None)) or sync_to_async(_plain().get_one)
    return await get_one(**where)


def _plain() -> Any:
    """Return Airflow's own XCom, whatever backend is configured."""
    try:
        from airflow.sdk.bases.xcom import BaseXCom
    except ImportError:  # Airflow 2.11, which has no inbox
        return XCom
    return BaseXCom
