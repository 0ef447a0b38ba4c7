"""The whole page of each kind of question, in the last of two rounds, with several people, an edit and a deadline."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_crew_provider.models import Json
from airflow_crew_provider.questions import Terms
from airflow_crew_provider.review.form import ReviewForm

DRAFT: Json = {"execution_id": "e-1", "crew_task_id": "draft", "output": "Text.", "output_sha256": "0123456789abcdef!"}
ASK = {"agent": "Ann", "tool": "pay", "arguments": {"sum": 1, "key": "***"}, "number": 1, "earlier_calls": 1}
IN_THE_MIDDLE = {**DRAFT, "crew_task_id": "draft#1", "question": "Now?"}
UNTIL = datetime(2026, 11, 20, 12, tzinfo=UTC)
LAST = "* **This is the last round**: if the {} asks again, this run fails and the execution stays paused."
LOST = (
    "The crew continues in a new process: what 1 earlier tool call of this task kept in memory, such as a login, is "
    "lost."
)
UNANSWERED = "* No answer by 2026-11-20 12:00 UTC:"
FAILS = f"{UNANSWERED} this task fails and the execution stays paused."


def asked(kind: str, **more: object) -> Json:
    return {**IN_THE_MIDDLE, "ask": {**ASK, "kind": kind, **more}}


PAGES: dict[str, tuple[Json, Terms, str, list[str]]] = {
    "draft": (
        {**DRAFT, "agent": "Ann", "takes_edited_output": True},
        Terms(on_timeout={"revise": "Less."}, allow_edit=True),
        "Review draft by Ann",
        [
            "> Text.",
            "**Round 2 of 2.** Task `draft`, run by agent `Ann`, produced this draft and is waiting for your answer.",
            "* **approve**: the crew continues with this draft.\n"
            "* **revise**: **this is the last round**, so a revision is not sent; this task fails and the execution "
            "stays paused.\n"
            "* If you edit the text under *Draft*: with **approve** your text becomes the output of the task.\n"
            f"{FAILS}",
            "draft",
        ],
    ),
    "several approvals": (
        {**DRAFT, "dialect": "live"},
        Terms(on_timeout="approve", approvals=2),
        "Review draft",
        [
            "> Text.",
            "**Round 2 of 2.** Task `draft` produced this draft and is waiting for your answer.",
            "* **approve**: the crew continues with this draft. It does not read your *Feedback*.\n"
            "* **revise**: **this is the last round**, so a revision is not sent; this task fails and the execution "
            "stays paused.\n"
            f"{UNANSWERED} **the draft is approved**, unless somebody has rejected the draft.\n"
            "* **2 different people** must approve; a revision request from any of them is enough.",
            "draft",
        ],
    ),
    "outcomes of a Flow": (
        {**DRAFT, "question": "Good?", "outcomes": ["approve", "rework"], "agent": "News"},
        Terms(on_timeout={"revise": "Less."}, allow_edit=True),
        "Review draft by News",
        [
            "> Text.",
            "**Round 2 of 2.** The method `draft` of the Flow `News` returned this draft and is waiting for your "
            "answer.",
            "**The question:**\n\n> Good?",
            "* `approve` or `rework`: the Flow continues with your choice. Your *Feedback* is sent with it.\n"
            f"{LAST.format('Flow')}\n{UNANSWERED} `rework` is chosen, with this text:\n\n> Less.",
            "draft",
        ],
    ),
    "text for a Flow": (
        {**DRAFT, "question": "Good?", "outcomes": []},
        Terms(),
        "Review draft",
        [
            "> Text.",
            "**Round 2 of 2.** The method `draft` of the Flow returned this draft and is waiting for your answer.",
            "**The question:**\n\n> Good?",
            "* **approve**: the Flow continues with your *Feedback*, or with `Approved.` if you enter none.\n"
            "* **revise**: the Flow continues with your *Feedback*, and decides what to do next. Feedback is "
            f"required.\n{LAST.format('Flow')}\n{FAILS}",
            "draft",
        ],
    ),
    "tool call": (
        asked("tool"),
        Terms(on_tool_timeout="deny"),
        "Approve pay for Ann",
        [
            "```text\nText.\n```",
            "**Round 2 of 2.** **In the middle of the task** `draft`, the agent `Ann` needs approval to run the tool "
            "`pay`.",
            "**The question:**\n\n> Now?",
            LOST,
            "* **approve**: the tool runs with these arguments, or with those under *Arguments*, a JSON object; leave "
            "`***` where it is to keep a hidden value.\n"
            "* **deny**: the tool does not run. The agent reads your *Feedback* as the reason, and continues.\n"
            f"{LAST.format('crew')}\n{UNANSWERED} **the call is denied.**",
            "question",
        ],
    ),
    "agent's question": (
        asked("question", tool=None, arguments=None),
        Terms(on_timeout="approve", on_tool_timeout="approve", approvals=2),
        "Answer Ann",
        [
            "```text\nText.\n```",
            "**Round 2 of 2.** **In the middle of the task** `draft`, the agent `Ann` asks a question.",
            "**The question:**\n\n> Now?",
            "* **answer**: the agent reads your *Feedback*. An empty answer is not accepted, and you are asked again.\n"
            f"{LAST.format('crew')}\n{FAILS}",
            "question",
        ],
    ),
    "unknown outcome": (
        asked("unknown_outcome"),
        Terms(on_tool_timeout="approve", approvals=2),
        "Did pay succeed?",
        [
            "```text\nText.\n```",
            "**Round 2 of 2.** **In the middle of the task** `draft`, it is not known whether the tool `pay` has run.",
            "**The question:**\n\n> Now?",
            LOST,
            "* **done**: the tool has run; your *Feedback* is used as its result.\n"
            "* **run_again**: the tool runs once more with these arguments.\n"
            "* **fail**: the execution fails.\n"
            f"{LAST.format('crew')}\n{FAILS}\n"
            "* **2 different people** must choose **run_again**; any other answer from any of them is enough.",
            "question",
        ],
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_a_kind_of_question(name: str) -> None:
    pending, terms, headline, [content, *middle, effects, noun] = PAGES[name]
    form = ReviewForm(pending=pending, terms=replace(terms, round_number=2, max_rounds=2), until=UNTIL)
    assert form.subject == f"{headline} (round 2 of 2)"
    end = f"{effects}\n\nExecution `e-1`, {noun} `0123456789abcdef`."
    assert form.body == "\n\n".join([content, "---", *middle, end])
