"""The dialect of live deployments, as observed."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from crew_client import PLAIN, SLOW, Client, Receiver, Serve, eventually
from sampling import sampled

pytestmark = pytest.mark.waits
KNOWN_TO_CLIENTS = {"PENDING", "STARTED", "RUNNING", "SUCCESS", "FAILED", "NOT FOUND"}
NOT_FOUND = {"state": "NOT FOUND", "status": "Task not found or Invalid kickoff id", "result": None}


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve(dialect="live")


def question(receiver: Receiver, round: int) -> dict:
    eventually(lambda: len(receiver.bodies("/ask")) >= round, "the question")
    return receiver.bodies("/ask")[round - 1]


def decide(client: Client, asked: dict, text: str, **more: object) -> str:
    body = {"executionId": asked["execution_id"], "taskId": asked["task_id"], "humanFeedback": text, **more}
    answer = client.post("/resume", body)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"kickoff_id"}
    return answer.json()["kickoff_id"]


def test_right_after_the_kickoff_the_state_is_pending(client: Client) -> None:
    record = client.status(client.kickoff())
    assert (record["state"], record["status"]) == ("PENDING", "Task is pending")


def test_a_crew_without_questions_succeeds_through_states_clients_know(serve: Serve) -> None:
    client = serve(
        {"tasks": [{"id": "a", "seconds": 0.2, "output": "x"}, {"id": "b", "output": '{"a": 1}'}]}, dialect="live"
    )
    kickoff_id = client.kickoff(meta={"run": 7})
    seen = []
    while "SUCCESS" not in seen:
        record = client.status(kickoff_id)
        seen.append(record["state"])
    assert set(seen) <= KNOWN_TO_CLIENTS - {"NOT FOUND"}
    assert {"PENDING", "RUNNING", "SUCCESS"} <= set(seen)
    assert (record["status"], record["result"], record["result_json"]) == (None, '{"a": 1}', {"a": 1})
    assert set(record["usage_metrics"]) == {"total_tokens", "prompt_tokens", "completion_tokens"}
    assert record["last_executed_task"]["meta"] == {"run": 7}
    assert record["progress"]["completed"] == record["progress"]["total"] == 2


def test_a_result_in_a_code_fence_is_an_object_too(serve: Serve) -> None:
    fenced = '```json\n{"a": 1}\n```'
    client = serve({"tasks": [{"id": "a", "output": fenced}]}, dialect="live")
    record = client.until(client.kickoff(), "SUCCESS")
    assert (record["result"], record["result_json"]) == (fenced, {"a": 1})


def test_a_running_execution_reports_its_progress_in_the_observed_shape(serve: Serve) -> None:
    scenario = {"tasks": [{"id": "a", "agent": "A", "output": "done"}, {"id": "b", "agent": "B", "seconds": 60}]}
    client = serve(scenario, dialect="live")
    kickoff_id = client.kickoff(meta={"run": 7})
    record = eventually(
        lambda: (r := client.status(kickoff_id))["progress"] and r["progress"]["current"] == "b" and r, "task b"
    )
    assert record["state"] == "RUNNING"
    progress = record["progress"]
    assert (progress["unit"], progress["completed"], progress["total"], progress["remaining"]) == ("task", 1, 2, 1)
    assert record["last_executed_task"] == {
        "name": "a",
        "description": "",
        "output": "done",
        "agent": "A",
        "kickoff_id": kickoff_id,
        "meta": {"run": 7},
    }
    assert record["last_step"]["result"] == "done"


def test_a_failure_reads_failed_with_the_reason_as_its_status(serve: Serve) -> None:
    client = serve({"tasks": [{"id": "t", "error": "ValueError: bad input"}]}, dialect="live")
    record = client.until(client.kickoff(), "FAILED")
    assert (record["status"], record["result"]) == ("ValueError: bad input", None)


def test_the_unknown_reads_not_found_with_code_200(client: Client) -> None:
    for some_id in (str(uuid4()), "x"):
        answer = client.get(f"/status/{some_id}")
        assert (answer.status_code, {**answer.json(), **NOT_FOUND}) == (200, answer.json())


def test_a_422_names_missing_inputs_and_lists_wrong_types(client: Client) -> None:
    answer = client.post("/kickoff", {"inputs": {}})
    assert (answer.status_code, answer.json()) == (422, {"detail": "Missing inputs: topic"})
    answer = client.post("/resume", {"execution_id": "a", "task_id": "b", "human_feedback": "Approved."})
    assert answer.status_code == 422
    errors = {tuple(entry["loc"]): (entry["msg"], entry["type"]) for entry in answer.json()["detail"]}
    missing = ("Field required", "missing")
    assert errors == {("body", "executionId"): missing, ("body", "taskId"): missing}


def test_after_a_webhook_question_the_result_has_a_new_id(client: Client, receiver: Receiver) -> None:
    hook = {"url": f"{receiver.url}/ask", "authentication": {"strategy": "bearer", "token": "hook-secret"}}
    root = client.kickoff(meta={"run": 7}, humanInputWebhook=hook)
    first = question(receiver, 1)
    assert first | {"task_id": ""} == {
        "kickoff_id": root,
        "execution_id": root,
        "task_id": "",
        "task_output": "Draft 1 on AI",
        "meta": {"run": 7},
    }
    assert str(UUID(first["task_id"])) == first["task_id"]
    assert receiver.taken[0][1]["Authorization"] == "Bearer hook-secret"
    assert client.status(root)["state"] == "NOT FOUND"

    second_id = decide(client, first, "Shorter, please", humanInputWebhook=hook, is_approve=True)
    assert second_id != root
    second = question(receiver, 2)
    assert (second["kickoff_id"], second["execution_id"]) == (second_id, root)
    assert second["task_id"] != first["task_id"]
    assert second["task_output"] == "Draft 2 on AI, after: Shorter, please"

    third_id = decide(client, second, "Approved.")
    assert client.until(third_id, "SUCCESS")["result_json"] == {"title": "All on AI"}
    assert {client.status(old)["state"] for old in (root, second_id)} == {"NOT FOUND"}


@pytest.mark.parametrize("text", sampled(["approved", "Approve!", " OK ", "yes.", "Looks good", "LGTM!!", "ok..."], 3))
def test_a_short_plain_approval_continues(serve: Serve, receiver: Receiver, text: str) -> None:
    client = serve(dialect="live")
    client.kickoff(humanInputWebhookUrl=f"{receiver.url}/ask")
    assert client.until(decide(client, question(receiver, 1), text), "SUCCESS")


@pytest.mark.parametrize("text", sampled(["approved, but shorter", "", "not ok", "no", "yes yes"], 3))
def test_any_other_text_runs_the_task_again(serve: Serve, receiver: Receiver, text: str) -> None:
    client = serve(dialect="live")
    url = f"{receiver.url}/ask"
    client.kickoff(humanInputWebhookUrl=url)
    decide(client, question(receiver, 1), text, humanInputWebhookUrl=url)
    assert question(receiver, 2)["task_output"] == f"Draft 2 on AI, after: {text}"


def test_resuming_the_unknown_answers_200_with_a_dead_id(client: Client, receiver: Receiver) -> None:
    client.kickoff(humanInputWebhookUrl=f"{receiver.url}/ask")
    asked = question(receiver, 1)
    for wrong in ({"execution_id": str(uuid4())}, {"task_id": str(uuid4())}, {"task_id": "draft_task"}):
        replaced = decide(client, {**asked, **wrong}, "Approved.")
        assert client.status(replaced)["state"] == "NOT FOUND"
    assert client.until(decide(client, asked, "Approved."), "SUCCESS")


def test_resume_of_the_unknown_answers_the_same_key_the_same(client: Client) -> None:
    body = {"executionId": str(uuid4()), "taskId": str(uuid4()), "humanFeedback": "Approved."}
    first, again = (client.post("/resume", body, headers={"Idempotency-Key": "once"}) for _ in range(2))
    assert (first.status_code, again.json()) == (200, first.json())
    other = client.post("/resume", {**body, "humanFeedback": "No."}, headers={"Idempotency-Key": "once"})
    assert other.status_code == 422


def test_a_question_that_was_answered_is_a_400(client: Client, receiver: Receiver) -> None:
    client.kickoff(humanInputWebhookUrl=f"{receiver.url}/ask")
    asked = question(receiver, 1)
    decide(client, asked, "Approved.")
    body = {"executionId": asked["execution_id"], "taskId": asked["task_id"], "humanFeedback": "Approved."}
    assert client.post("/resume", body).status_code == 400


def test_a_stopped_execution_reads_revoked(serve: Serve) -> None:
    client = serve(SLOW, dialect="live")
    kickoff_id = client.kickoff()
    assert client.post(f"/stop/{kickoff_id}").json() == {"status": "stopped", "kickoffId": kickoff_id}
    assert client.status(kickoff_id)["state"] == "REVOKED"
    answer = client.post(f"/stop/{kickoff_id}")
    assert (answer.status_code, answer.json()["detail"]) == (400, "Cannot stop execution. Current state: REVOKED")
    assert client.post(f"/stop/{uuid4()}").status_code == 404


def test_its_first_and_polled_ids_both_stop_a_waiting_execution(serve: Serve, receiver: Receiver) -> None:
    client = serve(dialect="live")
    url = f"{receiver.url}/ask"
    root = client.kickoff(humanInputWebhookUrl=url)
    polled = decide(client, question(receiver, 1), "again", humanInputWebhookUrl=url)
    question(receiver, 2)
    assert client.post(f"/stop/{root}").status_code == 200
    assert client.status(polled)["state"] == "REVOKED"


def test_the_crew_webhook_gets_success_once_in_the_observed_shape(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN, dialect="live")
    kickoff_id = client.kickoff(crewWebhookUrl=f"{receiver.url}/crew", meta={"a": 1})
    client.until(kickoff_id, "SUCCESS")
    eventually(lambda: receiver.bodies("/crew"), "the crew webhook")
    (body,) = receiver.bodies("/crew")
    assert body == {
        "kickoff_id": kickoff_id,
        "result": "All on AI",
        "result_json": None,
        "token_usage": {"total_tokens": 0, "prompt_tokens": 0, "completion_tokens": 0},
        "meta": {"a": 1},
    }
