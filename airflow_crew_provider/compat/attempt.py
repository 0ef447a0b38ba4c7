"""Which try of a task instance runs, and whether a user has cleared the task since an earlier one.

Read and tried on Airflow 2.11, 3.0, 3.1, 3.2 and 3.3. A retry leaves a task instance's `max_tries` alone; a clear sets
it to the tries so far plus the task's `retries`. The two can come to the same number only where `retries` was edited in
between. Then the run's `clear_number` and a task that has ended distinguish them; in doubt it is a retry, since a retry
starts nothing twice.
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

    def follows_clear(self, kept: Json) -> bool:
        """Whether the task was cleared since the try that a record was kept by.

        :param kept: what `as_dict` returned then; with ``over`` once the task had ended
        """
        if kept.get("max_tries") != self.max_tries:
            return True
        over, clears = bool(kept.get("over")), kept.get("clears")
        cleared_some = None not in (clears, self.clears) and clears != self.clears
        if kept.get("retries", self.retries) == self.retries:
            return over and cleared_some
        fits = self.max_tries == self.try_number - 1 + self.retries
        return fits and (over or cleared_some)
