"""`GET /executions`, `CrewHook.list_executions` and `airflow-crew-service list`: the newest executions, bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
from crew_client import GATED, SLOW, Client, Serve, eventually

from crew_service.cli import main
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits
ERROR = {"tasks": [{"id": "only_task", "agent": "Writer", "error": "out of ink"}]}
DIALECTS = pytest.mark.parametrize("dialect", ["spec", "live"])


def listed(client: Client, **query: Any) -> list[dict[str, Any]]:
    answer = client.get("/executions", params=query)
    assert answer.status_code == 200, answer.text
    document = client.get("/openapi.json").json()
    schema = document["paths"]["/executions"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    return answer.json()["executions"]


def ids(client: Client, **query: Any) -> list[str]:
    return [each["kickoff_id"] for each in listed(client, **query)]


@DIALECTS
def test_the_newest_execution_comes_first_and_the_limit_counts(serve: Serve, dialect: str) -> None:
    client = serve(SLOW, dialect=dialect)
    assert ids(client) == []
    started = [client.kickoff() for _ in range(23)]
    assert ids(client) == started[:-21:-1]
    assert ids(client, limit=2) == [started[-1], started[-2]]
    assert ids(client, limit=100) == started[::-1]


@DIALECTS
def test_a_list_shows_each_executions_progress_and_waiting_task(serve: Serve, dialect: str) -> None:
    client = serve(GATED, dialect=dialect)
    kickoff_id = client.kickoff()
    waiting = eventually(lambda: listed(client, state="pending"), "a waiting execution")[0]
    assert (waiting["execution_id"], waiting["current_task"]) == (kickoff_id, "draft_task")
    assert waiting["progress"] == {"completed_tasks": 1, "total_tasks": 3}
    answer = client.resume(kickoff_id, taskId=waiting["task_id"], executionId=kickoff_id, humanFeedback="Approved.")
    assert answer.status_code == 200, answer.text
    done = eventually(lambda: listed(client, state="completed"), "the end")[0]
    assert (done["execution_id"], done["status"], done["task_id"]) == (kickoff_id, "completed", None)
    assert (done["kickoff_id"] == kickoff_id) == (dialect == "spec")
    assert listed(client, state="pending") == []


@DIALECTS
def test_both_kinds_of_failure_are_listed_as_errors(serve: Serve, dialect: str) -> None:
    client = serve({"tasks": [{**ERROR["tasks"][0], "seconds": 0.0}, SLOW["tasks"][0]]}, dialect=dialect)
    failed = client.kickoff()
    eventually(lambda: ids(client, state="error") == [failed], "the failure")
    assert listed(client, state="error")[0]["error"] == "out of ink"
    slow = serve(SLOW, dialect=dialect, db=None)
    stopped = slow.kickoff()
    assert ids(slow, state="running") == [stopped]
    slow.post(f"/stop/{stopped}")
    assert ids(slow, state="error") == [stopped]
    assert ids(slow, state="running") == []


@DIALECTS
def test_a_user_sees_the_own_executions_only(serve: Serve, dialect: str) -> None:
    client = serve(SLOW, dialect=dialect, user_tokens=[("ann", "ann-token"), ("bob", "bob-token")])
    ann, bob = client.holding("ann-token"), client.holding("bob-token")
    anns, mine = ann.kickoff(), client.kickoff()
    assert ids(ann) == [anns]
    assert ids(bob) == []
    assert ids(client) == [mine, anns]


@DIALECTS
@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        *((f"limit={limit}", "limit must be") for limit in ("0", "-1", "101", "x", "", "1.5", "٣", "9" * 400)),
        *((f"state={state}", "The state must be") for state in ("done", "", "PENDING", "running,error")),
        ("state=running&state=error", "The state must be"),
        ("limit=1&limit=2", "limit must be"),
    ],
)
def test_a_wrong_state_or_limit_is_refused_with_a_sentence(
    serve: Serve, dialect: str, query: str, sentence: str
) -> None:
    answer = serve(dialect=dialect).get(f"/executions?{query}")
    assert answer.status_code == {"spec": 400, "live": 422}[dialect]
    assert answer.json()["detail"].startswith(sentence)


def test_other_parameters_are_ignored_as_unknown_fields_are(serve: Serve) -> None:
    assert listed(serve(), page="2") == []


def test_the_terminal_lists_one_state(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = serve(GATED, db=tmp_path / "crew.db")
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    assert main(["list", "--db", str(tmp_path / "crew.db"), "--state", "waiting"]) == 0
    assert kickoff_id in capsys.readouterr().out
    assert main(["list", "--db", str(tmp_path / "crew.db"), "--state", "failed"]) == 0
    assert capsys.readouterr().out == "There are no failed executions.\n"


def test_the_page_and_the_list_show_the_same(serve: Serve) -> None:
    client = serve(SLOW)
    started = [client.kickoff() for _ in range(3)]
    page = requests.get(client.url, headers={"Authorization": f"Bearer {client.token}"}, timeout=PATIENCE).text
    places = [page.index(kickoff_id) for kickoff_id in ids(client)]
    assert places == sorted(places)
    assert len(places) == len(started)
