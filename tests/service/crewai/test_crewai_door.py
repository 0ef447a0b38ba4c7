"""What the service refuses at its door, since only the crew's own process knows better: states, edits and paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crew_client import Serve
from engine_stub import CREWS

from crew_service.crewai import load

ANN, BOB = "a-token-of-ann", "a-token-of-bob"


@pytest.mark.row("S32")
def test_s32_the_input_id_of_a_flow_reads_and_overwrites_nobodys_state(
    serve: Serve, terminal: Callable[..., str]
) -> None:
    flow = load(f"{CREWS / 'flows.py'}:CountingFlow")
    client = serve(crew=flow, user_tokens=[("ann", ANN), ("bob", BOB)])
    ann, bob = client.holding(ANN), client.holding(BOB)
    first = ann.kickoff("ducks")
    ann.until(first, "pending")
    for caller in (bob, ann, client):
        refused = caller.post("/kickoff", {"inputs": {"id": first, "topic": "mine"}})
        assert refused.status_code == 400, refused.text
        assert "'id' of a Flow names a stored state" in refused.json()["detail"]
    assert bob.post("/kickoff", {"inputs": {}, "restoreFromStateId": first}).status_code == 404
    queued = terminal("kickoff", f"id={first}", "topic=mine").split("poll ")[1].split(".")[0]
    assert "names a stored state" in client.until(queued, "error")["error"]
    assert ann.resume(first, task_id="ask").ok
    assert ann.until(first, "completed")["result"]["output"] == "ducks 2"
    again = ann.post("/kickoff", {"inputs": {}, "restoreFromStateId": first}).json()["kickoff_id"]
    assert ann.until(again, "pending")["task_output"] == "ducks 3"


def test_the_input_id_of_a_crew_is_an_input_like_others(serve: Serve, tmp_path: Path) -> None:
    client = serve(crew=load(f"{CREWS / 'samples.py'}:last_gate"))
    kickoff_id = client.kickoff(inputs={"id": "a-ticket", "topic": "ducks", "log": str(tmp_path / "log")})
    client.until(kickoff_id, "pending")
