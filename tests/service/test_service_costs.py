"""What an execution may cost: limits of the service, and those that a kickoff brings."""

from __future__ import annotations

from typing import Any

import pytest
from crew_client import Client, Serve

pytestmark = pytest.mark.waits
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "seconds": 0.1, "tokens": 400, "output": "x"},
        {"id": "draft_task", "seconds": 0.1, "tokens": 400, "human_input": True, "output": "y"},
        {"id": "last_task", "seconds": 0.4, "tokens": 400, "output": "z"},
    ],
}
CODE = {"spec": 400, "live": 422}


def run(client: Client, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    """Kick off and approve, as far as it comes; the last status."""
    kickoff_id = client.kickoff(**({"limits": limits} if limits is not None else {}))
    while True:
        record = client.status(kickoff_id)
        if record["status"] == "pending":
            client.resume(kickoff_id)
        if record["status"] in ("completed", "error"):
            return record


def test_an_execution_using_too_many_tokens_ends_with_that_error(serve: Serve) -> None:
    client = serve(SCENARIO, max_tokens=1000)
    record = run(client)
    assert record["error"] == "TokenLimitExceeded: the execution used 1200 tokens; its limit is 1000"


def test_tokens_are_counted_over_all_segments_up_to_the_limit(serve: Serve) -> None:
    client = serve(SCENARIO, max_tokens=1200)
    assert run(client)["status"] == "completed"


def test_a_kickoff_lowers_the_limits_of_the_service_for_itself(serve: Serve) -> None:
    client = serve(SCENARIO)
    assert run(client, {"max_tokens": 500})["error"].startswith("TokenLimitExceeded: the execution used 800 tokens")
    assert run(client, {"max_seconds": 0.3})["error"].startswith("TimeLimitExceeded: ")
    assert run(client, {})["status"] == "completed"
    assert run(client, {"max_tokens": None, "max_seconds": 60})["status"] == "completed"


def test_a_scripted_crews_usage_is_what_its_tasks_claim(serve: Serve) -> None:
    scenario = {"tasks": [{"id": "a", "tokens": 3, "output": "x"}, {"id": "b", "tokens": 4, "output": "y"}]}
    client = serve(scenario, dialect="live")
    kickoff_id = client.kickoff()
    assert client.until(kickoff_id, "SUCCESS")["usage_metrics"]["total_tokens"] == 7


@pytest.mark.parametrize("dialect", ["spec", "live"])
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_tokens": 1001}, "above this service's limit of 1000"),
        ({"max_seconds": 60.5}, "above this service's limit of 60"),
        ({"max_tokens": 0}, "greater than 0"),
        ({"max_seconds": "10"}, "valid number"),
        ({"max_tokens": True}, "valid integer"),
        ([], "valid dictionary"),
    ],
)
def test_limits_above_the_services_and_nonsensical_ones_are_refused(
    serve: Serve, dialect: str, limits: Any, reason: str
) -> None:
    client = serve(SCENARIO, dialect=dialect, max_tokens=1000, time_limit=60.0)
    answer = client.post("/kickoff", {"inputs": {"topic": "x"}, "limits": limits})
    assert answer.status_code == CODE[dialect]
    assert reason in answer.text
    assert "limits" in answer.text
    assert client.get("/executions").json()["executions"] == []


def test_the_document_says_the_limits_of_the_service(serve: Serve) -> None:
    document = serve(SCENARIO, max_tokens=1000, time_limit=60.0).get("/openapi.json").json()
    limits = document["components"]["schemas"]["KickoffLimits"]["properties"]
    assert [limits[name]["anyOf"][0]["maximum"] for name in ("max_tokens", "max_seconds")] == [1000, 60.0]
