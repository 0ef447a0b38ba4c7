"""`Crew-Usage`: what an execution has used so far, beside the body of its status, in every state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from crew_client import Client, Serve, eventually

from crew_service.engine.crew import Completed, Job, PendingReview, Report, TokensUsed
from crew_service.engine.usage import MOST
from crew_service.scripted_crew import ScriptedCrew

pytestmark = pytest.mark.waits
FIRST = {"id": "research_task", "tokens": 400, "output": "x"}
ENDS: dict[str, dict[str, Any]] = {
    "running": {"id": "draft_task", "seconds": 60, "output": "y"},
    "pending": {"id": "draft_task", "tokens": 100, "human_input": True, "output": "y"},
    "error": {"id": "draft_task", "tokens": 100, "error": "no paper"},
    "completed": {"id": "draft_task", "tokens": 100, "output": "y"},
}
USED = {"running": 400, "pending": 500, "error": 400, "completed": 500}


def used(client: Client, kickoff_id: str) -> dict[str, Any]:
    """What both kinds of polls say; they agree."""
    alone = json.loads(client.get(f"/status/{kickoff_id}").headers["Crew-Usage"])
    together = client.get("/statuses", params={"ids": kickoff_id}).json()["statuses"][kickoff_id]
    assert together["usage"] == alone
    return alone


def until_used(client: Client, kickoff_id: str, tokens: int) -> None:
    def has_used() -> bool:
        return json.loads(client.get(f"/status/{kickoff_id}").headers["Crew-Usage"])["total_tokens"] == tokens

    eventually(has_used, f"{tokens} tokens")


@pytest.mark.parametrize("state", ENDS)
def test_every_state_says_what_was_used_and_the_body_stays_as_it_is_specified(serve: Serve, state: str) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS[state]]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, state)
    until_used(client, kickoff_id, USED[state])
    assert used(client, kickoff_id) == {
        "total_tokens": USED[state],
        "prompt_tokens": 0,
        "completion_tokens": USED[state],
    }
    assert "usage" not in client.status(kickoff_id)


def test_a_stop_is_answered_with_what_was_used_and_so_is_the_status_after_it(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS["running"]]})
    kickoff_id = client.kickoff()
    until_used(client, kickoff_id, 400)
    assert json.loads(client.post(f"/stop/{kickoff_id}").headers["Crew-Usage"])["total_tokens"] == 400
    assert client.status(kickoff_id)["status"] == "error"
    assert used(client, kickoff_id)["total_tokens"] == 400


def test_tokens_of_all_segments_are_counted_once(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS["pending"], {**FIRST, "id": "last_task"}]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id, approve=False, feedback="shorter")
    until_used(client, kickoff_id, 600)
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id)
    client.until(kickoff_id, "completed")
    assert used(client, kickoff_id)["total_tokens"] == 1000


def test_live_deployments_words_carry_it_too(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS["completed"]]}, dialect="live")
    kickoff_id = client.kickoff()
    assert client.until(kickoff_id, "SUCCESS")["usage_metrics"] == used(client, kickoff_id)


class Forgetful(ScriptedCrew):
    """Its own account lacks what it used before, as after a crash."""

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        report(TokensUsed(500, {"prompt_tokens": 400, "completion_tokens": 100}))
        return Completed("x", usage={"total_tokens": 1, "prompt_tokens": "many"})


def test_the_service_counts_what_a_crew_has_forgotten(serve: Serve) -> None:
    client = serve(crew=Forgetful({"tasks": [FIRST]}))
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    assert used(client, kickoff_id) == {"total_tokens": 500, "prompt_tokens": 400, "completion_tokens": 100}


class Boastful(ScriptedCrew):
    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        models: Any = {f"a model named {number}": 10**300 for number in range(200)}
        report(TokensUsed(10**400, {**models, "prompt_tokens": -5, "completion_tokens": "\r\nX-Evil: 1"}))
        return Completed("x")


def test_the_header_is_small_whatever_a_crew_reports(serve: Serve) -> None:
    client = serve(crew=Boastful({"tasks": [FIRST]}))
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    assert used(client, kickoff_id) == {"total_tokens": MOST, "prompt_tokens": 0, "completion_tokens": 0}
    headers = client.get(f"/status/{kickoff_id}").headers
    assert len(headers["Crew-Usage"].encode("ascii")) <= 1024
    assert sum(len(name) + len(value) + 4 for name, value in headers.items()) < 2048


def test_an_unknown_execution_has_used_nothing_that_is_told(serve: Serve) -> None:
    assert "Crew-Usage" not in serve().get("/status/no-uuid").headers
