"""Airflow's records of a DAG run's executions, read in the API server. Needs Airflow 3.1 or newer.

An XCom names a task's execution; it is ignored unless the run has also recorded that execution (`execution_record`).
From Airflow 3.4 on, XComs are in a different table and belong to one attempt; `XComModel.get_many` reads both tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.variable import Variable
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_crew_provider.compat.execution_record import ExecutionRecord
from airflow_crew_provider.compat.loops import public_map_index
from airflow_crew_provider.compat.version import has_loops
from airflow_crew_provider.models import Json, region
from airflow_crew_provider.stored_names import DECISIONS_KEY, EXECUTION_KEY, REVIEW_KEY

MOST_TASKS = 5_000
MOST_DECISIONS = 50
AT_ONCE = 500  # names in one statement
WAITS_FOR_A_PERSON = ("awaiting_input", "deferred")

Place = tuple[str, int, Any]  # task id, index, and the region that the index belongs to (`compat.loops`)


@dataclass(frozen=True)
class TaskRecord:
    """One task instance and its execution.

    :param map_index: -1 in each iteration of a loop
    :param label: for a mapped task, the label that Airflow shows instead of its index
    :param place: its position in the DAG run
    :param has_open_form: whether a person can currently answer it
    :param is_own: whether the run started the execution that the task polls
    """

    task_id: str
    map_index: int
    state: str | None
    label: str | None
    about: Json
    pushed_at: datetime
    place: Place
    has_open_form: bool = False
    is_own: bool = False

    @property
    def iteration(self) -> Json:
        """The fields that identify a loop iteration, besides the task; empty outside loops."""
        _, index, region_id = self.place
        return region(str(region_id), index) if index != self.map_index else {}


def exists(dag_id: str, run_id: str, task_id: str | None = None, map_index: int = -1) -> bool:
    """Whether this task instance exists, or this DAG run if no task is named."""
    model: Any = DagRun if task_id is None else TaskInstance
    where = [model.dag_id == dag_id, model.run_id == run_id]
    if task_id is not None:
        where += [model.task_id == task_id, public_map_index() == map_index]
    with create_session(scoped=False) as session:
        return session.execute(select(model.id).where(*where).limit(1)).first() is not None


def is_about_an_execution(connection: Any, ti_id: Any) -> bool:
    """Whether a task instance has named its execution. Only for Airflow before 3.4."""
    place = ("dag_id", "run_id", "task_id", "map_index")
    same = [getattr(XComModel, name) == getattr(TaskInstance, name) for name in place]
    query = select(XComModel.key).where(*same, TaskInstance.id == ti_id, XComModel.key == EXECUTION_KEY)
    return connection.execute(query.limit(1)).first() is not None


def of_run(dag_id: str, run_id: str) -> list[TaskRecord]:
    """Return the task instances in a DAG run that have an execution, the latest last."""
    with create_session(scoped=False) as session:
        pushed = list(_recorded(session, dag_id, run_id, _xcoms(session, dag_id, run_id, EXECUTION_KEY, MOST_TASKS)))
        instances = _instances(session, dag_id, run_id, {row.task_id for row, _ in pushed})
        forms = _open_forms(session, [ti.id for ti in instances.values() if ti.state in WAITS_FOR_A_PERSON])
        records = [replace(_record(row, instances.get(_place(row)), forms), is_own=is_own) for row, is_own in pushed]
    return sorted(records, key=lambda each: each.pushed_at)


def decisions(dag_id: str, run_id: str, places: Collection[Place]) -> list[Json]:
    """Return the decisions of these reviews, the earliest first.

    A task that asks several times stores all its decisions without drafts, and the last one also with its draft.
    """
    names, indexes = {task_id for task_id, _, _ in places}, {index for _, index, _ in places}
    by_place: dict[tuple[Place, str], Json] = {}
    with create_session(scoped=False) as session:
        for key in (DECISIONS_KEY, REVIEW_KEY):
            rows = _xcoms(session, dag_id, run_id, key, MOST_DECISIONS, names, indexes)
            for row in sorted((row for row in rows if _place(row) in places), key=lambda row: row.timestamp):
                values = row.value if isinstance(row.value, list) else [row.value]
                by_place |= {
                    (_place(row), str(each.get("decided_at"))): each for each in values if isinstance(each, dict)
                }
    return list(by_place.values())


def _xcoms(
    session: Any,
    dag_id: str,
    run_id: str,
    key: str,
    most: int,
    task_ids: Collection[str] | None = None,
    map_indexes: Collection[int] | None = None,
) -> list[Any]:
    everywhere: Json = {"region_id": None} if has_loops() else {}
    query = XComModel.get_many(
        run_id=run_id,
        key=key,
        dag_ids=dag_id,
        task_ids=list(task_ids) if task_ids is not None else None,
        map_indexes=list(map_indexes) if map_indexes is not None else None,
        limit=most,
        **everywhere,
    )
    return list(session.scalars(query))


def _recorded(session: Any, dag_id: str, run_id: str, rows: list[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield the XComs that name an execution recorded by this run, and whether the run started it."""
    keyed = [(row, *_keys(dag_id, run_id, row.value)) for row in rows if isinstance(row.value, dict)]
    keys = sorted({key for _, *both in keyed for key in both})
    parts = (keys[first : first + AT_ONCE] for first in range(0, len(keys), AT_ONCE))
    stored = {key for part in parts for key in session.scalars(select(Variable.key).where(Variable.key.in_(part)))}
    return ((row, own in stored) for row, polled, own in keyed if {polled, own} & stored)


def _keys(dag_id: str, run_id: str, about: Json) -> tuple[str, str]:
    """Return the names of the records for a task that polls an execution and for one that started it."""
    polled = ExecutionRecord.of(dag_id, run_id, about)
    return polled.key, replace(polled, is_own=True).key


def _place(row: Any) -> Place:
    return row.task_id, row.map_index, getattr(row, "region_id", None)


def _instances(session: Any, dag_id: str, run_id: str, names: Collection[str]) -> dict[Place, Any]:
    named = (TaskInstance.id, TaskInstance.task_id, TaskInstance.map_index.label("map_index"), TaskInstance.state)
    counted_by = (TaskInstance.region_id,) if has_loops() else ()
    label: Any = TaskInstance.rendered_map_index
    columns = (label.label("label"), public_map_index().label("shown"))
    of_run = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
    rows = session.execute(select(*named, *counted_by, *columns).where(*of_run, TaskInstance.task_id.in_(names)))
    return {_place(ti): ti for ti in rows}


def _open_forms(session: Any, waiting: Collection[Any]) -> set[Any]:
    if not waiting:
        return set()
    unanswered = (HITLDetail.ti_id.in_(waiting), HITLDetail.responded_at.is_(None))
    return set(session.scalars(select(HITLDetail.ti_id).where(*unanswered)))


def _record(row: Any, instance: Any, forms: set[Any]) -> TaskRecord:
    about = (row.value, row.timestamp, _place(row))
    if instance is None:
        return TaskRecord(row.task_id, row.map_index, None, None, *about)
    label = instance.label if instance.shown >= 0 else None
    return TaskRecord(row.task_id, instance.shown, instance.state, label, *about, instance.id in forms)
