"""The identity of a task instance, its neighbours, and the values that tasks in a run share.

XComs that tell other tasks where webhooks are stored go to Airflow's database in full, even if an XCom backend stores
values elsewhere, as did those from earlier releases, which can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import XCom
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.loops import region_of
from airflow_crew_provider.compat.supervisor import is_awaitable
from airflow_crew_provider.models import Json

try:
    from airflow.sdk.execution_time import context as of_task
except ImportError:  # Airflow 2.11
    of_task = None  # type: ignore[assignment]

NEVER_EXPIRE: Any = getattr(of_task, "NEVER_EXPIRE", None)  # None before Airflow 3.3, which has no task state store


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
