"""What somebody else gave as a name is masked before it is cut: a part of a token is found by no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faults.server import FaultServer
from simulated_airflow import PATHS, wait

pytestmark = pytest.mark.usefixtures("simulated_airflow")
STATUS = "GET /status/k-1"
TOKEN = "tok-" + "s3cr3t" * 20
DONE = {"status": "completed", "result": {"output": "x", "tasks": []}}
NAMED = {"task_id": f"t {TOKEN}", "agent": f"a {TOKEN}", "output": "x", "execution_time": 1}
ANSWERS: dict[str, list[Any]] = {
    "agent": [{"status": "running"}, {"status": "completed", "result": {"output": "x", "tasks": [NAMED]}}],
    "question": [{"status": "pending", "task_id": TOKEN, "task_output": "d"}, DONE],
    "live question": [{"status": "pending human input", "task_id": f"p {TOKEN}"}, DONE],
    "task": [{"status": "running", "current_task": TOKEN}, {"status": "running", "current_task": "x"}, DONE],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", ANSWERS.values(), ids=list(ANSWERS))
def test_no_part_of_the_token_is_logged_with_a_name(
    server: FaultServer, connect: Callable[..., None], log_text: Callable[[], str], given: list[Any], path: str
) -> None:
    connect(server.url, token=TOKEN)
    server.on(STATUS, *given)
    wait(path, wait_past_pending=True)
    said = log_text()
    assert "k-1" in said
    assert "s3cr3t" not in said
