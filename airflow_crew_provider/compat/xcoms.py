"""XComs by which tasks of a run tell each other where webhooks are kept, read and written in a worker or a triggerer.

They stand in Airflow's database whole, also where an XCom backend is
configured that keeps values elsewhere, as did those of earlier releases, which are still read.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import XCom
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.supervisor import is_awaitable


def push_shared(context: Any, key: str, value: Any) -> None:
    """Push an XCom of the task that runs, past an XCom backend."""
    ti = context["ti"]
    if XCom is not _plain():
        index = -1 if ti.map_index is None else ti.map_index
        where = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}
        _plain().set(key=key, value=value, **where)
        return
    ti.xcom_push(key=key, value=value)


def pull_shared(context: Any, task_ids: list[str], key: str) -> list[Any]:
    """Return what tasks of this run have pushed by `push_shared`."""
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
    # Airflow 3.3 reads without a thread, of which a triggerer has few.
    get_one = (is_awaitable() and getattr(_plain(), "aget_one", None)) or sync_to_async(_plain().get_one)
    return await get_one(**where)


def _plain() -> Any:
    """Return Airflow's own XCom, whatever backend is configured."""
    try:
        from airflow.sdk.bases.xcom import BaseXCom
    except ImportError:  # Airflow 2.11, which has no inbox
        return XCom
    return BaseXCom
