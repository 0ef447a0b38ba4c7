"""Whether this Airflow still fails a deferred task that comes back before its worker's end was read."""

from __future__ import annotations

import inspect

import pytest
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

from airflow_crew_provider.compat import version


@pytest.mark.since_airflow("3.0")
def test_a_task_queued_again_early_still_counts_as_lost() -> None:
    """Once this fails, Airflow forgives a running one too: see whether `deferral.NOTICED_AFTER` can be less there."""
    judging = inspect.getsource(SchedulerJobRunner.process_executor_events)
    _, _, rest = judging.partition("ti_queued = ")
    taken_for_dead, _, rest = rest.partition("ti_requeued = ")
    forgiven, end, _ = rest.partition("if ti_queued and not ti_requeued")
    assert end
    assert "TaskInstanceState.QUEUED" in taken_for_dead
    assert ("TaskInstanceState.QUEUED" in forgiven) is (version.RELEASE >= (3, 4))  # its issue 67287
    assert "TaskInstanceState.RUNNING" not in forgiven
