"""The process that runs a task or trigger, and the task's state in Airflow. Uses Airflow's internals.

On Airflow 2.11, which has no supervisor, this module reads the database instead.
"""

from __future__ import annotations

from typing import Any

from airflow.triggers.base import BaseTrigger

from airflow_crew_provider.compat.loops import iteration_of

try:
    from airflow.sdk.execution_time import task_runner
except ImportError:  # Airflow 2.11
    task_runner = None  # type: ignore[assignment]
try:
    from airflow.sdk.exceptions import AirflowRescheduleException, AirflowTaskTimeout
except ImportError:  # before Airflow 3.2
    from airflow.exceptions import (  # type: ignore[no-redef]
        AirflowRescheduleException,
        AirflowTaskTimeout,
    )

__all__ = ["AirflowRescheduleException", "AirflowTaskTimeout"]  # imported for others

# The state of a deleted task instance.
DELETED = "deleted"

# Whether a trigger's `on_kill` reports a user's action. Older versions cancel triggers without giving a reason.
KILLS_CALL_ON_KILL = hasattr(BaseTrigger, "on_kill")


def supervisor() -> Any:
    """Return the connection to this process's supervisor; None outside a worker or triggerer of Airflow 3."""
    return getattr(task_runner, "SUPERVISOR_COMMS", None)


def is_awaitable() -> bool:
    """Whether a trigger can call the supervisor without a thread; in `dag.test()` on 3.3.2, it needs one."""
    line = supervisor()
    return line is None or hasattr(line, "asend")


def is_in_process() -> bool:
    """Whether Airflow 3's `dag.test()` is running this task, so its requests to the API server stay in the process."""
    return type(supervisor()).__name__ == "InProcessSupervisorComms"


def runs_in_worker(ti: Any) -> bool:
    """Whether a worker is running this task, so that it may have a next try; False in `dag.test()` or a direct call."""
    if task_runner is None:  # a worker of Airflow 2.11 stores its job in the task instance
        return getattr(ti, "job_id", None) is not None
    return supervisor() is not None


def task_state(ti: Any, task_id: str | None = None) -> str | None:
    """Return the state of a task instance as Airflow stores it; None for a cleared one.

    :param task_id: another task in the same run, for the same item in a mapped group
    """
    read = _state_in_database if task_runner is None else _state_by_supervisor
    return read(ti, task_id or ti.task_id)


def _state_by_supervisor(ti: Any, task_id: str) -> str | None:
    iteration = iteration_of(ti)
    # For a task in a loop, `get_task_states` reports the latest iteration; a triggerer cannot read any other.
    if iteration and task_id == ti.task_id and type(supervisor()).__name__ != "TriggerCommsDecoder":
        return _end_of_iteration(ti, iteration)
    index = getattr(ti, "map_index", -1)
    states = task_runner.RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[task_id], run_ids=[ti.run_id], map_index=index
    )
    of_run: dict[str, str | None] = states.get(ti.run_id, {})
    key = task_id if index in (None, -1) else f"{task_id}_{index}"
    return of_run.get(key, DELETED)


def _end_of_iteration(ti: Any, iteration: tuple[str, int]) -> str | None:
    """Return the state in which a task ended in one iteration; None if it has not ended."""
    ended = task_runner.RuntimeTaskInstance.get_task_breadcrumbs(ti.dag_id, ti.run_id)
    for each in ended:
        place = str(each.get("region_id")), each.get("region_index")
        if each["task_id"] == ti.task_id and place == iteration:
            return str(each["state"])
    return None


def _state_in_database(ti: Any, task_id: str) -> str | None:
    """Read the state on Airflow 2.11, where a triggerer may read the database."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        query = session.query(TaskInstance.state).filter(
            TaskInstance.dag_id == ti.dag_id,
            TaskInstance.run_id == ti.run_id,
            TaskInstance.task_id == task_id,
            TaskInstance.map_index == ti.map_index,
        )
        row = query.first()
        return row[0] if row else DELETED
