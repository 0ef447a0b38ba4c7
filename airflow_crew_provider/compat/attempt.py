"""Which try of a task instance runs, and whether a user has cleared the task since an earlier one.

A retry leaves a task instance's `max_tries` alone; a clear sets it to the tries so far plus the task's `retries`, a
number that only grows while `retries` stays the same. The run's `clear_number` counts clears of its other tasks too,
so it proves nothing by itself: it and a task that has ended only count where `retries` was edited, and `max_tries` is
what a clear of this very task would have made it. In doubt it is a retry, since a retry starts nothing twice. So is a
clear of a task that runs, which leaves `max_tries` alone on every version.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from airflow_crew_provider.models import Json


@dataclass(frozen=True)
class Attempt:
    """A try of a task instance.

    :param try_number: counts from 1, over retries and clears
    :param max_tries: of the task instance
    :param retries: of the task, as its DAG file says now
    :param clears: how often tasks of the DAG run were cleared; None where this Airflow does not say
    """

    try_number: int = 1
    max_tries: int = 0
    retries: int = 0
    clears: int | None = None

    @classmethod
    def of(cls, context: Any, task: Any) -> Attempt:
        """Return the try that runs."""
        ti = context["ti"]
        return cls(
            try_number=getattr(ti, "try_number", 1),
            max_tries=getattr(ti, "max_tries", 0),
            retries=getattr(task, "retries", None) or 0,
            clears=getattr(context.get("dag_run"), "clear_number", None),
        )

    def with_clears_as_retries(self) -> Attempt:
        """Return this try for a task whose POST must not be repeated by a clear either."""
        return Attempt(try_number=self.try_number)

    def as_dict(self) -> Json:
        """Return what a record keeps of this try."""
        return asdict(self)

    def follows(self, kept: Json) -> bool:
        """Whether a record may be of an earlier try; else the DAG run was deleted and created again under its id.

        :param kept: the record; of release 0.1 without the number of its try
        """
        return bool(kept.get("try_number", 0) < self.try_number)

    def follows_clear(self, kept: Json) -> bool:
        """Whether the task was cleared since the try that a record was kept by.

        :param kept: what `as_dict` returned then; with ``over`` once the task had ended
        """
        if kept.get("max_tries") != self.max_tries:
            return True
        if kept.get("retries", self.retries) == self.retries:
            return False
        clears = kept.get("clears")
        cleared_some = None not in (clears, self.clears) and clears != self.clears
        fits = self.max_tries == self.try_number - 1 + self.retries
        return fits and (bool(kept.get("over")) or cleared_some)
