"""An answer belongs to the draft it was given for, at a real service."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from crew_service.local import LocalService, running_service
from scripts.stack import wait_until
from scripts.stack.waiting import PATIENCE

CREW = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "draft_task",
            "human_input": True,
            "output": "Draft {revision} on {topic}.",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        }
    ],
}


class Execution:
    """One execution at the service, as another client sees it."""

    def __init__(self, service: LocalService) -> None:
        self._service = service
        self.id = self._call("POST", "kickoff", inputs={"topic": "tea"})["kickoff_id"]

    def waits_with(self, draft: str) -> bool:
        return wait_until(lambda: self.status.get("task_output") == draft, draft)

    @property
    def status(self) -> dict[str, Any]:
        return self._call("GET", f"status/{self.id}")

    def _call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._service.token}"}
        answer = requests.request(
            method, f"{self._service.url}/{path}", json=body or None, headers=headers, timeout=PATIENCE
        )
        answer.raise_for_status()
        return answer.json()


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch) -> Any:
    with running_service(scenario=CREW) as service:
        connection = {"conn_type": "crew", "host": service.url, "password": service.token}
        monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(connection))
        yield Execution(service)


def review(execution: Execution, draft: str, feedback: str, is_approve: bool = False) -> dict[str, Any]:
    return {
        "execution_id": execution.id,
        "crew_task_id": "draft_task",
        "is_approve": is_approve,
        "human_feedback": feedback,
        "reviewer": {"id": "7", "name": "Ann"},
        "decided_at": "2026-11-20T12:00:00+00:00",
        "output_sha256": output_sha256(draft),
    }


@pytest.mark.row("A9")
def test_a_stale_answer_changes_nothing_and_says_why(execution: Execution, context: dict[str, Any]) -> None:
    first, second = "Draft 1 on tea.", "Draft 2 on tea, after: Shorter."
    execution.waits_with(first)
    CrewResumeOperator(task_id="resume", review=review(execution, first, "Shorter.")).execute(context)
    execution.waits_with(second)
    before = execution.status
    context["task_state_store"].clear()
    late = CrewResumeOperator(task_id="late", review=review(execution, first, "", is_approve=True))
    with pytest.raises((CrewTaskFailed, CrewError), match=r"a different draft.*changed nothing"):
        late.execute(context)
    assert execution.status == before


def test_the_audit_keeps_the_sent_answer_and_the_services_response(
    execution: Execution, context: dict[str, Any]
) -> None:
    draft = "Draft 1 on tea."
    execution.waits_with(draft)
    given = review(execution, draft, "Shorter.")
    CrewResumeOperator(task_id="resume", review=given).execute(context)
    kept = context["ti"].pushed["crew_resume"]
    assert (kept["kickoff_id"], kept["status"]) == (execution.id, "retrying")
    assert kept["message"]
    assert kept["decided_at"] == given["decided_at"]
    assert json.loads(json.dumps(kept)) == kept
