"""Where a task instance's records are kept: in Airflow's Variables, on every version.

Variables outlive retries, clears, the task's success and upgrades of Airflow. Airflow 3.3's task state store does not:
a setting empties it, a backend that a worker does not have hides it, an upgrade does not fill it, and from 3.4 on a
clear empties it. It is only read, for runs that began there; on 3.3, the record of a POST is written there too, so that
a worker of the last release finds it. XCom is cleared at the start of each try.

* **A record has a version**; what cannot be read as one is an error, never an empty record.
* **Nothing found means that nothing was sent**, unless a loss is shown: the look ended in an error or in a reference to
  a backend, or the task's witness names an execution (`WITNESSED`). The witness is a Variable of its own, which remains
  until the DAG run is deleted.
* **Texts are sealed** (all but `PLAIN`): drafts, feedback and reviewers are not for everybody who may read Variables.
  Airflow redacts the key's Variable in its API and pages, because of its name; workers read it without a Fernet key of
  their own. Ids, states and digests stay readable, so that the sweeper and a try without the key can act.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any, Protocol, cast
from uuid import uuid4

from cryptography.fernet import Fernet, InvalidToken

from airflow_crew_provider.compat import variables
from airflow_crew_provider.compat.task_instance import NEVER_EXPIRE, task_identity
from airflow_crew_provider.compat.version import clears_discard_task_state, has_inbox
from airflow_crew_provider.exceptions import CrewConnectionError
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import (
    AGENT_STATE,
    EXECUTION_RECORD_KEY,
    KICKOFF_STATE,
    RESUME_STATE,
    REVIEW_STATE,
    RUN_STATE,
    SEAL_KEY,
)
from airflow_crew_provider.task.attempt import Attempt

log = logging.getLogger(__name__)

VERSION = 1
_OF_ATTEMPT = tuple(each.name for each in fields(Attempt))
# The fields of the records with texts that stay readable; all others are sealed.
PLAIN: dict[str, tuple[str, ...]] = {
    RUN_STATE: (
        *("execution_id", "kickoff_id", "inbox", "since", "worked", "number", "draft", "answered", "over", "earlier"),
    ),
    REVIEW_STATE: (
        *(*_OF_ATTEMPT, "draft", "since", "until", "asked_at", "doubt", "asked_by", "notified", "rejected"),
        *("sent_back", "once_more", "over"),
    ),
}
POSTS = (KICKOFF_STATE, RESUME_STATE, AGENT_STATE)
WITNESSED = KICKOFF_STATE  # the POST that costs money
NOT_DECRYPTED = (
    "exists but cannot be decrypted: [core] fernet_key has changed. Nothing is sent without this record. Add the old "
    "key after the new one, separated by a comma; then a retry continues"
)
_EXTERNAL = "__airflow_state_ref__"  # marks a reference to a backend, in the state store


class TaskStateUnavailable(CrewConnectionError):
    """Airflow currently cannot read or write the state of a task."""


class RecordLost(TaskStateUnavailable):
    """A record is missing although it was written: the task's witness names what it started.

    :param witness: the fields of `VariableStore.testify`
    """

    def __init__(self, message: str, witness: Json) -> None:
        super().__init__(message)
        self.witness = witness


class Store(Protocol):
    """A small durable record of one task instance, shared by all its tries.

    :raises TaskStateUnavailable: from every method that reads or writes
    """

    def recall(self) -> Json:
        """Return the record; empty if there is none.

        :raises RecordLost: there was one
        """

    def keep(self, record: Json) -> None:
        """Store the record durably before returning."""

    def forget(self) -> None:
        """Store that there is nothing on record."""

    def close(self, record: Json) -> None:
        """Store the last record of a task that is about to succeed, or leave nothing behind."""

    def testify(self, witness: Json) -> None:
        """Store what the record is about in a place of its own; if that fails, only log it."""


def check_move(thing: str, before: str, move: str, after: str, allowed: Collection[str | None]) -> None:
    """Check a move of a stored record.

    :param allowed: the states to which the record's `MOVES` lead
    :raises RuntimeError: `after` is not one of them
    """
    if after not in allowed:
        raise RuntimeError(f"A {thing} that is {before} cannot become {after} by {move}")


def store_of(context: Any, name: str) -> Store:
    """Return the store of the running task instance's record with this name."""
    if NEVER_EXPIRE is None:
        return VariableStore(task_identity(context), name)
    state_store = context.get("task_state_store")
    if state_store is None:
        return NoStore()
    return VariableStore(task_identity(context), name, StateStore(state_store, name))


class NoStore:
    """A task called directly, outside any DAG run: it has no next try."""

    def recall(self) -> Json:
        return {}

    def keep(self, record: Json) -> None:
        log.debug("Airflow keeps no state for this call; nothing is stored")

    close = testify = keep

    def forget(self) -> None:
        """Nothing is kept."""


class StateStore:
    """The task state store of Airflow 3.3 and newer, in which earlier releases kept records on 3.3."""

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name
        self.is_shared = name.startswith(POSTS) and not clears_discard_task_state()

    def recall(self) -> Any:
        """Return what Airflow has under the record's name; None if there is nothing."""
        return _checked("read", lambda: self._store.get(self._name))

    def share(self, record: Json) -> None:
        """Store a POST's record for workers of the last release, which look nowhere else."""
        if self.is_shared:
            copy = {**record, "version": VERSION, "digest": _digest(record)}
            _checked("stored", lambda: self._store.set(self._name, copy, retention=NEVER_EXPIRE))

    def forget(self) -> None:
        with suppress(Exception):  # the record itself shows that nothing is on record
            self._store.delete(self._name)


class VariableStore:
    """A Variable, removed by `close` on Airflow 2.11, and with its DAG run on newer versions (`inbox.store.sweep`).

    Airflow also reports "not found" when it fails to read or decrypt a Variable, and only logs a failure to store one.
    So a Variable counts as missing only if none has its name or, if Airflow cannot report that, if another one can be
    read at the same time; and every stored value is read back.

    :param earlier: the possible location of a record that an earlier release wrote on Airflow 3.3
    """

    def __init__(self, identity: Json, name: str, earlier: StateStore | None = None) -> None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        self.key = f"{name}__{identity['task_id'][:100]}__{digest}"
        self._witness_key = f"{EXECUTION_RECORD_KEY}of_task_{digest}"
        self._secret = Secret(f"{SEAL_KEY}{name}__{digest}")
        self._is_post = name.startswith(POSTS)
        self._run = {"dag_id": identity["dag_id"], "run_id": identity["run_id"]}
        self._name, self._earlier = name, earlier

    def recall(self) -> Json:
        found = self._find(self.key)
        if self._earlier and (found is None or self._earlier.is_shared):
            found = _newer(found, self._earlier.recall())
        if found is None:
            self._refuse_loss()
            return {}
        record = self._read(found)
        for name in (*self._run, "version", "digest"):
            record.pop(name, None)
        return self._secret.opened(record)

    def keep(self, record: Json) -> None:
        if self._earlier:
            self._earlier.share(record)
        row = {**self._secret.sealed(record, PLAIN.get(self._name)), **self._run, "version": VERSION}
        self._set(self.key, row)

    def forget(self) -> None:
        if has_inbox():  # an empty record is not a lost one
            self.keep({})
        else:
            self._remove()

    def close(self, record: Json) -> None:
        """Keep the record for a cleared task if something will eventually remove it; otherwise, remove it now."""
        if record and has_inbox():
            self.keep(record)
        else:
            self._remove()

    def testify(self, witness: Json) -> None:
        if not has_inbox():  # Airflow 2.11, where nothing would remove it
            return
        try:
            self._set(self._witness_key, {**witness, **self._run})
        except TaskStateUnavailable as problem:
            log.warning("%s. The task's own record is stored", problem)

    def _read(self, value: Any) -> Json:
        """Return a value as a record; every release has named the run in a Variable, and the request of a POST."""
        if isinstance(value, dict) and _EXTERNAL in value:
            why = "it is in a backend, see [workers] state_store_backend, which this worker does not have"
        elif not isinstance(value, dict) or type(version := value.get("version", 0)) is not int:
            why = "it is no record"
        elif version > VERSION:
            why = f"it has version {version}, of a newer release"
        elif self._run.items() <= value.items() or value.get("fingerprint") or (value and not self._is_post):
            return dict(value)
        else:
            why = "it is no record of this task"
        raise TaskStateUnavailable(
            f"The record of this task, {self.key}, cannot be read: {why}. Nothing is sent without this record"
        )

    def _refuse_loss(self) -> None:
        witness = self._find(self._witness_key) if self._name == WITNESSED and has_inbox() else None
        if witness is not None:
            for name in self._run:
                witness.pop(name, None)
            raise RecordLost(
                f"The record of this task, Variable {self.key}, is lost: Variable {self._witness_key} shows that the "
                f"task started execution {witness.get('kickoff_id')}",
                witness,
            )

    def _remove(self) -> None:
        for key in filter(None, (self.key, self._secret.key)):
            _checked("removed", partial(variables.remove, key))
        if self._earlier:
            self._earlier.forget()

    def _find(self, key: str) -> Any:
        """Return a Variable's value; None only if there certainly is no such Variable."""
        found = self._get(key)
        if found is not None:
            return found
        is_named = _checked("read", lambda: variables.has_variable(key))
        if is_named is False:
            return None
        self._prove_readable()
        found = self._get(key)
        if found is None and is_named:
            raise TaskStateUnavailable(f"The record of this task, Variable {key}, {NOT_DECRYPTED}")
        return found

    def _prove_readable(self) -> None:
        proof = f"{self.key}__readable"
        try:
            self._set(proof, {"proof": uuid4().hex})
        finally:
            with suppress(Exception):
                variables.Variable.delete(proof)

    def _get(self, key: str) -> Any:
        return _checked("read", lambda: variables.read(key, deserialize_json=True))

    def _set(self, key: str, value: Json) -> None:
        description = "State that a task of {dag_id} keeps between tries, in {run_id}".format_map(self._run)
        _checked("stored", lambda: variables.Variable.set(key, value, description=description, serialize_json=True))
        if self._get(key) != json.loads(json.dumps(value)):
            raise TaskStateUnavailable(f"Airflow Variable {key} does not read back as it was stored")


def _newer(found: Any, before: Any) -> Any:
    """Return what is newer: a Variable's value, or one that an earlier release has written to the state store."""
    if found is None:
        return before
    is_record = isinstance(before, dict) and _EXTERNAL not in before
    if not is_record or (before.get("version") == VERSION and before.get("digest") == _digest(before)):
        return found
    return before  # an earlier release keeps fields that it does not know, so only the digest shows its change


def _digest(record: Json) -> str:
    known = {name: value for name, value in record.items() if name not in ("version", "digest")}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


# --- texts ---


class Secret:
    """The key with which one record's texts are sealed, in a Variable that Airflow redacts because of its name.

    A key is never replaced: a worker that dies between a new key and the record would leave texts that nobody can open.

    :param prefix: the beginning of the Variable's name, with ``secret`` in it
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.key: str | None = None  # the name of the record's key, once it has one

    def sealed(self, record: Json, plain: Collection[str] | None) -> Json:
        """Return the record with all but the plain fields sealed in one; None leaves all of them plain."""
        texts = {name: value for name, value in record.items() if plain is not None and name not in plain}
        row = {name: value for name, value in record.items() if name not in texts}
        if texts:
            row["sealed"] = Fernet(self._kept() or self._made()).encrypt(json.dumps(texts).encode()).decode()
        return {**row, **({"sealed_with": self.key} if self.key else {})}

    def opened(self, record: Json) -> Json:
        """Return the record with its sealed fields.

        :raises TaskStateUnavailable: they cannot be opened now
        """
        token, self.key = record.pop("sealed", None), record.pop("sealed_with", None)
        if token is None:
            return record
        with suppress(InvalidToken, ValueError):
            return {**record, **json.loads(Fernet(self._kept() or "").decrypt(token.encode()))}
        raise TaskStateUnavailable(
            f"The texts in the record of this task cannot be opened: Variable {self.key} is missing, or is another "
            "record's. Nothing is sent or asked without them"
        )

    def _made(self) -> str:
        key, name = Fernet.generate_key().decode(), f"{self._prefix}__{uuid4().hex[:8]}"
        description = "The key of texts that a task keeps between tries; removed with them"
        _checked("stored", lambda: variables.Variable.set(name, key, description=description))
        self.key = name
        if self._kept() != key:
            raise TaskStateUnavailable(f"Airflow Variable {name} does not read back as it was stored")
        return key

    def _kept(self) -> str | None:
        key = self.key
        return cast("str | None", _checked("read", lambda: variables.read(key))) if key else None


def _checked(what: str, access: Callable[[], Any]) -> Any:
    try:
        return access()
    except Exception as error:
        problem = f"The stored state of this task could not be {what} ({type(error).__name__}: {str(error)[:200]})"
    raise TaskStateUnavailable(problem)
