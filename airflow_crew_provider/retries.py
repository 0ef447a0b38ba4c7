"""A retry policy for tasks whose kickoff is refused because a budget is used up. Needs Airflow 3.3 or newer.

On Airflow 3.4 and newer, such a wait uses no retry; on 3.3, it uses one, so the task's ``retries`` limit the waits.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_crew_provider.compat.version import has_retry_policies

if not has_retry_policies():
    raise ImportError(
        "WaitForBudget needs Airflow 3.3 or newer, which has retry policies; on older versions, set retries and "
        "retry_delay so that the task is tried again when the budget begins anew"
    )

from airflow.sdk import RetryDecision, RetryPolicy

from airflow_crew_provider.exceptions import CrewQuotaExceeded

MOST_RESCHEDULES = 100  # of one try


class WaitForBudget(RetryPolicy):
    """Retry a refused kickoff when the budget begins anew; any other error follows the task's own ``retries``.

    :param max_wait: fail at once if that takes longer (seconds, or a timedelta). On Airflow 3.4 and newer, a try is
        also rescheduled for no longer than this; after that, the task's own ``retries`` apply
    """

    def __init__(self, max_wait: float | timedelta = timedelta(days=1)) -> None:
        is_number = isinstance(max_wait, int | float) and not isinstance(max_wait, bool)
        if not (is_number or isinstance(max_wait, timedelta)):
            raise TypeError(f"max_wait must be a number of seconds or a timedelta, not {max_wait!r}")
        self.max_wait = max_wait if isinstance(max_wait, timedelta) else timedelta(seconds=max_wait)
        if self.max_wait <= timedelta(0):
            raise ValueError(f"max_wait must be more than 0, not {max_wait!r}")

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        if not isinstance(exception, CrewQuotaExceeded) or exception.retry_after is None:
            return RetryDecision.default()
        delay = timedelta(seconds=exception.retry_after)
        if delay > self.max_wait:
            return RetryDecision.fail(
                f"The budget begins anew in {delay}, which is later than max_wait ({self.max_wait})"
            )
        reason = f"The budget begins anew in {delay}"
        reschedule = getattr(RetryDecision, "reschedule", None)  # from Airflow 3.4 on
        if reschedule is None:
            return RetryDecision.retry(delay, reason)
        bounds = {"max_reschedules": MOST_RESCHEDULES, "reschedule_timeout": self.max_wait}
        rescheduled: RetryDecision = reschedule(delay, **bounds, reason=reason)
        return rescheduled

    def serialize(self) -> dict[str, Any]:
        return {"max_wait": self.max_wait.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> WaitForBudget:
        return cls(data["max_wait"])
