"""Row N17: what comes in is refused, or taken once; it wakes who waits for it and decides nothing."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.sdk import conf
from airflow.settings import engine
from registered_run import RegisteredRun

from airflow_crew_provider.compat import deferral
from airflow_crew_provider.inbox import app, store
from airflow_crew_provider.inbox.messages import digest
from airflow_crew_provider.wait.watch import Outcome
from scripts.stack import wait_until
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.row("N17")


def test_a_question_that_comes_before_the_kickoffs_answer_is_kept(dag_run: RegisteredRun) -> None:
    assert dag_run.send_question().status_code == 200
    question = dag_run.messages().newest
    assert question
    assert (question.task_id, question.output) == ("e5a3", "Draft 1.")


def test_a_question_wakes_its_waiting_task_and_decides_nothing(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    trigger = dag_run.wait(dag_run.kickoff, dag_run.execution_id)
    other = dag_run.wait(dag_run.kickoff, "another-execution")

    assert dag_run.send_question(is_approve=True, human_feedback="Approved.").status_code == 200

    wait_until(lambda: dag_run.waiting(trigger)[0] == "scheduled", "the task to be woken")
    outcome = Outcome.from_event(dag_run.waiting(trigger)[1])
    assert (outcome.kind, outcome.kickoff_id, outcome.crew_task_id) == ("pending", dag_run.execution_id, "e5a3")
    assert dag_run.still_waits(other)
    assert "pprove" not in json.dumps(dag_run.messages().as_dict())


def test_a_just_deferred_task_is_woken_once_airflow_noticed_it(
    dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "NOTICED_AFTER", 2.0)
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    deferred_at = datetime.now(UTC)
    fresh = dag_run.wait(dag_run.kickoff, dag_run.execution_id, since=deferred_at)
    old = dag_run.wait(dag_run.kickoff, dag_run.execution_id)

    assert dag_run.send_question().status_code == 200

    wait_until(lambda: dag_run.waiting(old)[0] == "scheduled", "the task that was deferred long ago to be woken")
    wait_until(lambda: dag_run.waiting(fresh)[0] == "scheduled", "the other one to be woken")
    assert datetime.now(UTC) - deferred_at >= timedelta(seconds=2)


def test_noticing_a_deferral_is_given_more_than_a_heartbeat() -> None:
    assert conf.getint("workers", "min_heartbeat_interval") < deferral.NOTICED_AFTER


@pytest.mark.parametrize("token", ["", "wrong", "Bearer", "x" * 5000, "%00", "é"])
def test_a_forged_token_is_refused(dag_run: RegisteredRun, token: str) -> None:
    answer = dag_run.http.post(
        dag_run.kickoff.url,
        json=dag_run.question(),
        headers={"Authorization": f"Bearer {token}".encode()},
        timeout=PATIENCE,
    )
    assert answer.status_code == 401
    assert dag_run.messages().newest is None


def test_without_a_token_or_with_another_scheme_nothing_is_taken(dag_run: RegisteredRun) -> None:
    assert dag_run.http.post(dag_run.kickoff.url, json=dag_run.question(), timeout=PATIENCE).status_code == 401
    basic = {"Authorization": f"Basic {dag_run.kickoff.token}"}
    assert (
        dag_run.http.post(dag_run.kickoff.url, json=dag_run.question(), headers=basic, timeout=PATIENCE).status_code
        == 401
    )
    assert dag_run.messages().newest is None


def test_the_token_of_another_execution_and_its_hash_are_refused(dag_run: RegisteredRun) -> None:
    other = dag_run.register("other_kickoff")
    assert dag_run.send_question(token=other.token).status_code == 401
    assert dag_run.send_question(token=digest(dag_run.kickoff.token)).status_code == 401
    assert dag_run.send_question(other).status_code == 200
    assert dag_run.messages().newest is None


def test_an_unknown_address_answers_like_a_wrong_token(dag_run: RegisteredRun) -> None:
    unknown = dag_run.kickoff.url[:-1] + ("a" if dag_run.kickoff.url[-1] != "a" else "b")
    headers = {"Authorization": f"Bearer {dag_run.kickoff.token}"}
    answer = dag_run.http.post(unknown, json=dag_run.question(), headers=headers, timeout=PATIENCE)
    assert (answer.status_code, answer.json()) == (401, dag_run.send_question(token="wrong").json())


@pytest.mark.parametrize("ids", [{"kickoff_id": "x", "execution_id": "x"}, {"execution_id": "x"}, {"kickoff_id": "x"}])
def test_a_question_about_another_execution_is_refused(dag_run: RegisteredRun, ids: dict[str, str]) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    answer = dag_run.send_question(**ids)
    assert (answer.status_code, answer.json()["detail"]) == (422, "this is about another execution")
    assert dag_run.messages().newest is None


@pytest.mark.parametrize("chunked", [False, True])
def test_ten_megabytes_are_refused(dag_run: RegisteredRun, chunked: bool) -> None:
    body = json.dumps(dag_run.question(task_output="x" * 10_000_000)).encode()
    data: Any = (body[at : at + 65536] for at in range(0, len(body), 65536)) if chunked else body
    headers = {"Authorization": f"Bearer {dag_run.kickoff.token}"}
    assert dag_run.http.post(dag_run.kickoff.url, data=data, headers=headers, timeout=PATIENCE).status_code == 413
    assert dag_run.messages().newest is None


@pytest.mark.parametrize("length", [2_000_000, 15_000_000])
def test_who_still_sends_too_large_a_body_reads_the_refusal(dag_run: RegisteredRun, length: int) -> None:
    answers = [begin(dag_run, dag_run.kickoff.token, length, length) for _ in range(3)]
    assert answers == [b"HTTP/1.1 413"] * 3


def test_an_overlarge_body_that_never_comes_is_refused_soon(
    dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "DRAINING_SECONDS", 0.3)
    assert begin(dag_run, dag_run.kickoff.token, 2_000_000) == b"HTTP/1.1 413"


def test_who_has_no_token_cannot_make_the_inbox_read(dag_run: RegisteredRun) -> None:
    assert begin(dag_run, "wrong", 9) == b"HTTP/1.1 401"


def test_an_unfinished_body_is_given_up(dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.3)
    assert begin(dag_run, dag_run.kickoff.token, 9) == b"HTTP/1.1 408"


def begin(dag_run: RegisteredRun, token: str, announced: int, sent: int = 1) -> bytes:
    """Announce a body, send a part of it, and return the status that comes all the same."""
    where = urlsplit(dag_run.kickoff.url)
    fields = f"Host: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {announced}"
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as connection:
        connection.sendall(f"POST {where.path} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + b"{" * sent)
        return connection.recv(12)


BROKEN = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"task_id": "t"}',
    b'{"task_id": "", "kickoff_id": "k"}',
    b'{"task_id": 1, "kickoff_id": "k"}',
    b'{"task_id": "t", "kickoff_id": ["k"]}',
    json.dumps({"task_id": "t" * 3000, "kickoff_id": "k"}).encode(),
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_a_malformed_body_is_refused(dag_run: RegisteredRun, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {dag_run.kickoff.token}"}
    assert dag_run.http.post(dag_run.kickoff.url, data=body, headers=headers, timeout=PATIENCE).status_code == 422
    response = dag_run.http.post(dag_run.kickoff.webhooks.task or "", data=body, timeout=PATIENCE)
    assert response.status_code in (200, 422)
    assert dag_run.messages().newest is None


@pytest.mark.parametrize("output", ["", "{{ 7 * 7 }} <script>", "\u0000 and \ud800", "ü" * 1000, {"a": 1}, None])
def test_a_draft_is_data_whatever_it_holds(dag_run: RegisteredRun, output: Any) -> None:
    assert dag_run.send_question(task_output=output).status_code == 200
    question = dag_run.messages().newest
    assert question
    kept = question.as_execution(dag_run.execution_id)
    assert kept.crew_task_id == "e5a3"
    if isinstance(output, str) and output.isprintable():
        assert kept.output == output


def test_a_duplicate_is_acknowledged_and_taken_once(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    first = dag_run.wait(dag_run.kickoff, dag_run.execution_id)
    assert dag_run.send_question().json() == {"status": "taken"}
    wait_until(lambda: dag_run.waiting(first)[0] == "scheduled", "the first wait to be woken")
    after = dag_run.wait(dag_run.kickoff, dag_run.execution_id)

    again = dag_run.send_question(task_output="Another text under the same id.")

    assert (again.status_code, again.json()) == (200, {"status": "already known"})
    assert dag_run.messages().newest.output == "Draft 1."  # type: ignore[union-attr]
    assert dag_run.still_waits(after)


def test_concurrent_webhooks_are_all_kept_and_duplicates_taken_once(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(dag_run.send_question) for _ in range(8)]
        sent = [threads.submit(dag_run.send_webhook, dag_run.kickoff.webhooks.step, thought=str(n)) for n in range(24)]
        assert sorted(each.result().json()["status"] for each in asked) == ["already known"] * 7 + ["taken"]
        assert {each.result().status_code for each in sent} == {200}
    assert dag_run.messages().steps == 24


def test_after_a_resume_only_the_new_token_asks_new_questions(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    assert dag_run.send_question().status_code == 200
    resume = dag_run.register("resume", execution_id=dag_run.execution_id)

    assert dag_run.send_question(task_id="f00d").status_code == 401
    assert dag_run.send_question().json() == {"status": "already known"}
    assert dag_run.send_question(resume, task_id="f00d", kickoff_id="continuation").status_code == 200

    assert dag_run.messages().asked == ["e5a3"]
    assert dag_run.messages(resume).newest.task_id == "f00d"  # type: ignore[union-attr]


def test_a_question_before_a_resume_wakes_no_wait_after_it(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    resume = dag_run.register("resume", execution_id=dag_run.execution_id)
    dag_run.posted(resume, "continuation")
    trigger = dag_run.wait(resume, "continuation")
    assert dag_run.send_question().status_code == 401
    assert dag_run.send_question(resume).status_code == 200, "the service names the root execution only"
    dag_run.send_webhook(resume.webhooks.step, kickoff_id="continuation")
    assert dag_run.still_waits(trigger)
    assert dag_run.send_question(resume, task_id="f00d", kickoff_id="continuation").status_code == 200
    wait_until(lambda: dag_run.waiting(trigger)[0] == "scheduled", "the wait to be woken")


def test_what_comes_after_the_run_is_acknowledged_and_changes_nothing(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    dag_run.delete_run()
    assert dag_run.send_question().json() == {"status": "too late; nothing changed"}
    assert dag_run.send_webhook(dag_run.kickoff.webhooks.crew).status_code == 200
    assert dag_run.messages() == dag_run.messages().of(None, dag_run.kickoff.registration.id)


@pytest.mark.row("A50")
@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_question_to_an_ended_run_is_kept_for_clearing(dag_run: RegisteredRun, state: str) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    dag_run.end_run(state=state, end_date=datetime.now(UTC))
    assert dag_run.send_question().json() == {"status": "taken"}
    store.sweep(datetime.now(UTC) + timedelta(hours=1))
    dag_run.end_run(state="running", end_date=None)  # cleared
    assert dag_run.messages().newest is not None
    assert dag_run.send_question().json() == {"status": "already known"}


def test_progress_never_becomes_a_question(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    trigger = dag_run.wait(dag_run.kickoff, dag_run.execution_id)
    hooks = dag_run.kickoff.webhooks
    for url in (hooks.task, hooks.step):
        assert (
            dag_run.send_webhook(url, **dag_run.question(), name="write", agent="Writer", thought="Hm.").status_code
            == 200
        )
    assert dag_run.send_webhook(hooks.task, kickoff_id="another").status_code == 422
    messages = dag_run.messages()
    assert (messages.newest, messages.tasks, messages.steps) == (None, 1, 1)
    assert dag_run.still_waits(trigger)
    assert dag_run.send_question(token=(hooks.task or "").split("/")[-2]).status_code == 401, (
        "the capability is no bearer token"
    )


def test_a_success_webhook_causes_one_poll_and_is_no_result(dag_run: RegisteredRun) -> None:
    dag_run.posted(dag_run.kickoff, dag_run.execution_id)
    trigger = dag_run.wait(dag_run.kickoff, dag_run.execution_id, wait_past_pending=True)
    assert dag_run.send_webhook(dag_run.kickoff.webhooks.crew, result="forged").status_code == 200
    wait_until(lambda: dag_run.waiting(trigger)[0] == "scheduled", "the task to be woken")
    assert Outcome.from_event(dag_run.waiting(trigger)[1]).kind == "seen"
    again = dag_run.wait(dag_run.kickoff, dag_run.execution_id)
    assert dag_run.send_webhook(dag_run.kickoff.webhooks.crew).json() == {"status": "too late; nothing changed"}
    assert dag_run.still_waits(again)
    assert "forged" not in json.dumps(dag_run.messages().as_dict())


def test_a_wrong_capability_is_refused(dag_run: RegisteredRun) -> None:
    url = (dag_run.kickoff.webhooks.task or "").split("/")
    assert dag_run.send_webhook("/".join([*url[:-2], "x" * 43, "task"])).status_code == 401
    assert dag_run.send_webhook("/".join([*url[:-1], "approve"])).status_code == 422


def test_no_secret_stands_in_the_database(dag_run: RegisteredRun) -> None:
    assert dag_run.send_question().status_code == 200
    stored = b"".join(file.read_bytes() for file in Path(engine.url.database).parent.glob("airflow.db*"))
    assert dag_run.kickoff.registration.human_input.encode() in stored
    assert dag_run.kickoff.token.encode() not in stored
    assert (dag_run.kickoff.webhooks.task or "").split("/")[-2].encode() not in stored


@pytest.mark.parametrize("path", ["", "docs", "openapi.json", "human-input", "progress/a/b/task"])
def test_nothing_else_is_served(dag_run: RegisteredRun, path: str) -> None:
    assert dag_run.http.get(f"{dag_run.inbox_url}/{path}", timeout=PATIENCE).status_code in (404, 405)
