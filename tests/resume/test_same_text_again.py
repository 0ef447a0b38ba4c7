"""A revision whose response was lost, and a crew that wrote the same text again. Against a real crew service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from airflow.providers.common.compat.sdk import AirflowException
from faults.dialects import PENDING_SPEC, SPEC
from faults.proxy import RESUME, Fault, FaultProxy
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from scripts.stack.waiting import PATIENCE, wait_until

local = pytest.importorskip("crew_service.local", reason="needs the crew service")
Json = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("simulated_airflow", "quick_resume"), pytest.mark.row("N13")]
SAME = {"id": "check", "agent": "A", "seconds": 0.0, "human_input": True, "output": "Fine.", "revised": "Fine."}
REVISION = {"crew_task_id": "check", "is_approve": False, "human_feedback": "Check the sum."}
POST, POLL, DETAILS = "POST /resume", "GET /status/k-1", "GET /executions/k-1"


class LostOnce:
    """Loses the response to the first resume, which the service gets or does not get."""

    def __init__(self, *, arrives: bool) -> None:
        self.arrives, self.is_over = arrives, False

    def __call__(self, forward: Callable[[], Reply], _: Any) -> Any:
        if self.is_over:
            return forward()
        self.is_over = True
        if self.arrives:
            forward()
        return NoReply(RESET)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Any]:
    with local.running_service(scenario={"inputs": [], "tasks": [SAME]}, db=tmp_path / "service.db") as service:
        yield service


def asked(service: Any, kickoff_id: str) -> list[Json]:
    """Return the questions of an execution, once it waits for a person."""

    def rounds() -> list[Json]:
        headers = {"Authorization": f"Bearer {service.token}"}
        found = requests.get(f"{service.url}/executions/{kickoff_id}", headers=headers, timeout=PATIENCE).json()
        return [] if found["state"] != "pending" else list(found["rounds"])

    wait_until(rounds, "the crew to ask")
    return rounds()


def review_of(kickoff_id: str) -> Json:
    return {**REVISION, "execution_id": kickoff_id, "output_sha256": output_sha256("Fine.")}


@pytest.mark.parametrize("keys", [False, True], ids=["no keys", "keys"])
@pytest.mark.parametrize("arrives", [True, False], ids=["arrived", "never arrived"])
def test_a_revision_is_applied_once_when_the_same_text_returns(
    service: Any, connect: Connect, arrives: bool, keys: bool
) -> None:
    faults = [Fault("N13", "lost once", RESUME, LostOnce(arrives=arrives))]
    with FaultProxy(service.url, seed=0, rate=1.0, faults=faults) as proxy:
        connect(proxy.url, token=service.token, idempotency_keys=keys)
        kickoff_id, task_run = CrewHook().kickoff({}), TaskRun("resume")
        asked(service, kickoff_id)
        resume = CrewResumeOperator(task_id="resume", review=review_of(kickoff_id))
        with pytest.raises(AirflowException, match="A retry of this task finds out whether the answer was accepted"):
            run(resume, task_run)
        assert [bool(each["decided_at"]) for each in asked(service, kickoff_id)] == (
            [True, False] if arrives else [False]
        )
        assert run(resume, task_run.retry()) == kickoff_id
    wait_until(lambda: len(asked(service, kickoff_id)) == 2, "the second question")
    assert [each["human_feedback"] for each in asked(service, kickoff_id)] == ["Check the sum.", None]


# --- what the service shows of its rounds, or does not ------------------------------------------------------

WAITS = Reply(body=PENDING_SPEC, headers={"Crew-View": "/view?id=k-1"})
REVIEW = {**REVISION, "execution_id": "k-1", "crew_task_id": "draft_task", "output_sha256": output_sha256("the draft")}


def rounds(*decided: Any) -> Reply:
    listed = [{"number": number, "decided_at": at} for number, at in enumerate(decided, 1)]
    return Reply(body={"state": "pending", "rounds": listed})


def lost(server: FaultServer) -> TaskRun:
    """Run a try whose response is lost; return the next one."""
    server.on(POST, NoReply(RESET), SPEC.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException, match="A retry of this task finds out"):
        run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run)
    return task_run.retry()


@pytest.mark.parametrize(
    "details",
    [Reply(status=404), Reply(status=403), Reply(body={"state": "pending"}), rounds("2026-11-20T12:00:00+00:00")],
    ids=["none", "refused", "without rounds", "all decided"],
)
def test_without_known_rounds_a_person_settles_a_lost_revision(server: FaultServer, details: Reply) -> None:
    server.on(POLL, WAITS).on(DETAILS, details)
    task_run = lost(server)
    with pytest.raises(CrewTaskFailed, match=r"written the same text again\. Sending it again could apply it twice"):
        run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run)
    assert len(server.sent(POST)) == 1


def test_a_service_without_details_is_asked_for_none(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC)
    task_run = lost(server)
    with pytest.raises(CrewTaskFailed, match="whether the crew has written the same text again"):
        run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run)
    assert (len(server.sent(POST)), len(server.sent(DETAILS))) == (1, 0)


def test_a_temporarily_unreadable_round_is_left_to_the_next_try(server: FaultServer) -> None:
    server.on(POLL, WAITS).on(DETAILS, rounds(None), Reply(status=503), rounds(None))
    task_run = lost(server)
    with pytest.raises(CrewTryFailed, match=r"This try sent nothing; a retry of this task compares again"):
        run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run)
    assert len(server.sent(POST)) == 1
    assert run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 2


@pytest.mark.row("A56")
@pytest.mark.parametrize("status", [200, 404])
def test_a_page_instead_of_rounds_leaves_resending_to_a_retry(server: FaultServer, status: int) -> None:
    page = Reply(status=status, body="<html>maintenance</html>")
    server.on(POLL, WAITS).on(DETAILS, rounds(None), page, rounds(None))
    task_run = lost(server)
    with pytest.raises(CrewTryFailed, match=r"maintenance.*This try sent nothing; a retry of this task compares again"):
        run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run)
    assert len(server.sent(POST)) == 1
    assert run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 2


@pytest.mark.row("A56")
@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_page_at_the_resume_is_no_refusal(server: FaultServer, status: int) -> None:
    """The next try finds the draft no longer waiting, so the answer arrived."""
    server.on(POLL, WAITS, SPEC.running)
    server.on(POST, Reply(status=status, body="<html>maintenance</html>"))
    task_run = TaskRun("resume")
    with pytest.raises(CrewTryFailed, match=r"maintenance.*A retry of this task finds out"):
        run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run)
    assert run(CrewResumeOperator(task_id="resume", review=REVIEW), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1
