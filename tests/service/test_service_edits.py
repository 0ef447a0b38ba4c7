"""An approval with a text of the person's own, which becomes the output of the task; beyond the specification."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crew_client import Client, Receiver, Serve, eventually

from crew_service.engine.drafts import draft_sha256, object_sha256

pytestmark = pytest.mark.waits
DRAFT, EDITED = "Draft 1 on AI", "A better draft on AI: über alles."
OBJECT = {
    "inputs": ["topic"],
    "tasks": [{"id": "draft_task", "human_input": True, "output": '{"title": "{topic}", "words": 10}'}],
}


def output_sha256(draft: Any) -> str | None:
    """Name a draft by its text, or an object as forms did that were open before drafts were hashed as they arrive."""
    return draft_sha256(draft) if isinstance(draft, str) else object_sha256(json.dumps(draft))


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, serve: Serve) -> Client:
    return serve(**({} if request.param == "sqlite" else {"db": request.getfixturevalue("postgresql")}))


def edit(text: str = EDITED, of: Any = DRAFT) -> dict[str, Any]:
    return {"edited_output": {"text": text, "output_sha256": output_sha256(of)}}


def waiting(client: Client, **more: Any) -> str:
    kickoff_id = client.kickoff(**more)
    client.until(kickoff_id, "pending")
    return kickoff_id


def test_edited_text_becomes_the_tasks_output_and_the_crew_continues(client: Client, receiver: Receiver) -> None:
    kickoff_id = waiting(client)
    answer = client.resume(kickoff_id, taskWebhookUrl=receiver.url, **edit())
    assert (answer.status_code, answer.json()["status"]) == (200, "resumed")
    outputs = [task["output"] for task in client.until(kickoff_id, "completed")["result"]["tasks"]]
    assert outputs == ["Notes on AI", EDITED, '{"title": "All on AI"}']
    eventually(lambda: any(body.get("output") == EDITED for body in receiver.bodies("/")), "the webhook of the task")


def test_editing_an_outdated_draft_is_refused_and_changes_nothing(client: Client) -> None:
    kickoff_id = waiting(client)
    client.resume(kickoff_id, approve=False, feedback="shorter")
    second = "Draft 2 on AI, after: shorter"
    eventually(lambda: client.status(kickoff_id).get("task_output") == second, "the second draft")
    refused = client.resume(kickoff_id, **edit())
    assert refused.status_code == 400
    assert "a different draft" in refused.json()["detail"]
    assert client.status(kickoff_id)["task_output"] == second
    assert client.resume(kickoff_id, **edit(of=second)).ok


def test_an_edits_fields_may_be_spelled_like_an_answers(client: Client) -> None:
    kickoff_id = waiting(client)
    same = {"editedOutput": {"text": EDITED, "outputSha256": output_sha256(DRAFT)}}
    assert client.resume(kickoff_id, **same).ok


def test_of_an_edit_and_a_revision_at_once_one_wins(client: Client) -> None:
    kickoff_id = waiting(client)
    with ThreadPoolExecutor(2) as pool:
        edited = pool.submit(lambda: client.resume(kickoff_id, **edit()))
        revised = client.holding(client.token).resume(kickoff_id, approve=False, feedback="shorter")
    assert sorted([edited.result().status_code, revised.status_code]) == [200, 400]
    if revised.ok:
        client.until(kickoff_id, "pending")
        assert client.status(kickoff_id)["task_output"] == "Draft 2 on AI, after: shorter"
    else:
        assert client.until(kickoff_id, "completed")["result"]["tasks"][1]["output"] == EDITED


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"is_approve": False, **edit()}, "needs an approval"),
        ({**edit("  \n")}, "is empty"),
        ({"edited_output": EDITED}, "edited_output"),
        ({"edited_output": {"text": EDITED}}, "edited_output.output_sha256"),
        ({"edited_output": {"text": 1, "output_sha256": "0" * 64}}, "edited_output.text"),
        ({"edited_output": {"text": EDITED, "output_sha256": "0" * 63}}, "edited_output.output_sha256"),
    ],
)
def test_an_edit_that_cannot_be_meant_is_a_400(serve: Serve, more: dict[str, Any], reason: str) -> None:
    client = serve()
    kickoff_id = waiting(client)
    refused = client.resume(kickoff_id, **more)
    assert (refused.status_code, reason in refused.json()["detail"]) == (400, True), refused.text
    assert client.status(kickoff_id)["status"] == "pending"


def test_what_replaces_an_object_must_be_one(serve: Serve) -> None:
    client = serve(OBJECT)
    kickoff_id = waiting(client)
    draft = {"title": "AI", "words": 10}
    refused = client.resume(kickoff_id, **edit("no longer an object", draft))
    assert (refused.status_code, "JSON object" in refused.json()["detail"]) == (400, True)
    assert client.resume(kickoff_id, **edit('{"title": "AI", "words": 9}', draft)).ok
    assert client.until(kickoff_id, "completed")["result"]["output"] == '{"title": "AI", "words": 9}'


@pytest.mark.parametrize(("dialect", "offers"), [("spec", ["edited_output", "output_sha256"]), ("live", [None, None])])
def test_a_header_offers_edits_where_the_service_takes_them(serve: Serve, dialect: str, offers: list[Any]) -> None:
    headers = serve(dialect=dialect).get("/status/none").headers
    assert [headers.get(each) for each in ("Crew-Edited-Output", "Crew-Draft-Hash")] == offers


# --- any answer, to the draft that it was given for ----------------------------------------------------------------


@pytest.mark.long
@pytest.mark.row("N20", "A11")
@pytest.mark.parametrize("approve", [True, False])
def test_a_late_answer_with_its_drafts_hash_never_reaches_another(client: Client, approve: bool) -> None:
    kickoff_id = waiting(client)
    client.resume(kickoff_id, approve=False, feedback="shorter")
    second = "Draft 2 on AI, after: shorter"
    eventually(lambda: client.status(kickoff_id).get("task_output") == second, "the second draft")
    late = client.resume(kickoff_id, approve=approve, feedback="Name prices.", output_sha256=output_sha256(DRAFT))
    assert (late.status_code, "a different draft" in late.json()["detail"]) == (400, True)
    assert client.status(kickoff_id)["task_output"] == second
    assert client.resume(kickoff_id, output_sha256=output_sha256(second)).ok


@pytest.mark.parametrize("given", [1, "", "0" * 63, "X" * 64])
def test_what_is_no_hash_is_a_400(serve: Serve, given: Any) -> None:
    client = serve()
    refused = client.resume(waiting(client), output_sha256=given)
    assert (refused.status_code, "output_sha256" in refused.json()["detail"]) == (400, True)
