"""What an earlier try of a task instance is to the present one: `Same`, `Retry`, `Clear`, `OtherRun` or `Doubtful`.

Airflow gives no name to this relation, only numbers, and some of them may be missing. `TABLE` is the law: its first row
that fits decides. Everything that depends on an earlier try asks `Attempt.relation_to`.

* The number of a try grows with each retry and each clear. It stays the same if Airflow runs a try again: a retry
  policy that reschedules (3.4), a sensor in mode ``reschedule``, a task that the scheduler has put back.
* A retry does not change `max_tries`; a clear sets it to the tries so far plus the task's `retries`. If `retries` was
  edited, a clear may leave the same number as a retry. A clear of a running task leaves it unchanged on every version.
* `clears` counts clears of any task in the run, and a clear that restarts a finished run is counted in the same
  transaction, so it explains another start. Before Airflow 3.2, a clear during a run is not counted.
* `run_after` never changes while a run exists. Two runs with the same id may have the same one.

In doubt, nothing is started twice: the earlier try counts as one of this run, without a clear in between. Another clear
then changes the numbers.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_crew_provider.models import Json

log = logging.getLogger(__name__)


class Relation(StrEnum):
    """What an earlier try is to the present one."""

    SAME = "same"  # the same try, run again under its number
    RETRY = "retry"  # a try before this one, without a clear in between
    CLEAR = "clear"  # a try before this one; a user has cleared the task since
    OTHER_RUN = "other run"  # a try of a deleted DAG run with the same id
    DOUBTFUL = "doubtful"  # the numbers allow two readings


class Change(StrEnum):
    """How a number of the present try compares with an earlier try's."""

    EQUAL = "equal"
    MORE = "more"
    LESS = "less"
    UNKNOWN = "unknown"


EQUAL, MORE, LESS, UNKNOWN = Change
DIFFERS = (MORE, LESS)
ANY = tuple(Change)


@dataclass(frozen=True)
class Row:
    """A row of `TABLE`: the changes for which it holds, what they mean, and why."""

    relation: Relation
    reason: str
    attempt_id: tuple[Change, ...] = ANY
    run_after: tuple[Change, ...] = ANY
    run_started: tuple[Change, ...] = ANY
    clears: tuple[Change, ...] = ANY
    try_number: tuple[Change, ...] = ANY
    max_tries: tuple[Change, ...] = ANY
    retries_hide_clear: tuple[bool, ...] = (False, True)

    def fits(self, changes: dict[str, Change], *, hides_clear: bool) -> bool:
        """Whether this row holds for these changes."""
        fits = all(change in getattr(self, name) for name, change in changes.items())
        return fits and hides_clear in self.retries_hide_clear


TABLE = (
    Row(
        Relation.SAME,
        "Airflow gives each try an id of its own, and keeps it when the try runs again",
        attempt_id=(EQUAL,),
        try_number=(EQUAL,),
    ),
    Row(
        Relation.OTHER_RUN,
        "a run keeps its run_after",
        run_after=DIFFERS,
        run_started=DIFFERS,
    ),
    Row(
        Relation.OTHER_RUN,
        "a run starts again only after its tasks have ended, so their next tries have higher numbers",
        run_started=DIFFERS,
        try_number=(EQUAL, LESS),
    ),
    Row(
        Relation.OTHER_RUN,
        "a run's clears never become fewer",
        run_started=DIFFERS,
        clears=(LESS,),
    ),
    Row(
        Relation.OTHER_RUN,
        "a task instance's tries never become fewer, and no start shows that the run is the same",
        run_started=(UNKNOWN,),
        try_number=(LESS,),
    ),
    Row(
        Relation.SAME,
        "the run's start is the same, and so is the try's number",
        run_started=(EQUAL,),
        try_number=(EQUAL,),
    ),
    Row(
        Relation.DOUBTFUL,
        "This try has run before, or its DAG run was deleted and recreated with the same id. What it did before still "
        "counts, so nothing is started twice; clear the task to start again",
        try_number=(EQUAL,),
    ),
    Row(
        Relation.DOUBTFUL,
        "A later try of this DAG run has left a record. It still counts, so nothing is started twice; clear the task "
        "to start again",
        try_number=(LESS,),
    ),
    Row(
        Relation.CLEAR,
        "only a clear changes max_tries",
        max_tries=DIFFERS,
    ),
    Row(
        Relation.DOUBTFUL,
        "The DAG run has started again without a clear. What this task did before still counts, so nothing is started "
        "twice; if the run was deleted and recreated with the same id, clear the task to start again",
        run_started=DIFFERS,
        clears=(EQUAL,),
    ),
    Row(
        Relation.DOUBTFUL,
        "The task's retries were edited from {then} to {now}, so a retry and a clear look alike. This try counts as a "
        "retry, which starts nothing twice; if you cleared the task to start again, clear it once more",
        retries_hide_clear=(True,),
    ),
    Row(Relation.RETRY, "a higher number, and nothing else"),
)


@dataclass(frozen=True)
class Attempt:
    """A try of a task instance.

    :param try_number: counts from 1, across retries and clears
    :param max_tries: the task instance's value
    :param retries: the task's current value from its DAG file
    :param clears: how often tasks in the DAG run have been cleared; None if this Airflow does not report it
    :param run_started: the start of the DAG run, in epoch seconds; None if this Airflow does not report it
    :param run_after: the earliest start of the DAG run, likewise
    :param attempt_id: the id of the try (Airflow 3), a UUID
    """

    try_number: int = 1
    max_tries: int = 0
    retries: int = 0
    clears: int | None = None
    run_started: float | None = None
    run_after: float | None = None
    attempt_id: str | None = None

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
            attempt_id=str(ti.id) if getattr(ti, "id", None) else None,
        )

    @property
    def is_last(self) -> bool:
        """Whether no retry follows this try."""
        return self.try_number > self.max_tries

    def as_dict(self) -> Json:
        """Return the fields of this try to store in a record; omit unknown ones."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def relation_to(self, before: Json) -> Relation:
        """Return what an earlier try is to this one.

        :param before: its `as_dict`; empty if there was none, which counts as a retry. Release 0.1 stored neither the
            try's number nor the run's start
        """
        return self._row(before).relation

    def tell_doubt(self, before: Json) -> None:
        """Log a warning if the numbers allow two readings."""
        row = self._row(before)
        if row.relation is Relation.DOUBTFUL:
            log.warning("%s", row.reason.format(then=before.get("retries"), now=self.retries))

    def _row(self, before: Json) -> Row:
        changes = {name: _change(getattr(self, name), before.get(name)) for name in _COMPARED}
        if changes["try_number"] is UNKNOWN:
            changes["try_number"] = MORE  # release 0.1 stored no number, so a try before this one wrote the record
        hides_clear = (
            before.get("retries", self.retries) != self.retries
            and changes["max_tries"] is EQUAL
            and self.max_tries == self.try_number - 1 + self.retries
        )
        return next(row for row in TABLE if row.fits(changes, hides_clear=hides_clear))


_COMPARED = ("attempt_id", "run_after", "run_started", "clears", "try_number", "max_tries")


def _change(now: Any, then: Any) -> Change:
    if now is None or then is None:
        return UNKNOWN
    if now == then:
        return EQUAL
    return MORE if now > then else LESS


def _seconds(at: Any) -> float | None:
    return at.timestamp() if isinstance(at, datetime) else None
