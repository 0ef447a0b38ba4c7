"""Who may see what the tab shows, on every address that it has."""

from __future__ import annotations

import html
import json

import pytest
from fastapi import FastAPI
from faults.server import FaultServer, Reply
from sampling import crossed, sampled
from viewed_run import ONE_DAG, TOKEN, Run, about, client_of

from airflow_crew_provider.models import Json, output_sha256
from scripts.stack.waiting import wait_until

pytestmark = [pytest.mark.since_airflow("3.1"), pytest.mark.row("A29")]
SECRET = "what the crew wrote"
STATUS = {"status": "completed", "result": {"output": SECRET, "tasks": []}}


@pytest.fixture(autouse=True)
def service(server: FaultServer, connect: object) -> FaultServer:
    connect(server.url)  # type: ignore[operator]
    server.on("GET /status/k-1", STATUS)
    return server


def addresses(dag_run: Run) -> list[str]:
    return [
        dag_run.path(),
        dag_run.page("kickoff"),
        dag_run.page("kickoff", "-1"),
        dag_run.page("kickoff", end="/fragment"),
        dag_run.page("kickoff", end=f"/pictures/{'0' * 64}"),
    ]


def test_access_to_the_dags_xcoms_and_forms_shows_the_execution(app: FastAPI, dag_run: Run) -> None:
    dag_run.task("kickoff", about())
    client = client_of(app)
    wait_until(lambda: SECRET in client.get(dag_run.page("kickoff", end="/fragment")).text, "the first look-up")
    answers = [client.get(address) for address in addresses(dag_run)]
    assert [each.status_code for each in answers] == [200] * 4 + [404]
    assert [SECRET in each.text for each in answers] == [False, True, True, True, False]


@pytest.mark.parametrize(("user", "code"), [("no-xcoms", 403), ("no-forms", 403), ("no-dag", 403), (None, 401)])
def test_users_without_access_are_refused_at_every_address_without_lookup(
    app: FastAPI, dag_run: Run, service: FaultServer, user: str | None, code: int
) -> None:
    dag_run.task("kickoff", about())
    for address in addresses(dag_run):
        answer = client_of(app, user).get(address)
        assert (answer.status_code, SECRET in answer.text, "k-1" in answer.text) == (code, False, False)
    assert service.requests == []


def test_every_route_but_the_icons_asks_the_auth_manager() -> None:
    from airflow_crew_provider.compat.access import MAY_SEE
    from airflow_crew_provider.view.app import icons, router

    assert [each.dependency for each in router.dependencies] == MAY_SEE
    assert {route.path for route in icons.routes} == {"/icon.svg", "/icon-dark.svg"}  # type: ignore[attr-defined]


def test_addresses_cannot_name_an_execution_of_another_dag(app: FastAPI, dag_run: Run) -> None:
    dag_run.task("kickoff", about())
    own = Run()
    own.task("kickoff")
    client = client_of(app, f"{ONE_DAG}{own.dag_id}")
    assert client.get(dag_run.page("kickoff")).status_code == 403
    for address in (
        own.page("kickoff") + "?execution_id=k-1&kickoff_id=k-1&dag_id=" + dag_run.dag_id,
        own.page("kickoff") + "?run_id=" + dag_run.run_id,
        own.page("k-1"),
        own.page("kickoff", "k-1"),
        f"/crew-view/dags/{own.dag_id}/runs/k-1",
        f"/crew-view/dags/{own.dag_id}/runs/..%2F..%2F{dag_run.dag_id}%2Fruns%2F{dag_run.run_id}",
        f"/crew-view/dags/~/runs/{dag_run.run_id}/tasks/kickoff/-1",
    ):
        answer = client.get(address)
        assert SECRET not in answer.text
        assert answer.status_code in (200, 403, 404)
        assert answer.status_code != 200 or "No execution yet" in answer.text


def test_the_wildcard_dag_shows_nothing_even_to_full_access_users(app: FastAPI, dag_run: Run) -> None:
    dag_run.task("kickoff", about())
    client = client_of(app)
    assert client.get(f"/crew-view/dags/~/runs/{dag_run.run_id}/tasks/kickoff/-1").status_code == 404
    assert client.get("/crew-view/dags/~/runs/~").status_code == 404


@pytest.mark.parametrize("view", [None, "/view?id=k-1"])
def test_waiting_for_another_dags_execution_does_not_show_it(
    app: FastAPI, dag_run: Run, service: FaultServer, view: str | None
) -> None:
    details = {"execution_id": "k-1", "state": "completed", "output": SECRET, "tasks": [], "rounds": []}
    service.on("GET /executions/k-1", {**details, "meta": {"airflow": {"dag_id": dag_run.dag_id}}})
    service.on("GET /status/k-1", Reply(body=STATUS, headers={"Crew-View": "/view?id=k-1"}))
    dag_run.task("kickoff", about())
    other = Run()
    other.task("wait", about(view=view), started=False)
    client = client_of(app)
    wait_until(lambda: "another DAG started it" in client.get(other.page("wait")).text, "the refusal")
    assert "Completed" not in client.get(other.path()).text
    wait_until(lambda: SECRET in client.get(dag_run.page("kickoff")).text, "the page of its own DAG")
    assert not [text for text in (client.get(other.page("wait")).text, client.get(other.path()).text) if SECRET in text]


@pytest.mark.row("A33")
@pytest.mark.parametrize("meta", [{}, {"meta": None, "left_out": ["meta"]}, {"meta": {"airflow": "?"}}])
@pytest.mark.parametrize("forged", ["execution", "polled id", "connection"])
def test_an_execution_without_origin_shows_only_in_its_recording_run(
    app: FastAPI, dag_run: Run, service: FaultServer, meta: Json, forged: str
) -> None:
    details = {"execution_id": "k-1", "state": "completed", "output": SECRET, "tasks": [], "rounds": [], **meta}
    service.on("GET /executions/k-1", details)
    dag_run.task("kickoff", about(view="/view?id=k-1"))
    other = Run()
    other.task("kickoff", about("own", view="/view?id=own"))
    named = {
        "execution": about(view="/view?id=k-1"),
        "polled id": about("own", "k-1"),
        "connection": {**about(), "crew_conn_id": "crew_other"},
    }[forged]
    other.task("review", named, recorded=False)
    client = client_of(app)
    wait_until(lambda: SECRET in client.get(dag_run.page("kickoff", end="/fragment")).text, "the page of its own DAG")
    text = client.get(other.page("review", end="/fragment")).text
    assert (SECRET in text, "k-1" in text, "No execution yet" in text) == (False, False, True)
    assert "k-1" not in client.get(other.path()).text
    assert [each.target for each in service.requests if each.target != "/executions/k-1"] == []


@pytest.mark.row("A31")
def test_another_dags_xcom_does_not_decide_what_is_polled(app: FastAPI, dag_run: Run, service: FaultServer) -> None:
    service.on("GET /status/k-2", {"status": "completed", "result": {"output": "another text", "tasks": []}})
    other = Run()
    other.task("kickoff", about("k-1", "k-2"))
    dag_run.task("kickoff", about())
    client = client_of(app)
    wait_until(lambda: "another text" in client.get(other.page("kickoff", end="/fragment")).text, "the other DAG")
    wait_until(lambda: SECRET in client.get(dag_run.page("kickoff", end="/fragment")).text, "this DAG")
    assert "another text" not in client.get(dag_run.page("kickoff")).text


@pytest.mark.row("A33")
def test_a_connection_of_another_type_is_not_used(
    app: FastAPI, dag_run: Run, service: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"conn_type": "http", "host": service.url, "password": "of another host"}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(value))
    dag_run.task("kickoff", about())
    client = client_of(app)
    wait_until(lambda: "is not of type crew" in client.get(dag_run.page("kickoff")).text, "the refusal")
    assert service.requests == []


def test_sensitive_input_names_and_secret_values_are_masked_everywhere(
    app: FastAPI, dag_run: Run, service: FaultServer, connect: object
) -> None:
    token = 'a"token/with=ä'  # in JSON text it has other forms
    connect(service.url, headers={"X-Gateway": token.encode("ascii", "ignore").decode()})  # type: ignore[operator]
    token = token.encode("ascii", "ignore").decode()
    named = {"api_key": "sk-of-a-model", "db": {"password": "hunter2"}, "topic": token, token: "x"}
    task = {"task_id": token, "name": token, "agent": token, "state": "completed", "output": token}
    decided = {"draft": token, "output_sha256": output_sha256(token), "decided_at": "2026-11-20T12:00:00+00:00"}
    details = {"state": "completed", "output": json.dumps({"a": token}), "output_json": {token: [token]}}
    service.on("GET /executions/k-1", {**details, "inputs": named, "tasks": [task], "rounds": [decided]})
    dag_run.task("kickoff", about(view="/view?id=k-1"))
    dag_run.decided("kickoff", {**decided, "output": token, "human_feedback": token, "reviewer": {"id": token}})
    client = client_of(app)
    wait_until(lambda: "Completed" in client.get(dag_run.page("kickoff")).text, "the details")
    text = html.unescape(client.get(dag_run.page("kickoff", end="/fragment")).text)
    assert [each for each in ("sk-of-a-model", "hunter2", token, json.dumps(token)[1:-1]) if each in text] == []
    assert "api_key" in text
    assert "Not verified" not in text, "the hash is of the text as it arrived"


CREW_VIEW = {"Crew-View": "/view?id=k-1"}
LOGIN = Reply(status=302, headers={"Location": "https://login.example.com/"})
NO_DETAILS = {
    **{str(code): Reply(status=code, body={}) for code in (400, 403, 404, 405, 406, 451, 501)},
    **{"login": LOGIN, "html": Reply(body=b"<html>"), "list": Reply(body=[]), "state": Reply(body={"state": ["x"]})},
}
DETAILS = {"execution_id": "k-1", "kickoff_ids": ["k-1"], "state": "completed", "output": SECRET, "left_out": []}
WITHHELD = {
    "none": {},
    "left out": {"meta": None, "left_out": ["meta"]},
    "unreadable": {"meta": {"airflow": "?"}},
    "left out, unreadably": {"meta": None, "left_out": 5},
}


@pytest.mark.row("A33")
@pytest.mark.parametrize(("refusal", "view"), crossed(["404", "html", "state"], [None, "/view?id=k-1"]))
def test_refused_details_do_not_reveal_a_merely_polled_execution(
    app: FastAPI, dag_run: Run, service: FaultServer, refusal: str, view: str | None
) -> None:
    service.on("GET /status/k-1", Reply(body=STATUS, headers=CREW_VIEW))
    service.on("GET /executions/k-1", NO_DETAILS[refusal], {**DETAILS, "meta": {"airflow": {"dag_id": "another"}}})
    dag_run.task("wait", about(view=view), started=False)
    client, seen = client_of(app), [""]

    def is_refused() -> bool:
        seen.append(client.get(dag_run.page("wait", end="/fragment")).text)
        return "another DAG started it" in seen[-1]

    wait_until(is_refused, "the details are asked for again, and name the DAG")
    assert [text for text in [*seen, client.get(dag_run.path()).text] if SECRET in text] == []
    assert [text for text in seen if "does not report which DAG started it" in text]


@pytest.mark.row("A33")
@pytest.mark.parametrize("meta", WITHHELD.values(), ids=WITHHELD)
def test_details_without_origin_do_not_reveal_a_merely_polled_execution(
    app: FastAPI, dag_run: Run, service: FaultServer, meta: Json
) -> None:
    service.on("GET /executions/k-1", {**DETAILS, **meta})
    dag_run.task("wait", about(view="/view?id=k-1"), started=False)
    own = Run().task("kickoff", about(view="/view?id=k-1"))
    client = client_of(app)
    wait_until(lambda: SECRET in client.get(own.page("kickoff", end="/fragment")).text, "the run that started it")
    text = client.get(dag_run.page("wait", end="/fragment")).text
    assert (SECRET in text, "does not report which DAG started it" in text) == (False, True)


@pytest.mark.row("A33")
@pytest.mark.parametrize("meta", [None, {}, {"team": "news"}])
def test_an_execution_started_by_no_dag_is_shown_when_polled(
    app: FastAPI, dag_run: Run, service: FaultServer, meta: Json | None
) -> None:
    service.on("GET /executions/k-1", {**DETAILS, "meta": meta})
    dag_run.task("wait", about(view="/view?id=k-1"), started=False)
    client = client_of(app)
    wait_until(lambda: SECRET in client.get(dag_run.page("wait", end="/fragment")).text, "the execution")


@pytest.mark.row("A33")
def test_a_deployment_without_details_shows_executions_to_polling_runs(app: FastAPI, dag_run: Run) -> None:
    dag_run.task("wait", about(), started=False)
    client = client_of(app)
    wait_until(lambda: SECRET in client.get(dag_run.page("wait", end="/fragment")).text, "the status")


@pytest.mark.row("A33")
@pytest.mark.parametrize("listed", [["k-1"], None, "k-1 k-2"])
def test_polling_another_execution_under_an_own_id_shows_nothing(
    app: FastAPI, dag_run: Run, service: FaultServer, listed: object
) -> None:
    """Such as `CrewStatusSensor(kickoff_id="of another DAG", execution_id="of this DAG")`."""
    mine = {**DETAILS, "output": "of this DAG", "kickoff_ids": listed, "meta": {"airflow": {"dag_id": dag_run.dag_id}}}
    service.on("GET /status/k-2", Reply(body={"status": "running", "current_task": SECRET}, headers=CREW_VIEW))
    service.on("GET /executions/k-1", {**mine, "state": "running"}, Reply(status=404, body={}), mine)
    dag_run.task("kickoff", about(view="/view?id=k-1")).task("wait", about("k-1", "k-2"), started=False)
    client, seen = client_of(app), [""]

    def are_asked_again() -> bool:
        seen.append(client.get(dag_run.page("wait", end="/fragment")).text)
        return len(service.requests) == 4

    wait_until(are_asked_again, "details, a refusal, the status, and details again")
    assert service.requests[2].target == "/status/k-2"
    assert [text for text in seen if SECRET in text] == []


@pytest.mark.parametrize("answer", sampled(NO_DETAILS.values(), 3), ids=NO_DETAILS)
def test_a_gateway_passing_only_specified_endpoints_still_shows_the_status(
    app: FastAPI, dag_run: Run, service: FaultServer, answer: Reply
) -> None:
    service.on("GET /executions/k-1", answer)
    service.on("GET /status/k-1", Reply(body=STATUS, headers=CREW_VIEW))
    dag_run.task("kickoff", about()).task("wait", about(), started=False)
    client = client_of(app)
    for task_id in ("kickoff", "wait"):
        page = dag_run.page(task_id, end="/fragment")
        wait_until(lambda page=page: SECRET in client.get(page).text, "the status")  # type: ignore[misc]
    asked = [request.target for request in service.requests]
    assert asked == [("/status/k-1", "/executions/k-1")[number % 2] for number in range(len(asked))]


@pytest.mark.parametrize("index", [str(10**30), str(2**63), "9" * 5_000, "1_0x"])
def test_a_map_index_that_no_database_has_is_not_found(app: FastAPI, dag_run: Run, index: str) -> None:
    dag_run.task("kickoff", about())
    assert client_of(app).get(dag_run.page("kickoff", index)).status_code == 404


def test_connection_tokens_and_headers_never_reach_the_browser(
    app: FastAPI, dag_run: Run, service: FaultServer, connect: object
) -> None:
    connect(service.url, headers={"X-Gateway": "a-key-of-the-gateway"})  # type: ignore[operator]
    echoed = f"{TOKEN} and a-key-of-the-gateway"
    statuses = {
        "k-2": {"status": "completed", "result": {"output": echoed, "tasks": [{"task_id": "t", "output": echoed}]}},
        "k-3": {"status": "error", "error": echoed},
        "k-4": {"status": "pending", "task_id": "t", "task_output": echoed, "question": echoed},
        "k-5": {"status": "running", "current_task": echoed},
    }
    for kickoff_id, status in statuses.items():
        service.on(f"GET /status/{kickoff_id}", status)
        dag_run.task(kickoff_id, about(kickoff_id))
    client = client_of(app)
    for kickoff_id in statuses:
        address = dag_run.page(kickoff_id)
        wait_until(lambda address=address: "***" in client.get(address).text, "the look-up")  # type: ignore[misc]
        answer = client.get(address)
        for shown in (answer.text, str(answer.headers)):
            assert TOKEN not in shown
            assert "a-key-of-the-gateway" not in shown
