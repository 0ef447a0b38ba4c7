"""Where a task instance's record is kept: in one Variable, on every version of Airflow.

The record has a part for each POST, for the progress of a run, and for a question. Variables outlive retries, clears,
the task's success and upgrades of Airflow. Airflow 3.3's task state store does not: a setting empties it, a backend
that a worker does not have hides it, an upgrade does not fill it, and from 3.4 on a clear empties it. It is only read,
for runs that began there. XCom is cleared at the start of each try.

* **A task's loop stores the record before it does anything** (`task.drive`): all changes since then in one write, so
  that no crash can come between them. What a POST did is stored at once.
* **The record has a version**; what cannot be read as one is an error, never an empty record.
* **Nothing found means that nothing was sent**: a POST is also stored under its own name, as earlier releases did. That
  copy replaces a lost record, and workers of the last release find it (on 3.3 in the state store, too) and start
  nothing. If one of them has changed it, which its digest shows, it is newer than the record.
* **Texts are sealed**: all fields but those that a part declares as plain, and of a POST the addresses of its files,
  since drafts, feedback, reviewers and signatures are not for everybody who may read Variables. Airflow redacts the
  key's Variable in its API and pages, because of its name; workers read it without a Fernet key of their own. Ids,
  states and digests stay readable, so that the sweeper and a try without the key can act.
* Earlier releases kept each part in a Variable of its own; it is read until this one has the part.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import Any, NoReturn, Protocol
from uuid import uuid4

from cryptography.fernet import Fernet, InvalidToken

from airflow_crew_provider.compat import variables
from airflow_crew_provider.compat.encryption import NotDecrypted, key_to_store, stored_key
from airflow_crew_provider.compat.task_instance import NEVER_EXPIRE, task_identity
from airflow_crew_provider.compat.version import clears_discard_task_state, has_inbox
from airflow_crew_provider.exceptions import CrewConnectionError
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import PARTS, SEAL_KEY, TASK_RECORD, record_suffix
from airflow_crew_provider.task.record import SEALED_OF_POST, UNOPENED

log = logging.getLogger(__name__)

VERSION = 1
_EXTERNAL = "__airflow_state_ref__"  # marks a reference to a backend, in the state store


class TaskStateUnavailable(CrewConnectionError):
    """Airflow currently cannot read or write the state of a task."""


Failed = Callable[[TaskStateUnavailable], object]  # called if a change was not stored: raises or logs an error


class Store(Protocol):
    """A part of the durable record of one task instance, shared by all its tries.

    :raises TaskStateUnavailable: from every method that reads or writes
    """

    def recall(self) -> Json:
        """Return the part; empty if there is none."""

    def change(self, part: Json, failed: Failed) -> None:
        """Let the record's next write store the part, which happens before the task does anything else."""

    def keep(self, part: Json) -> None:
        """Store the part durably before returning, with all other changes of the record."""

    def owe(self, part: Json, failed: Failed) -> None:
        """Store the part like `keep`, but if that fails, let the record's later writes store all these changes."""

    def forget(self) -> None:
        """Store that there is nothing on record."""

    def close(self, part: Json) -> None:
        """Store the last part of a task that is about to succeed, or leave nothing behind."""


def record_of(context: Any) -> Stored:
    """Return the record of the running task instance."""
    if NEVER_EXPIRE is None:
        return TaskRecord(task_identity(context))
    state_store = context.get("task_state_store")
    return NoRecord() if state_store is None else TaskRecord(task_identity(context), state_store)


class NoRecord:
    """The record, and each part of it, of a task called directly, outside any DAG run: it has no next try."""

    def part(self, name: str, plain: Collection[str] | None) -> NoRecord:
        return self

    def recall(self) -> Json:
        return {}

    def keep(self, part: Json) -> None:
        log.debug("Airflow keeps no state for this call; nothing is stored")

    close = keep

    def change(self, part: Json, failed: Failed) -> None:
        """Nothing is kept."""

    owe = change

    def forget(self) -> None:
        """Nothing is kept."""

    save = forget


_CHANGING = RLock()  # a task's threads may change different parts


class TaskRecord:
    """The record of a task instance, in one Variable. What has changed in its parts is stored in one write.

    A Variable counts as missing only if it certainly is (`variables.find`). Airflow only logs a failure to store one,
    so every stored value is read back.

    :param state_store: Airflow's task state store, in which earlier releases kept records on 3.3
    """

    def __init__(self, identity: Json, state_store: Any = None) -> None:
        self.suffix = record_suffix(identity)
        self.digest = self.suffix.rpartition("__")[2]
        self.key = f"{TASK_RECORD}{self.suffix}"
        self.run = {"dag_id": identity["dag_id"], "run_id": identity["run_id"]}
        self.state_store = state_store
        self.changed: dict[str, Json] = {}  # the parts that the next write stores
        self.failed: list[Failed] = []  # what is called if that write fails
        self.owed: dict[str, Json] = {}  # what has happened outside, but could not be stored yet
        self._parts: dict[str, PartStore] = {}
        self._is_new = False  # whether the task certainly had no record at the last look

    def part(self, name: str, plain: Collection[str] | None) -> PartStore:
        """Return a part.

        :param plain: the fields that stay readable; all others are sealed. None for a POST, which has a copy, and of
            which only `SEALED_OF_POST` is sealed
        """
        return self._parts.setdefault(name, PartStore(self, name, plain))

    def save(self) -> None:
        """Store all changes in one write, if there are any."""
        changed, failed = self.unstored, self.failed
        if not changed:
            return
        self.changed, self.failed = {}, []
        try:
            with _CHANGING:
                new = {name: self._parts[name].secret.sealed(part) for name, part in changed.items()}
                self.store({**self.rows(), **new})
        except TaskStateUnavailable as problem:
            for each in failed:
                each(problem)
            return
        self.owed = {}
        for name, row in new.items():
            self._parts[name].copy(row)

    @property
    def unstored(self) -> dict[str, Json]:
        """The parts that the next write stores."""
        return {**self.owed, **self.changed}

    def rows(self) -> Json:
        """Return all parts as they are stored."""
        stored = self._get(self.key) if self._is_new else self.find(self.key)
        self._is_new = stored is None
        parts = {} if stored is None else self.read(stored).get(PARTS)
        if isinstance(parts, dict) and all(isinstance(each, dict) for each in parts.values()):
            return parts
        raise self.unreadable("it is no record")

    def store(self, rows: Json) -> None:
        """Store all parts."""
        self._set(self.key, {**self.run, "version": VERSION, PARTS: rows})

    def read(self, value: Any, *, of_post: bool = False) -> Json:
        """Return a value as a record; every release has named the run in a Variable, and the request of a POST."""
        if isinstance(value, dict) and _EXTERNAL in value:
            why = "it is in a backend, see [workers] state_store_backend, which this worker does not have"
        elif not isinstance(value, dict) or type(version := value.get("version", 0)) is not int:
            why = "it is no record"
        elif version > VERSION:
            why = f"it has version {version}, of a newer release"
        elif self.run.items() <= value.items() or value.get("fingerprint") or (value and not of_post):
            return dict(value)
        else:
            why = "it is no record of this task"
        raise self.unreadable(why)

    def unreadable(self, why: str, key: str = "") -> TaskStateUnavailable:
        """Return the error about a record that cannot be read."""
        return TaskStateUnavailable(
            f"The record of this task, {key or self.key}, cannot be read: {why}. Nothing is sent without this record"
        )

    def find(self, key: str) -> Any:
        """Return a Variable's value; None only if there certainly is no such Variable."""
        return self._parsed(key, _checked("read", lambda: variables.find(key, self._description)))

    def write(self, key: str, value: Json, store: Callable[[str, str, str], None] = variables.write) -> None:
        """Store a Variable."""
        store(key, json.dumps(value), self._description)

    @property
    def _description(self) -> str:
        return "State that a task of {dag_id} keeps between tries, in {run_id}".format_map(self.run)

    def _get(self, key: str) -> Any:
        """Return a Variable's value, or None if Airflow finds no such Variable; JSON ``null`` is an error."""
        return self._parsed(key, _checked("read", lambda: variables.read(key)))

    def _parsed(self, key: str, text: str | None) -> Any:
        if text is None:
            return None
        with suppress(ValueError):
            if (value := json.loads(text)) is not None:
                return value
        raise self.unreadable("it is no record", key)

    def _set(self, key: str, value: Json) -> None:
        _checked("stored", lambda: self.write(key, value, variables.keep))


class PartStore:
    """Stores a part of a record; `close` removes it on Airflow 2.11, its DAG run does on newer versions."""

    def __init__(self, record: TaskRecord, name: str, plain: Collection[str] | None) -> None:
        self.name, self.earlier_key = name, f"{name}{record.suffix}"
        self._record, self._is_post = record, plain is None
        self.secret = Secret(f"{SEAL_KEY}{name}__{record.digest}", plain)

    def recall(self) -> Json:
        record, store = self._record, self._record.state_store
        if self.name in record.unstored:
            return dict(record.unstored[self.name])
        newest, earlier = record.rows().get(self.name), None
        if newest is None or self._is_post:
            earlier = record.find(self.earlier_key)
            if store is not None:
                earlier = _newer(earlier, _checked("read", lambda: store.get(self.name)))
            newest = _newer(newest, earlier)
        if newest is None:
            return {}
        part = record.read(newest, of_post=self._is_post) if newest is earlier else dict(newest)
        for name in (*record.run, "version", "digest"):
            part.pop(name, None)
        return self.secret.opened(part)

    def change(self, part: Json, failed: Failed) -> None:
        self._record.changed[self.name] = part
        self._record.failed.append(failed)

    def keep(self, part: Json) -> None:
        self.change(part, _raised)
        self._record.save()

    def owe(self, part: Json, failed: Failed) -> None:
        record = self._record
        record.owed, record.changed, record.failed = {**record.unstored, self.name: part}, {}, [failed]
        record.save()

    def forget(self) -> None:
        if has_inbox():  # an empty record is not a lost one
            self.keep({})
        else:
            self._remove()

    def close(self, part: Json) -> None:
        """Keep the part for a cleared task if something will eventually remove it; otherwise, remove it now."""
        if part and has_inbox():
            self.keep(part)
        else:
            self._remove()

    def copy(self, row: Json) -> None:
        """Store a POST under its own name; if that fails, only log it, because the record itself is stored.

        :param row: the POST as stored in the record
        """
        if not self._is_post:
            return
        copy, store = {**row, "version": VERSION, "digest": _digest(row)}, self._record.state_store
        try:
            _checked("copied", lambda: self._record.write(self.earlier_key, {**copy, **self._record.run}))
            if store is not None and not clears_discard_task_state():
                _checked("copied", lambda: store.set(self.name, copy, retention=NEVER_EXPIRE))
        except TaskStateUnavailable as problem:
            log.warning("%s. The task's own record is stored", problem)

    def _remove(self) -> None:
        record = self._record
        for unstored in (record.owed, record.changed):
            unstored.pop(self.name, None)
        with _CHANGING:
            rows = {name: row for name, row in record.rows().items() if name != self.name}
            if rows:
                record.store(rows)
        for key in filter(None, (None if rows else record.key, self.earlier_key, self.secret.key)):
            _checked("removed", partial(variables.remove, key))
        if record.state_store is not None:
            with suppress(Exception):  # the record itself shows that nothing is on record
                record.state_store.delete(self.name)


Stored = TaskRecord | NoRecord


def _raised(problem: TaskStateUnavailable) -> NoReturn:
    raise problem


def _newer(part: Any, before: Any) -> Any:
    """Return what is newer: what is on record, or what an earlier release has written in its own place."""
    if part is None:
        return before
    is_record = isinstance(before, dict) and _EXTERNAL not in before
    if not is_record or (before.get("version") == VERSION and before.get("digest") == _digest(before)):
        return part
    return before  # an earlier release keeps fields that it does not know, so only the digest shows its change


def _digest(record: Json) -> str:
    known = {name: value for name, value in record.items() if name not in ("version", "digest", "dag_id", "run_id")}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


# --- texts ---


class Secret:
    """The key with which one record's texts are sealed, in a Variable that Airflow redacts because of its name.

    A key is never replaced: a worker that dies between a new key and the record would leave texts that nobody can open.

    :param prefix: the beginning of the Variable's name, with ``secret`` in it
    :param plain: the fields that are not sealed; None for all but `SEALED_OF_POST`
    """

    def __init__(self, prefix: str, plain: Collection[str] | None) -> None:
        self._prefix, self._plain = prefix, plain
        self.key: str | None = None  # the name of the record's key, once it has one

    def sealed(self, record: Json) -> Json:
        """Return the record with all but the plain fields sealed in one."""
        plain = record.keys() - {SEALED_OF_POST} if self._plain is None else self._plain
        texts = {name: value for name, value in record.items() if name not in plain}
        row = {name: value for name, value in record.items() if name not in texts}
        if texts:
            row["sealed"] = Fernet(self._kept() or self._made()).encrypt(json.dumps(texts).encode()).decode()
        return {**row, **({"sealed_with": self.key} if self.key else {})}

    def opened(self, record: Json) -> Json:
        """Return the record with its sealed fields, or with `UNOPENED` instead."""
        token, self.key = record.pop("sealed", None), record.pop("sealed_with", None)
        if token is None:
            return record
        with suppress(InvalidToken, NotDecrypted, ValueError):
            return {**record, **json.loads(Fernet(self._kept() or "").decrypt(token.encode()))}
        missing, self.key = self.key, None
        message = f"The texts in the record of this task cannot be opened: Variable {missing} is missing, or is another"
        return {**record, UNOPENED: f"{message} record's. Nothing is sent or asked without them"}

    def _made(self) -> str:
        key, name = Fernet.generate_key().decode(), f"{self._prefix}__{uuid4().hex[:8]}"
        description = "The key of texts that a task keeps between tries; removed with them"
        _checked("stored", lambda: variables.keep(name, key_to_store(key), description))
        self.key = name
        return key

    def _kept(self) -> str | None:
        key = self.key
        text = _checked("read", lambda: variables.read(key)) if key else None
        return stored_key(text) if text else None


def _checked(what: str, access: Callable[[], Any]) -> Any:
    try:
        return access()
    except variables.Unreadable as error:
        problem = f"The record of this task, {error}"
    except Exception as error:
        problem = f"The stored state of this task could not be {what} ({type(error).__name__}: {str(error)[:200]})"
    raise TaskStateUnavailable(problem)
