"""`CrewHook.list_executions`: against the real service, and where a deployment has no such list."""

from __future__ import annotations

from typing import Any

import pytest
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import TOKEN, Connect

from airflow_crew_provider.exceptions import CrewApiError, CrewBadRequest, CrewMissingInputs, CrewProtocolError
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState

pytestmark = pytest.mark.usefixtures("simulated_airflow")
local = pytest.importorskip("crew_service.local", reason="needs the crew service")

SLOW = {"tasks": [{"id": "slow_task", "agent": "Writer", "seconds": 60, "output": "late"}]}
LISTED = {
    "kickoff_id": "k-1",
    "execution_id": "k-1",
    "status": "error",
    "current_task": None,
    "task_id": None,
    "progress": {"completed_tasks": 1, "total_tasks": 2},
    "execution_time": 1.5,
    "error": f"bad {TOKEN}",
    "created_at": "2026-11-20T12:00:00+00:00",
    "updated_at": "2026-11-20T12:00:03+00:00",
}


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_the_hook_lists_what_the_service_runs(connect: Connect, dialect: str) -> None:
    with local.running_service(scenario=SLOW, dialect=dialect) as service:
        connect(service.url, token=service.token)
        hook = CrewHook()
        started = [hook.kickoff({}) for _ in range(3)]
        found = hook.list_executions(state=ExecutionState.RUNNING, limit=2)
        assert [each.kickoff_id for each in found] == [started[2], started[1]]
        assert {each.state for each in found} == {ExecutionState.RUNNING}
        assert found[0].total_tasks == 1
        hook.stop(started[0])
        assert [each.kickoff_id for each in hook.list_executions("error")] == [started[0]]
        assert len(hook.list_executions()) == 3
        refused = {"spec": CrewBadRequest, "live": CrewMissingInputs}[dialect]
        with pytest.raises(refused, match="The state must be one of running, pending, completed, error"):
            hook.list_executions("no such state")


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_deployment_without_a_list_is_named_as_one(server: FaultServer, status: int) -> None:
    server.on("GET *", Reply(status=status, body={"detail": "Not Found"}))
    with pytest.raises(CrewApiError, match=f"{status}: this deployment has no list of executions") as error:
        CrewHook().list_executions()
    assert error.value.status_code == status


def test_another_refusal_keeps_its_own_words(server: FaultServer) -> None:
    server.on("GET *", Reply(status=401, body={"detail": "Not authenticated"}))
    with pytest.raises(CrewApiError, match="401: Not authenticated"):
        CrewHook().list_executions()


def test_the_words_of_a_failure_are_read_without_the_token(server: FaultServer) -> None:
    server.on("GET *", {"executions": [LISTED]})
    (found,) = CrewHook().list_executions()
    assert (found.error, found.completed_tasks, found.execution_time) == ("bad ***", 1, 1.5)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"executions": {}},
        {"executions": ["k-1"]},
        {"executions": [{**LISTED, "status": TOKEN}]},
        {"executions": [{**LISTED, "error": 3}]},
        {"executions": [{"kickoff_id": "k-1"}]},
    ],
)
def test_a_list_that_cannot_be_read_is_a_protocol_error(server: FaultServer, body: Any) -> None:
    server.on("GET *", Reply(body=body))
    with pytest.raises(CrewProtocolError, match="no list of executions") as error:
        CrewHook().list_executions()
    assert TOKEN not in str(error.value.__context__)
