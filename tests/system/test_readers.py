"""Who reads the texts that tasks keep and render: Airflow's REST API, and that of its pages, read as each role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import airflow
import pytest
import requests
import yaml
from cryptography.fernet import Fernet, InvalidToken

from airflow_crew_provider.compat.version import has_human_in_the_loop, has_inbox
from scripts.find_postgres import server_url
from scripts.stack import AirflowApi, AirflowStack, CrewService, ProcessGroup
from scripts.stack.airflow_2 import Airflow2

DAG_ID, DAGS = "readers", Path(__file__).parent / "dags" / "readers"
CONNECTION = "crew_readers"
USERS = {"admin": "ADMIN", "op": "OP", "no-xcoms": "VIEWER"}
DRAFT, FEEDBACK = "Confidential: coffee will be dearer.", "The merger is off."
CREW = {
    "inputs": ["topic"],
    "tasks": [{"id": "write", "agent": "Writer", "seconds": 0.2, "human_input": True, "output": DRAFT}],
}
# What shows texts on purpose, each with a permission of its own; and what ends a user's session.
LEFT_OUT = re.compile(r"xcomEntries|hitlDetails|/logs/|/auth/log")
AUDIT_LOG = "/api/v2/eventLogs"  # Airflow logs each request that answers a form
DESCRIPTIONS = (
    "api_connexion/openapi/v1.yaml",
    "api_fastapi/core_api/openapi/v2-rest-api-generated.yaml",
    "api_fastapi/core_api/openapi/_private_ui.yaml",
)
Get = Callable[..., requests.Response]


class Readers:
    """A finished DAG run, and its readers.

    :param get: sends a GET request: path, user, more arguments of requests
    """

    def __init__(self, get: Get, run_id: str) -> None:
        self.get, self.run_id = get, run_id
        self.base = "/api/v2" if has_inbox() else "/api/v1"
        self._instances = f"/dags/{DAG_ID}/dagRuns/{run_id}/taskInstances"
        self.tasks = [task["task_id"] for task in self._list(self._instances, "task_instances")]
        variables = self._list("/variables", "variables", order_by="-id")
        records = {each["key"]: each["value"] for each in variables if run_id in each["value"]}
        self.secrets = {key for value in records.values() for key in re.findall(r"crew_secret_\w+", value)}
        self.keys = [*records, *self.secrets]

    def _list(self, path: str, key: str, **how: Any) -> list[dict[str, Any]]:
        answer = self.get(self.base + path, "admin", params={"limit": 100, **how})
        answer.raise_for_status()
        return list(answer.json()[key])

    def rendered_fields(self, task_id: str) -> str:
        """Return what Airflow stored of a task's rendered fields."""
        return str(self.get(f"{self.base}{self._instances}/{task_id}", "admin").json()["rendered_fields"])

    def pages(self, user: str) -> dict[str, str]:
        """Return the bodies of all that a user may read about the run, or that is about no run, by their paths."""
        known = {"dag_id": DAG_ID, "run_ids": self.run_id, "limit": 100, "order_by": "-id"}
        # Airflow 2.11 refuses what it does not know. After an error of its own, Airflow cuts the connection.
        how: dict[str, Any] = {"params": known if has_inbox() else {}, "headers": {"Connection": "close"}}
        answers = {path: self.get(path, user, **how) for path in sorted(set(self._paths()))}
        return {path: answer.text for path, answer in answers.items() if answer.ok}

    def _paths(self) -> Iterator[str]:
        values = {
            **{name: [self.run_id] for name in ("dag_run_id", "run_id")},
            **{name: ["1"] for name in ("try_number", "task_try_number", "version_number")},
            "dag_id": [DAG_ID],
            "map_index": ["-1"],
            "task_id": self.tasks,
            "variable_key": self.keys,
            "key": ["crew_kickoff", "crew_resume"],  # of Airflow's task state store
        }
        for file in (Path(airflow.__path__[0]) / each for each in DESCRIPTIONS):
            paths = yaml.safe_load(file.read_text("utf-8"))["paths"] if file.exists() else {}
            for path in (path for path, methods in paths.items() if "get" in methods):
                names = re.findall(r"{(\w+)}", path)
                if {*names} <= {*values} and not LEFT_OUT.search(path):
                    base = "" if has_inbox() else self.base
                    for chosen in product(*(values[name] for name in names)):
                        yield base + path.format(**dict(zip(names, chosen, strict=True)))


@pytest.fixture(scope="module")
def crew(group: ProcessGroup) -> CrewService:
    return CrewService(CREW, name="crew-service-readers", group=group).start()


@pytest.fixture(scope="module")
def readers(crew: CrewService, group: ProcessGroup, request: pytest.FixtureRequest) -> Readers:
    connections = {CONNECTION: crew.connection}
    if not has_inbox():
        roles = {name: role.capitalize() for name, role in USERS.items()}
        airflow_2 = Airflow2(dags=DAGS, connections=connections, users=roles, group=group).start()
        return Readers(airflow_2.get, airflow_2.run(DAG_ID))
    if has_human_in_the_loop():
        stack = request.getfixturevalue("airflow")
        stack.api.add_connection(CONNECTION, **crew.connection)
    else:  # which the DAGs of the shared Airflow need
        stack = AirflowStack(dags=[DAGS], connections=connections, users=USERS, postgres=server_url(), group=group)
        stack.start_all()
    return on_airflow_3(stack)


def on_airflow_3(stack: AirflowStack) -> Readers:
    run = stack.api.trigger(DAG_ID)
    if has_human_in_the_loop():
        asked = run.wait_for_review()
        stack.wait_until_put_away(run, "review")
        run.answer(asked, "approve", human_feedback=FEEDBACK)
    run.wait_for("success")
    known = {name: AirflowApi(stack.url, name, stack.passwords[name]) for name in USERS}

    def get(path: str, user: str, **arguments: Any) -> requests.Response:
        return known[user].call("GET", f"../..{path}", **arguments)

    return Readers(get, run.run_id)


@pytest.fixture(scope="module", params=["admin", pytest.param("op", marks=pytest.mark.long), "no-xcoms"])
def pages(readers: Readers, request: pytest.FixtureRequest) -> dict[str, str]:
    return readers.pages(request.param)


@pytest.mark.row("A47", "A57")
def test_only_xcoms_forms_and_logs_show_texts(pages: dict[str, str]) -> None:
    assert len(pages) > 30
    assert [path for path, body in pages.items() if DRAFT in body] == []
    assert {path for path, body in pages.items() if FEEDBACK in body} <= {AUDIT_LOG}


@pytest.mark.row("A47")
@pytest.mark.since_airflow("3.0")
def test_nobody_reads_the_key_of_sealed_texts(readers: Readers, pages: dict[str, str]) -> None:
    shown = "\n".join(pages.values())
    sealed = re.findall(r"gAAAA[\w-]+=*", shown)
    assert readers.secrets
    assert bool(sealed) == any("/variables/" in path for path in pages)
    for text, key in product(sealed, set(re.findall(r"[\w-]{43}=", shown))):
        with pytest.raises((InvalidToken, ValueError)):
            Fernet(key).decrypt(text)


@pytest.mark.row("A57")
def test_rendered_fields_name_what_they_do_not_show(readers: Readers) -> None:
    assert "review of execution" in readers.rendered_fields("resume")
    if has_human_in_the_loop():
        assert "draft of execution" in readers.rendered_fields("review")
