"""Webhooks in real processes: a live deployment's question to a person comes by webhook alone, and wakes the task."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import requests
from faults.proxy import LOST_POSTS, RESUME, FaultProxy, call_of

from scripts.stack import AirflowStack, CrewService, ProcessGroup, wait_until
from scripts.stack.waiting import FACTOR, PATIENCE
from tests.system.conftest import EXAMPLES
from tests.system.reviews.test_reviews import decide, review_in

FEEDBACK = "Shorter, and name the sources."
CREW: dict[str, Any] = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research", "agent": "Researcher", "seconds": 6.0, "output": "Notes on {topic}."},
        {
            "id": "write",
            "agent": "Writer",
            "seconds": 6.0,
            "human_input": True,
            "output": "Draft {revision} on {topic}.",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        },
        {"id": "publish", "agent": "Editor", "seconds": 6.0, "output": "A text on {topic}."},
    ],
}


@pytest.fixture(scope="module")
def live_crew(airflow: AirflowStack, group: ProcessGroup) -> CrewService:
    return of_connection(airflow, group, "crew_inbox", CREW)


@pytest.fixture
def late_crew(airflow: AirflowStack, group: ProcessGroup) -> CrewService:
    """Asks so late that a busy machine has taken up the wait by then."""
    research, *more = CREW["tasks"]
    late = {**CREW, "tasks": [{**research, "seconds": 15.0 * FACTOR}, *more]}
    return of_connection(airflow, group, "crew_inbox_late", late)


def of_connection(airflow: AirflowStack, group: ProcessGroup, crew_conn_id: str, crew: dict[str, Any]) -> CrewService:
    service = CrewService(crew, dialect="live", name=crew_conn_id, group=group).start()
    inbox = {"inbox_url": f"{airflow.url}/crew-inbox"}
    airflow.api.add_connection(crew_conn_id, **service.connection, extra=json.dumps(inbox))
    return service


def status(service: CrewService, kickoff_id: str) -> str:
    headers = {"Authorization": f"Bearer {service.token}"}
    return str(requests.get(f"{service.url}/status/{kickoff_id}", headers=headers, timeout=PATIENCE).json()["state"])


@pytest.mark.long
def test_a_live_deployment_is_reviewed_in_rounds_by_webhooks_alone(
    airflow: AirflowStack, live_crew: CrewService
) -> None:
    run = airflow.api.trigger("inbox_review")

    first = run.wait_for_review()
    pending = run.xcom("crew.wait")
    assert pending["state"] == "pending"
    assert status(live_crew, pending["kickoff_id"]) == "NOT FOUND"
    assert "Draft 1 on tea." in first["body"]
    airflow.wait_until_put_away(run, first["task_instance"]["task_id"])
    run.answer(first, "revise", human_feedback=FEEDBACK)

    second = run.wait_for_review()
    assert f"Draft 2 on tea, after: {FEEDBACK}" in second["body"]
    again = run.xcom("crew.round_1.wait")
    assert again["crew_task_id"] != pending["crew_task_id"]
    assert again["kickoff_id"] != pending["kickoff_id"]
    assert again["execution_id"] == pending["kickoff_id"]
    airflow.wait_until_put_away(run, second["task_instance"]["task_id"])
    run.answer(second, "approve", human_feedback="")

    run.wait_for("success")
    record = run.xcom("crew.result")
    assert (record["state"], record["output"]) == ("completed", "A text on tea.")


@pytest.mark.long
@pytest.mark.since_airflow("3.3")  # which takes the wake for a kill
def test_an_execution_whose_wait_a_webhook_ended_is_not_stopped(airflow: AirflowStack, late_crew: CrewService) -> None:
    def is_taken_for_a_kill() -> bool:
        run = airflow.api.trigger("inbox_cancel")
        run.wait_for("success")
        record = run.xcom("wait")
        assert record["output"] == "Draft 1 on tea."

        def is_logged(event: str) -> bool:
            return f'{event}","name":"inbox_cancel/{run.run_id}/wait' in airflow.logs()

        wait_until(lambda: is_logged("trigger completed"), "the end of the trigger")
        assert status(late_crew, record["kickoff_id"]) == "NOT FOUND", "it waits for a person, and was not stopped"
        return is_logged("Trigger cancelled by user action, invoking on_kill")

    # On a busy machine, the question may come before the wait: the first poll finds it, and nothing is woken.
    assert any(is_taken_for_a_kill() for _ in range(3))


def test_a_question_preceding_the_wait_is_found_at_first_poll(airflow: AirflowStack, live_crew: CrewService) -> None:
    run = airflow.api.trigger("inbox_after_the_fact")
    run.wait_for_task("kickoff", ["success"])
    kickoff_id = run.xcom("kickoff")
    wait_until(lambda: status(live_crew, kickoff_id) == "NOT FOUND", "the question")

    airflow.api.json("POST", "variables", json={"key": "inbox_go", "value": "yes"})
    run.wait_for("success")
    assert "deferred" not in run.log("wait").lower()
    assert run.xcom("wait")["output"] == "Draft 1 on tea."


@pytest.mark.long  # without processes: test_resume_once.py
@pytest.mark.row("A40")
@pytest.mark.parametrize(
    "has_arrived",
    [pytest.param(False, id="lost on its way"), pytest.param(True, id="its answer lost")],
)
def test_after_a_lost_answer_another_one_is_never_sent_automatically(
    airflow: AirflowStack, live_crew: CrewService, has_arrived: bool
) -> None:
    name = "answer lost: reset" if has_arrived else "never arrived: reset"
    lost = next(each for each in LOST_POSTS if (each.call, each.name) == (RESUME, name))
    inbox = {"inbox_url": f"{airflow.url}/crew-inbox", "kickoff_timeout": 5}
    with FaultProxy(live_crew.url, seed=0, rate=1.0, faults=(lost,)) as proxy:
        connection = {**live_crew.connection, "host": proxy.url, "extra": json.dumps(inbox)}
        airflow.api.add_connection("crew_inbox_lossy", **connection)
        run = airflow.api.trigger("inbox_lost_answer")
        decide(run, run.wait_for_review(), "revise", "Longer.")
        resume = "crew.round_1.resume"
        run.wait_for("failed")
        assert "Sending it again could apply it twice" in run.log(resume)
        proxy.faults = ()
        assert sent(proxy) == ["Longer."]
        run.clear("crew.round_1.review", downstream=True)
        decide(run, review_in(run, "crew.round_1.review"), "revise", "Shorter.")
        run.wait_for("failed")
        assert sent(proxy) == ["Longer."]
        said = run.log(resume)
        assert "(revise, 20" in said
        if has_arrived:
            assert "its outcome was unknown, but the execution has continued since" in said
            run.clear(resume)
            run.wait_for("failed")
            assert sent(proxy) == ["Longer."]
            return
        assert "may already have been answered" in said
        assert "clear this task once more" in said
        run.clear(resume, downstream=True)
        second = review_in(run, "crew.round_2.review")
        assert "Draft 2 on tea, after: Shorter." in second["body"]
        decide(run, second, "approve")
        run.wait_for("success")
        assert sent(proxy) == ["Longer.", "Shorter.", "Approved."]


def sent(proxy: FaultProxy) -> list[str]:
    return [request.json["human_feedback"] for request in proxy.requests if call_of(request) == RESUME]


@pytest.fixture
def flow_service(airflow: AirflowStack, group: ProcessGroup) -> CrewService:
    """A Flow whose questions come by a signed webhook alone."""
    pytest.importorskip("crewai", reason="a Flow needs CrewAI")
    webhook, secret = f"{airflow.url}/crew-inbox/flow/crew_inbox_flow", "s" * 40
    service = CrewService(
        f"{EXAMPLES / 'crews' / 'briefing_flow.py'}:BriefingFlow",
        dialect="live",
        name="crew-service-inbox-flow",
        options=("--flow-webhook", webhook, "--flow-webhook-secret", secret),
        group=group,
    ).start()
    extra = {"kind": "flow", "flow_webhook_secret": secret}
    airflow.api.add_connection("crew_inbox_flow", **service.connection, extra=json.dumps(extra))
    return service


@pytest.mark.long  # without Airflow's processes: test_flow_answers.py
@pytest.mark.row("F2", "F4")
def test_a_flows_signed_webhook_is_answered_from_airflow(airflow: AirflowStack, flow_service: CrewService) -> None:
    forged = {"X-CrewAI-Signature": "sha256=" + "0" * 64, "X-CrewAI-Timestamp": str(int(time.time()))}
    inbox = f"{airflow.url}/crew-inbox/flow/crew_inbox_flow"
    assert requests.post(inbox, json={"id": "r-1"}, headers=forged, timeout=PATIENCE).status_code == 401

    run = airflow.api.trigger("inbox_flow")
    asked = run.wait_for_review()
    assert "Are the facts right?" in asked["body"]
    assert asked["options"] == ["approved", "rework"]
    airflow.wait_until_put_away(run, asked["task_instance"]["task_id"])
    run.answer(asked, "rework", human_feedback="Name the sources.")
    run.wait_for("success")

    flow, wanted = run.xcom("kickoff"), "Revised, as the reviewer asked: Name the sources."
    headers = {"Authorization": f"Bearer {flow_service.token}"}

    def drafts() -> str:
        address = f"{flow_service.url}/executions/{flow}"
        return requests.get(address, headers=headers, timeout=PATIENCE).text

    wait_until(lambda: wanted in drafts(), "the Flow to go on with what the person said")
