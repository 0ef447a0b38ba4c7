"""Task Loops (Airflow 3.4 and newer): a group of tasks that repeats until a decision stops it.

In a loop, all iterations have the same DAG, run, task and map index. Airflow distinguishes them by a region and an
index in it, which for an unmapped task is the iteration's number, starting at 0. A clear that makes later iterations
run again gives them a new region. Mapped tasks have regions too, but are still identified by their map index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_crew_provider.compat.version import has_loops
from airflow_crew_provider.models import Json, region


def region_of(context: Any) -> Json:
    """Return the fields that identify a task instance's iteration; empty outside loops."""
    if context.get("loop") is None:
        return {}
    ti = context["ti"]
    return region(str(ti.region_id), ti.region_index)


def public_map_index() -> Any:
    """Return the column for the visible map index, which is -1 in each iteration of a loop. API server only."""
    from airflow.models.taskinstance import TaskInstance

    if not has_loops():
        return TaskInstance.map_index
    from airflow.models.task_coordinates import public_map_index_expression

    return public_map_index_expression(TaskInstance)


def iteration_of(ti: Any) -> tuple[str, int] | None:
    """Return the region and the index of an unmapped task in a loop; None for any other task instance."""
    region_id, index = getattr(ti, "region_id", None), getattr(ti, "map_index", None)
    if region_id is None or not region_id.int or index not in (None, -1):
        return None
    return str(region_id), ti.region_index


def previous_xcom(context: Any, task_id: str, key: str) -> Any:
    """Return what a task in the same loop pushed in the previous iteration; None in the first one."""
    if context["loop"].index == 0:
        return None
    from airflow.sdk.execution_time.xcom import XCom

    ti = context["ti"]
    where = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": task_id}
    return XCom.get_one(key=key, **where, _previous_iteration=True)


def decided(*, stop: bool, reason: str) -> Any:
    """Return the result that ends an iteration; Airflow shows the reason to everybody who may see the task."""
    from airflow.sdk.definitions.loop import LoopDecision

    return LoopDecision(stop=stop, reason=reason)


def make_loop(group_id: str, body: Callable[[], None], *, until: Callable[..., Any], most: int, tooltip: str) -> Any:
    """Create a group of tasks that repeats until a decision stops it; return the deciding task.

    :param until: a module-level function, after which the deciding task is named
    :param most: the maximum number of iterations
    :raises ValueError: this Airflow has no loops, or does not allow one here
    """
    refusal = "without loop=True, the group has separate tasks for each round"
    if not has_loops():
        raise ValueError(f"loop=True needs Airflow 3.4 or newer, which has Task Loops; {refusal}")
    from airflow.sdk import task_group

    factory: Any = task_group(group_id=group_id, tooltip=tooltip)(body)
    try:
        group = factory.loop(max_iterations=most, until=until)
    except NotImplementedError as error:
        where = "inside a mapped task group, or inside another loop"
        raise ValueError(f"loop=True: Airflow does not support Task Loops {where}; {refusal}") from error
    return group.dag.get_task(group.gate_task_id)
