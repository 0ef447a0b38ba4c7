"""Airflow's retry goes on from the task of the crew that failed, and pays for no earlier one again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import requests
from faults.proxy import OTHER, Fault, FaultProxy, Forward
from faults.wire import Reply

from crew_service.engine.crew import Completed, Job, PendingReview, Report
from crew_service.local import running_service
from crew_service.scripted_crew import ScriptedCrew
from scripts.stack import AirflowStack, CrewService, ProcessGroup
from scripts.stack.waiting import PATIENCE
from tests.service.crewai.four_tasks import asked_for, next_step
from tests.service.crewai.openai_server import USAGE, OpenAI, environment

pytestmark = pytest.mark.row("N40", "S61")
CREWS = Path(__file__).parents[1] / "service" / "crewai" / "crews"
FROM_FAILED_TASK = "Continuing execution {} from the task that failed"
FROM_START = "Starting from the beginning, because the service cannot continue executions"


@pytest.fixture(scope="module")
def model() -> Iterator[OpenAI]:
    model = OpenAI()
    model.script = next_step
    yield model
    model.close()


def says_nothing_of_continuing(forward: Forward, random: Random) -> Reply:
    """Answer as deployments on CrewAI's own platform do."""
    answer = forward()
    body = json.loads(answer.body)
    return replace(answer, body={name: value for name, value in body.items() if name != "continues"})


@contextmanager
def behind_proxy(airflow: AirflowStack, url: str, token: str, *faults: Fault) -> Iterator[str]:
    """Give Airflow a connection, and return its id."""
    with FaultProxy(url, seed=0, rate=1.0, faults=faults) as proxy:
        name = f"crew_of_four_{proxy.url.rpartition(':')[2]}"
        airflow.api.add_connection(name, conn_type="crew", host=proxy.url, password=token)
        yield name
        airflow.api.call("DELETE", f"connections/{name}")


def details(url: str, token: str, execution_id: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.get(f"{url}/executions/{execution_id}", headers=headers, timeout=PATIENCE)
    assert answer.ok, answer.text
    return dict(answer.json())


def steps(execution: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Name the calls of the third task, how they ended, and whether they were taken from the journal."""
    return [(step["name"], step["state"], step["from_journal"]) for step in execution["tasks"][2]["steps"]]


@pytest.mark.long
def test_a_repeatedly_failing_crew_is_paid_for_only_once(
    airflow: AirflowStack, group: ProcessGroup, model: OpenAI, tmp_path: Path
) -> None:
    from crewai import Agent

    if "tool_failure_policy" not in Agent.model_fields:
        pytest.skip("this CrewAI hands all failures of tools to the model")
    refused: list[dict[str, Any]] = []

    def refuses(body: dict[str, Any]) -> bool:
        """Refuse the first question after a tool has answered."""
        is_wanted = not refused and body["messages"][-1]["role"] == "tool"
        refused.extend([body] if is_wanted else [])
        return is_wanted

    model.refuses = refuses
    log, trouble = tmp_path / "log", tmp_path / "trouble"
    trouble.write_text("raise")
    env = {**environment(model), "CREWAI_STORAGE_DIR": str(tmp_path)}
    crew = f"{CREWS / 'failing.py'}:four"
    service = CrewService(crew, name="crew-service-four", env=env, group=group).start()
    with behind_proxy(airflow, service.url, service.token) as conn_id:
        conf = {"crew": conn_id, "case": "airflow", "log": str(log), "trouble": str(trouble)}
        run = airflow.api.trigger("continued", conf)
        run.wait_for("success")
    asked = Counter(asked_for(body)[0] for body in model.asked)
    assert asked == {"first": 1, "second": 1, "third": 3 + len(refused), "fourth": 1}
    assert [json.loads(line)["tool"].split()[0] for line in log.read_text().splitlines()] == ["look", "look", "mail"]
    last = details(service.url, service.token, run.xcom("crew")["execution_id"])
    before = details(service.url, service.token, last["continued_from"])
    first = before["continued_from"]
    for number, (error, execution_id) in enumerate([("no connection", first), ("overloaded", before["execution_id"])]):
        assert error in run.log("crew", try_number=number + 1)
        assert FROM_FAILED_TASK.format(execution_id) in run.log("crew", try_number=number + 2)
    llm = "gpt-4o-mini"
    assert steps(last)[:2] == [(llm, "done", True), ("look", "done", True)]
    assert [step for step in steps(last) if not step[2]] == [
        (llm, "done", False),
        ("mail", "done", False),
        (llm, "done", False),
    ]
    assert last["chain_usage"]["total_tokens"] == 6 * USAGE["total_tokens"]


class FailsOnce(ScriptedCrew):
    """Runs in the process of the test, which is repaired after the first execution."""

    def __init__(self) -> None:
        third = {"id": "third", "steps": [{"tool": "look", "result": "much"}], "error": "OSError: no connection"}
        tasks = [{"id": "first", "tokens": 1}, {"id": "second", "tokens": 10}, third, {"id": "fourth", "tokens": 100}]
        super().__init__({"tasks": tasks})
        self._repaired = ScriptedCrew({"tasks": [{**task, "error": None} for task in tasks]})
        self.runs = 0

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        self.runs += 1
        return super().run(job, report) if self.runs == 1 else self._repaired.run(job, report)


@pytest.mark.parametrize("dialect", ["spec", pytest.param("live", marks=pytest.mark.long)])
def test_scripted_crews_resume_from_their_journal_but_live_deployments_restart(
    airflow: AirflowStack, dialect: str
) -> None:
    faults = [Fault("N40", "no continuing", OTHER, says_nothing_of_continuing)] if dialect == "live" else []
    with (
        running_service(crew=FailsOnce(), dialect=dialect) as service,
        behind_proxy(airflow, service.url, service.token, *faults) as conn_id,
    ):
        run = airflow.api.trigger("continued", {"crew": conn_id})
        run.wait_for("success")
        last = details(service.url, service.token, run.xcom("crew")["kickoff_id"])
        said = run.log("crew", try_number=2)
        if dialect == "live":
            assert FROM_START in said
            assert (last["continued_from"], last["usage"]["total_tokens"]) == (None, 111)
            assert steps(last) == [("look", "done", False)]
        else:
            assert FROM_FAILED_TASK.format(last["continued_from"]) in said
            assert (last["usage"]["total_tokens"], last["chain_usage"]["total_tokens"]) == (100, 111)
            assert steps(last) == [("look", "done", True)]
