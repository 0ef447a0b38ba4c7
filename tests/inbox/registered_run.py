"""A DAG run in the database whose kickoff registered with the inbox, and the webhooks that a service sends to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import requests
import uvicorn
from airflow.models import crypto
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.models.variable import Variable
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import delete, insert, select, update

from airflow_crew_provider.compat import variables
from airflow_crew_provider.compat.encryption import unseal
from airflow_crew_provider.inbox import registering
from airflow_crew_provider.inbox.messages import InboxMessages, Registration, registered
from airflow_crew_provider.inbox.rows import RegisteredTask, messages_key
from airflow_crew_provider.models import Json, Webhooks
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from scripts.stack import wait_until
from scripts.stack.waiting import PATIENCE

BUNDLE = "tests"


@dataclass
class Given:
    """What a task gave to the service, and where our side keeps the rest."""

    task_id: str
    registration: Registration
    webhooks: Webhooks

    @property
    def url(self) -> str:
        assert self.webhooks.human_input
        return self.webhooks.human_input.url

    @property
    def token(self) -> str:
        assert self.webhooks.human_input
        assert self.webhooks.human_input.token
        return self.webhooks.human_input.token


@dataclass
class Inbox:
    """The plugin's application on a real socket."""

    url: str
    server: uvicorn.Server

    def is_idle(self) -> bool:
        """Whether all requests are done, with what they were to do after their answer."""
        return not self.server.server_state.tasks


class RegisteredRun:
    """One DAG run with a kickoff that registered; further tasks can be added."""

    def __init__(self, inbox: Inbox, session: requests.Session) -> None:
        self.inbox, self.inbox_url, self.http = inbox, inbox.url, session
        self.dag_id, self.run_id = f"dag-{uuid4().hex[:8]}", "manual__2026-11-20T12:00:00+00:00"
        self._add_run()
        self.execution_id = str(uuid4())
        self.kickoff = self.register("kickoff")

    # --- our side ---

    def _add_run(self) -> None:
        with create_session(scoped=False) as session:
            if session.get(DagBundleModel, BUNDLE) is None:
                session.execute(insert(DagBundleModel).values(name=BUNDLE))
            session.add(DagModel(dag_id=self.dag_id, bundle_name=BUNDLE, is_paused=False))
            session.flush()
            values = {"dag_id": self.dag_id, "run_id": self.run_id, "run_type": "manual", "state": "running"}
            session.execute(insert(DagRun).values(**values, run_after=datetime.now(UTC)))
        self.dag_run_id = self._scalar(select(DagRun.id).where(DagRun.dag_id == self.dag_id))

    def add_task(self, task_id: str, **values: Any) -> None:
        names = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": task_id, "map_index": -1}
        with create_session(scoped=False) as session:
            session.execute(insert(TaskInstance).values(**names, pool="default_pool", **values))

    def register(self, task_id: str, execution_id: str | None = None) -> Given:
        """Do what a kickoff or a resume does before its POST."""
        self.add_task(task_id, state="running")
        registration, webhooks = registered(self.inbox_url, execution_id)
        given = Given(task_id, registration, webhooks)
        self._store(given)
        return given

    def _store(self, given: Given, kickoff_id: str | None = None) -> None:
        task = RegisteredTask(given.registration, self.dag_id, self.run_id, given.task_id, kickoff_id=kickoff_id)
        with pytest.MonkeyPatch.context() as patch:
            store_variables(patch)
            registering.keep_registration(task, InboxMessages(given.registration.id))

    def posted(self, given: Given, kickoff_id: str) -> None:
        """Do what it does once the POST was answered."""
        self._store(given, kickoff_id)

    def wait(self, given: Given, kickoff_id: str, since: datetime | None = None, **more: Any) -> int:
        """Defer a task that waits for the execution, since a minute ago by default; return its trigger's id."""
        inbox = {"registration": given.registration.id}
        path, kwargs = CrewStatusTrigger(kickoff_id, inbox=inbox, **more).serialize()
        since = since or datetime.now(UTC) - timedelta(minutes=1)
        with create_session(scoped=False) as session:
            trigger = Trigger(
                classpath=path, kwargs=kwargs, created_date=since or datetime.now(UTC) - timedelta(minutes=1)
            )
            session.add(trigger)
            session.flush()
            trigger_id = trigger.id
        self.add_task(
            f"wait-{trigger_id}",
            state="deferred",
            trigger_id=trigger_id,
            next_method="execute_complete",
            next_kwargs={"waiting": {"kickoff_id": kickoff_id, "inbox": given.registration.id}},
        )
        return trigger_id

    def clear(self, task_id: str) -> None:
        """Do what Airflow does before each try of a task."""
        XComModel.clear(dag_id=self.dag_id, run_id=self.run_id, task_id=task_id)

    def xcom(self, task_id: str, key: str) -> Any:
        names = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": task_id, "key": key}
        where = [getattr(XComModel, name) == value for name, value in names.items()]
        with create_session(scoped=False) as session:
            found = session.execute(select(XComModel.value).where(*where)).first()
            return XComModel.deserialize_value(found) if found else None

    def put(self, task_id: str, key: str, value: Json) -> None:
        names = {"dag_id": self.dag_id, "run_id": self.run_id, "task_id": task_id, "map_index": -1}
        with create_session(scoped=False) as session:
            XComModel.set(key, value, **names, session=session)

    def end_run(self, *, state: str = "success", **more: Any) -> None:
        with create_session(scoped=False) as session:
            session.execute(update(DagRun).where(DagRun.id == self.dag_run_id).values(state=state, **more))

    def delete_run(self) -> None:
        with create_session(scoped=False) as session:
            session.execute(delete(DagRun).where(DagRun.id == self.dag_run_id))

    def messages(self, given: Given | None = None) -> InboxMessages:
        given = given or self.kickoff
        stored = unseal(StoredVariables.get(messages_key(given.registration.id)))
        return InboxMessages.of(json.loads(stored), given.registration.id)

    def still_waits(self, trigger_id: int) -> bool:
        """Whether a task still waits when the inbox has nothing left to do."""
        wait_until(self.inbox.is_idle, "the inbox to be idle")
        return self.waiting(trigger_id) == ("deferred", None)

    def waiting(self, trigger_id: int) -> tuple[str, Any]:
        """Return the state of the task that waited, and the event that it goes on with."""
        with create_session(scoped=False) as session:
            found = session.scalars(
                select(TaskInstance).where(
                    TaskInstance.dag_id == self.dag_id, TaskInstance.task_id == f"wait-{trigger_id}"
                )
            ).one()
            return found.state, (found.next_kwargs or {}).get("event")

    def _scalar(self, query: Any) -> Any:
        with create_session(scoped=False) as session:
            return session.scalar(query)

    # --- the service's side ---

    def question(self, **fields: Any) -> Json:
        return {
            "kickoff_id": self.execution_id,
            "execution_id": self.execution_id,
            "task_id": "e5a3",
            "task_output": "Draft 1.",
            "meta": {"airflow": {"dag_id": "another"}},
            **fields,
        }

    def send_question(
        self, given: Given | None = None, *, token: str | None = None, **fields: Any
    ) -> requests.Response:
        """Send a human-input webhook, with its own token by default."""
        given = given or self.kickoff
        headers = {"Authorization": f"Bearer {given.token if token is None else token}"}
        return self.http.post(given.url, json=self.question(**fields), headers=headers, timeout=PATIENCE)

    def send_webhook(self, url: str | None, **body: Any) -> requests.Response:
        """Send a task, step or crew webhook."""
        assert url
        return self.http.post(url, json={"kickoff_id": self.execution_id, **body}, timeout=PATIENCE)


class Task:
    """The context of one task instance: XComs in the database, cleared at each try, and a memory that is not."""

    def __init__(self, dag_run: RegisteredRun, task_id: str) -> None:
        self.dag_run, self.task_id = dag_run, task_id
        self.memory: dict[str, Any] = {}
        self.tries = 0
        dag_run.add_task(task_id, state="running")

    def run(self, operator: Any) -> Any:
        self.pushed: Json = {}
        self.tries += 1
        self.dag_run.clear(self.task_id)
        names = {"dag_id": self.dag_run.dag_id, "run_id": self.dag_run.run_id, "task_id": self.task_id, "map_index": -1}
        ti = SimpleNamespace(**names, max_tries=0, try_number=self.tries, xcom_push=self._push)
        store = SimpleNamespace(get=self._recall, set=self._keep, delete=lambda name: self.memory.pop(name, None))
        return operator.execute({"ti": ti, "task_state_store": store})

    def _push(self, key: str, value: Any) -> None:
        self.pushed[key] = value
        self.dag_run.put(self.task_id, key, json.loads(json.dumps(value)))

    def _recall(self, name: str) -> Any:
        return self.memory.get(name)

    def _keep(self, name: str, value: Any, **more: Any) -> None:
        self.memory[name] = json.loads(json.dumps(value))


class StoredVariables:
    """What a task's supervisor does with Variables: they are rows of the database."""

    @staticmethod
    def get(key: str, deserialize_json: bool = False) -> Any:
        with create_session(scoped=False) as session:
            kept = session.scalars(select(Variable).where(Variable.key == key)).one_or_none()
            if kept is None:
                raise KeyError(key)
            return json.loads(kept.get_val()) if deserialize_json else str(kept.get_val())

    @staticmethod
    def set(key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        with create_session(scoped=False) as session:
            Variable.set(key, value, description=description, serialize_json=serialize_json, session=session)

    @staticmethod
    def keys(prefix: str) -> list[str]:
        with create_session(scoped=False) as session:
            return [*session.scalars(select(Variable.key).where(Variable.key.startswith(prefix, autoescape=True)))]

    @staticmethod
    def delete(key: str) -> None:
        with create_session(scoped=False) as session:
            Variable.delete(key, session=session)


def store_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks reach Variables without a supervisor."""
    monkeypatch.setattr(variables, "Variable", StoredVariables)


def read_key_anew() -> None:
    """Let Airflow forget its Fernet key, which a global holds before 3.1."""
    if hasattr(crypto, "_fernet"):
        crypto._fernet = None
    else:
        crypto.get_fernet.cache_clear()
