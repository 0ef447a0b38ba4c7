"""A DAG run in the database whose tasks are about executions, and people who look at it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from inspect import signature
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import EXECUTION_KEY, REVIEW_KEY

TOKEN = "tok/en+with=specials~0123456789"
ONE_DAG = "sees-one-dag:"  # before the id of the DAG, the name of a user who sees that one


class Run:
    """A DAG run in the database, whose tasks are about executions."""

    def __init__(self, dag_id: str | None = None) -> None:
        self.dag_id, self.run_id = dag_id or f"dag-{uuid4().hex[:8]}", "manual__2026-11-20T12:00:00+00:00"
        self._create()

    def _create(self) -> None:
        from airflow.models.dag import DagModel
        from airflow.models.dagbundle import DagBundleModel
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import insert, select

        with create_session(scoped=False) as session:
            if session.get(DagBundleModel, "view") is None:
                session.execute(insert(DagBundleModel).values(name="view"))
            session.add(DagModel(dag_id=self.dag_id, bundle_name="view", is_paused=False))
            session.flush()
            values = {"dag_id": self.dag_id, "run_id": self.run_id, "run_type": "manual", "state": "running"}
            session.execute(insert(DagRun).values(**values, run_after=datetime.now(UTC)))
            self.dag_run_id = session.scalar(select(DagRun.id).where(DagRun.dag_id == self.dag_id))

    def task(
        self,
        task_id: str,
        about: Json | None = None,
        map_index: int = -1,
        *,
        recorded: bool = True,
        started: bool = True,
        **values: Any,
    ) -> Run:
        """Add a task instance, and what it has pushed and recorded about its execution.

        :param started: whether the task has started the execution, as a kickoff does; else it polls, as a sensor does
        """
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import insert

        where = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": task_id, "map_index": map_index}
        with create_session(scoped=False) as session:
            session.execute(insert(TaskInstance).values(**where, pool="default_pool", **{"state": "running", **values}))
        if about is not None:
            self.push(task_id, EXECUTION_KEY, about, map_index, region_id=values.get("region_id"))
        if about is not None and recorded:
            self.record(about, started)
        return self

    def record(self, about: Json, started: bool) -> None:
        """Record an execution as a task of this package does."""
        from airflow.models.variable import Variable
        from airflow.utils.session import create_session
        from sqlalchemy import select

        from airflow_crew_provider.compat.execution_record import ExecutionRecord

        record = ExecutionRecord.of(self.dag_id, self.run_id, about, is_own=started)
        with create_session(scoped=False) as session:
            if session.scalar(select(Variable.key).where(Variable.key == record.key)) is None:
                session.add(Variable(key=record.key, val=json.dumps(vars(record))))

    def loop(self, group_id: str) -> Any:
        """Add a loop; return the region in which its iterations are counted."""
        from airflow.models.dynamic_region import DynamicRegion
        from airflow.utils.session import create_session

        with create_session(scoped=False) as session:
            region = DynamicRegion(dag_id=self.dag_id, run_id=self.run_id, node_id=group_id)
            session.add(region)
            session.flush()
            return region.id

    def decided(self, task_id: str, decision: Json, map_index: int = -1, region_id: Any = None) -> None:
        self.push(task_id, REVIEW_KEY, decision, map_index, region_id=region_id)

    def asks(self, task_id: str, map_index: int = -1) -> None:
        """Open the form of a review."""
        from airflow.models.hitl import HITLDetail
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session(scoped=False) as session:
            of_task = (TaskInstance.dag_id == self.dag_id, TaskInstance.task_id == task_id)
            of_task = (*of_task, TaskInstance.map_index == map_index)
            ti_id = session.scalar(select(TaskInstance.id).where(*of_task))
            session.add(HITLDetail(ti_id=ti_id, options=["approve"], subject="s", params={}))

    def push(self, task_id: str, key: str, value: Any, map_index: int = -1, region_id: Any = None) -> None:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        where = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": task_id, "map_index": map_index}
        where |= {"region_id": region_id} if region_id else {}
        with create_session(scoped=False) as session:
            if "serialize" in signature(XComModel.set).parameters:
                XComModel.set(key, value, **where, serialize=False, session=session)
                return
            # As the server stores what a worker has sent; Airflow 3.1 has no function for that.
            session.merge(XComModel(dag_run_id=self.dag_run_id, key=key, value=value, **where))

    def path(self, *parts: str) -> str:
        return "/".join(["/crew-view/dags", self.dag_id, "runs", self.run_id, *parts])

    def page(self, task_id: str, map_index: str = "{MAP_INDEX}", end: str = "") -> str:
        return self.path("tasks", task_id, map_index) + end


def about(execution_id: str = "k-1", kickoff_id: str | None = None, view: str | None = None) -> Json:
    ids = {"execution_id": execution_id, "kickoff_id": kickoff_id or execution_id}
    return {**ids, "crew_conn_id": "crew_default", "view": view}


def client_of(app: FastAPI, name: str | None = "sees-all") -> TestClient:
    """Return a browser that is signed in by Airflow's cookie."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    client = TestClient(app)
    if name is not None:
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role="VIEWER"))
        client.cookies.set("_token", token)
    return client
