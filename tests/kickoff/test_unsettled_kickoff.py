"""A kickoff whose outcome is unknown stays so, whatever stops the next one before the service looks at its key."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.operators.crew import CrewKickoffOperator

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POST = "POST /kickoff"


def kickoff() -> CrewKickoffOperator:
    return CrewKickoffOperator(task_id="kickoff", inputs={"topic": "AI"}, check_inputs=False)


@pytest.mark.row("N11", "N12")
@pytest.mark.parametrize("refusal", [429, 400, 401, 403, 404, 422])
def test_a_refusal_after_a_lost_response_keeps_the_key(server: FaultServer, connect: Connect, refusal: int) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, NoReply(RESET), Reply(status=refusal, body={"detail": "not now"}), {"kickoff_id": "k-1"})
    task_run, operator = TaskRun(), kickoff()
    for _ in range(2):
        with pytest.raises(AirflowException, match="sends the kickoff again"):
            run(operator, task_run)
        task_run = task_run.retry()
    assert run(operator, task_run) == "k-1"
    assert len({request.headers["idempotency-key"] for request in server.sent(POST)}) == 1
