"""What the provider and the service must judge alike: they share no code, and one corpus goes through both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from airflow_crew_provider.api import answers, endpoints, status
from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.inbox import flow_webhooks as webhooks
from airflow_crew_provider.inbox.messages import pending_execution
from airflow_crew_provider.models import Execution, output_sha256
from airflow_crew_provider.questions import drafts as draft_text
from airflow_crew_provider.questions import drafts as edited_output
from airflow_crew_provider.questions import question_in as question_shown
from airflow_crew_provider.review.answer import pending_record, shown_draft

approval = pytest.importorskip("crew_service.engine.approval", reason="needs the crew service")
from crew_service.engine import drafts, sending  # noqa: E402
from crew_service.engine.crew import JournalEntry, PendingQuestion  # noqa: E402
from crew_service.engine.decisions import AnotherDraft, Decision  # noqa: E402
from crew_service.engine.printed import Printed  # noqa: E402
from crew_service.engine.questions import AgentQuestion, question_in  # noqa: E402
from crew_service.http import api, markdown  # noqa: E402

CORPUS: dict[str, Any] = json.loads(Path(__file__).with_name("corpus.json").read_text("utf-8"))
OPEN = [
    pytest.param(question, id=f"{path.parent.name} {question['name']}")
    for path in sorted((Path(__file__).parents[1] / "samples").glob("*/open_questions.json"))
    for question in json.loads(path.read_text("utf-8"))
]
ACTS = re.compile(r"<(script|img|iframe|style|svg)\b|(href|src)=\"?\s*javascript:|<\w[^>]*\son\w+=")
drafts_of_the_corpus = pytest.mark.parametrize("draft", CORPUS["drafts"], ids=lambda draft: draft["name"])


def waiting(text: str) -> list[Execution]:
    """Return the executions waiting with a draft: by their status, and by a webhook."""
    body = {"status": "pending", "task_id": "t", "current_task": "t", "task_output": text}
    return [status.execution("e", body), pending_execution("e", "t", text)]


@pytest.mark.parametrize("timeout", [60.0, None])
def test_a_flows_question_is_read_as_the_service_tells_it(timeout: float | None) -> None:
    entry = JournalEntry(1, "interview", "", "tool", "key", "ask_person")
    terms = {"timeout": timeout, "metadata": {"channel": "#sales"}}
    pending = PendingQuestion("question", entry, text="Which tone?", of_flow=terms)
    told = AgentQuestion.opened(pending, number=2, printed=Printed(), before=None, now=1_000.0)
    body = {"status": "pending", "current_task": "interview", "task_id": told.key, "task_output": told.output}
    record = status.execution("e", {**body, **told.asked}).record()
    assert record["ask"] == told.ask
    shown = question_shown(shown_draft(record))
    assert (shown.headline, told.key) == ("Answer the Flow", "interview#2")
    assert (shown.expires and shown.expires.timestamp()) == (1_060.0 if timeout else None)


@pytest.mark.parametrize(("kind", "is_approval"), [("approving", True), ("revising", False)])
def test_what_reads_as_an_approval(kind: str, is_approval: bool) -> None:
    assert CORPUS[kind]
    for judge in (answers.reads_like_approval, approval.reads_like_approval):
        assert [text for text in CORPUS[kind] if judge(text) is not is_approval] == []


def test_the_words_are_the_same() -> None:
    assert answers.APPROVING_WORDS == approval.APPROVING_WORDS


@pytest.mark.parametrize("case", CORPUS["outcomes"], ids=lambda case: ",".join(case["outcomes"]))
def test_which_outcome_of_a_flow_is_meant(case: dict[str, Any]) -> None:
    for side in (answers, approval):
        assert side.outcome_meant(True, case["outcomes"]) == case["approve"]
        assert side.outcome_meant(False, case["outcomes"]) == case["reject"]


@drafts_of_the_corpus
def test_the_hashes_of_a_draft(draft: dict[str, Any]) -> None:
    named = {name: draft[name] for name in ("output_sha256", "object_sha256")}
    assert drafts.hashes_of(draft["text"]) == named
    assert output_sha256(draft["text"]) == draft["output_sha256"]
    for seen in waiting(draft["text"]):
        record = seen.record()
        assert record["output_sha256"] == draft["output_sha256"]
        # An object that an XCom would not bring back is handed on as its text.
        assert record.get("object_sha256") == (draft["object_sha256"] if isinstance(record["output"], dict) else None)


@drafts_of_the_corpus
def test_either_hash_finds_the_draft_on_both_sides(draft: dict[str, Any]) -> None:
    asked = {"task_id": "t", "key": "t", "output": draft["text"], "agent": "", "state": {}, "rounds": []}
    question = question_in({**asked, **drafts.hashes_of(draft["text"])})
    for named in {draft["output_sha256"], draft["object_sha256"]} - {None}:
        assert question.settled(Decision("e", "t", True, "", draft_sha256=named)).is_approve
    for seen in waiting(draft["text"]):
        of_object = seen.record().get("object_sha256")
        assert all(DraftId("e", "t", named).waits_in(seen) for named in (draft["output_sha256"], of_object))
    with pytest.raises(AnotherDraft):
        question.settled(Decision("e", "t", True, "", draft_sha256="0" * 64))
    assert not any(DraftId("e", "t", "0" * 64).waits_in(seen) for seen in waiting(draft["text"]))


@pytest.mark.parametrize("case", CORPUS["edits"], ids=lambda case: f"{case['draft']} - {case['edited']}")
def test_what_may_take_the_place_of_a_draft(case: dict[str, Any]) -> None:
    problems = [side.edit_problem(case["draft"], case["edited"]) for side in (edited_output, drafts)]
    assert problems[0] == problems[1]
    assert (problems[0] is None) is case["is_taken"]


@pytest.mark.parametrize("secret", ["whsec_c2l4dGVlbiBieXRlcyE", "whsec_c2l4dGVlbiBieXRlcyE=", "another secret \u00fc"])
def test_the_inbox_accepts_webhooks_signed_by_the_service(secret: str) -> None:
    headers = {name.lower(): value for name, value in sending.signature(secret, b"{}", 1_900_000_000, "q-1").items()}
    assert ("webhook-signature" in headers) is secret.startswith(webhooks.STANDARD)
    assert webhooks.is_signed(secret, {**headers, "webhook-id": "q-1"}, b"{}", now=1_900_000_000)
    assert not webhooks.is_signed(secret, {**headers, "webhook-id": "q-1"}, b"[]", now=1_900_000_000)


def test_the_names_of_headers_and_fields() -> None:
    names = CORPUS["headers"]
    assert names["batch"] == [endpoints.BATCH_OFFER, endpoints.STATUSES, endpoints.MOST_IDS]
    assert names["batch"] == [api.OFFER, api.PATH, api.MOST_IDS]
    for side in (status, api):
        assert names["edit"] == [side.EDITS_OFFER, side.EDITS_FIELD]
        assert names["hash"] == [side.HASH_OFFER, side.HASH_FIELD]
        assert names["usage"] == [side.USAGE, side.USAGE_FIELD]


@pytest.mark.parametrize("text", CORPUS["acting"])
def test_a_draft_that_would_act_in_a_browser_does_not(text: str) -> None:
    with_html = MarkdownIt("commonmark", {"html": True}).enable("table")
    pages = [with_html.render(draft_text.inert(text)), str(markdown.render(text))]
    assert [ACTS.findall(page) for page in pages] == [[], []]


def test_the_hostile_corpus_would_act_if_shown_unescaped() -> None:
    with_html = MarkdownIt("commonmark", {"html": True, "linkify": False})
    with_html.validateLink = lambda _: True  # type: ignore[method-assign]
    assert [text for text in CORPUS["acting"] if not ACTS.search(with_html.render(text))] == []


@pytest.mark.row("A8", "A11")
@pytest.mark.parametrize("open_one", OPEN)
def test_an_open_question_of_an_earlier_release_takes_its_answer(open_one: dict[str, Any]) -> None:
    """A record, a form and the service's row; release 0.1 named an object by the hash of its one form."""
    named, gate = open_one["shown"]["output_sha256"], open_one["gate"]
    assert named in (gate["output_sha256"], gate.get("object_sha256"))
    assert shown_draft(pending_record(open_one["pending"])) == open_one["shown"]
    assert DraftId("execution-1", "draft_task", named).waits_in(status.execution("execution-1", open_one["status"]))
    of_first_release = {name: value for name, value in gate.items() if not name.endswith("_sha256")}
    for each in (gate, of_first_release, {**gate, **drafts.hashes_of(gate["output"])}):
        for given in (named, output_sha256(gate["output"])):
            assert (
                question_in(each)
                .settled(Decision("execution-1", "draft_task", True, "", draft_sha256=given))
                .is_approve
            )
        with pytest.raises(AnotherDraft):
            question_in(each).settled(Decision("execution-1", "draft_task", True, "", draft_sha256="0" * 64))


@pytest.mark.row("A8")
@pytest.mark.parametrize("open_one", OPEN)
@pytest.mark.parametrize(
    "change", [{}, {"is_approve": False, "outcome": None}, {"field of a later release": [1]}], ids=str
)
def test_a_stored_question_keeps_every_field(open_one: dict[str, Any], change: dict[str, Any]) -> None:
    stored = {**open_one["gate"], **change}
    of_first_release = {name: value for name, value in stored.items() if not name.endswith("_sha256")}
    for each in (stored, of_first_release):
        again = question_in(each).stored()
        assert again.items() >= each.items()
        assert ("is_approve" in again, "object_sha256" in again) == ("is_approve" in each, "object_sha256" in each)


@pytest.mark.row("A8")
def test_answered_questions_name_their_rounds_to_crew_and_earlier_releases() -> None:
    asked = {"task_id": "t", "key": "t", "output": "One", "agent": "", "state": {"n": 1}, "rounds": []}
    said = question_in(asked).settled(Decision("e", "t", False, "Shorter."))
    answered = question_in(asked).after(said)
    assert answered is not None
    rounds = [{"output": "One", "feedback": "Shorter."}]
    assert answered.items() >= {**asked, "rounds": rounds, "is_approve": False, "outcome": None}.items()
    decision = question_in(answered).for_crew()
    assert (decision.task_id, decision.is_approve, decision.feedback, decision.state) == (
        "t",
        False,
        "Shorter.",
        {"n": 1},
    )
