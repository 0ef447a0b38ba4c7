"""Steps: what people see of the calls of tools and models, while a task runs and after, here of scripted crews."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from crew_client import PLAIN, Client, Command, Serve, eventually

from crew_service.engine.crew import (
    BadTarget,
    Completed,
    CrewKilled,
    Job,
    PendingReview,
    Report,
    Step,
    TaskDone,
    TaskStarted,
)
from crew_service.engine.details import LARGEST, LARGEST_STEPS
from crew_service.engine.tool_rules import JournalOptions, ToolRule
from crew_service.scripted_crew import ScriptedCrew
from crew_service.storage.queries import CALM, Calm
from scripts.stack.waiting import FACTOR

pytestmark = pytest.mark.waits
FIELDS = [
    *("number", "kind", "name", "agent", "state", "started_at", "seconds", "usage"),
    *("arguments", "result", "from_journal", "cut"),
]
MAILS = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "research",
            "agent": "Researcher",
            "steps": [
                {"tool": "search_web", "arguments": {"query": "{topic}", "pages": 2}, "result": "Three on {topic}"},
                {"tool": "take_note", "arguments": {"texts": ["On {topic}"]}},
            ],
            "output": "Notes",
        },
        {
            "id": "send",
            "agent": "Secretary",
            "steps": [{"tool": "send_mail", "arguments": {"to": "ann"}, "result": "sent"}],
            "output": "Sent",
        },
    ],
}
SLOW_MAIL = {"tasks": [{"id": "send", "seconds": 120, "steps": [{"tool": "look_up"}, {"tool": "send_mail"}]}]}


def details(client: Client, some_id: str) -> dict[str, Any]:
    return dict(client.get(f"/executions/{some_id}").json())


def steps(client: Client, some_id: str, query: str = "") -> dict[str, Any]:
    answer = client.get(f"/executions/{some_id}/steps{query}")
    assert answer.status_code == 200, answer.text
    document = client.get("/openapi.json").json()
    path = document["paths"]["/executions/{id}/steps"]["get"]
    schema = path["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    return dict(answer.json())


def finished(client: Client, some_id: str) -> dict[str, Any]:
    return eventually(lambda: (found := details(client, some_id))["state"] == "completed" and found, "the end")


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_each_task_shows_its_steps_even_after_it_ends(serve: Serve, tmp_path: Path, dialect: str) -> None:
    client = serve(MAILS, dialect=dialect)
    kickoff_id = client.kickoff("tea")
    eventually(lambda: details(client, kickoff_id)["output"], "the end")
    found = details(client, kickoff_id)
    first, second = (task["steps"] for task in found["tasks"])
    assert [list(step) for step in (*first, *second)] == [FIELDS] * 3
    assert [(step["number"], step["name"], step["agent"]) for step in (*first, *second)] == [
        (1, "search_web", "Researcher"),
        (2, "take_note", "Researcher"),
        (3, "send_mail", "Secretary"),
    ]
    assert first[0]["arguments"] == '{"query": "tea", "pages": 2}'
    assert (first[0]["result"], first[1]["result"]) == ('"Three on tea"', '""')
    assert all((step["kind"], step["state"], step["usage"]) == ("tool", "done", None) for step in first)
    assert all(step["seconds"] >= 0 and not step["from_journal"] and step["cut"] is False for step in first)
    assert found["started_at"] <= first[0]["started_at"] <= second[0]["started_at"] <= found["ended_at"]
    assert found["left_out"] == []
    with sqlite3.connect(tmp_path / "service.db") as connection:
        assert connection.execute("SELECT count(*) FROM journal").fetchone() == (0,)


def test_a_running_step_is_visible_and_becomes_unknown_once_abandoned(serve: Serve) -> None:
    client = serve(SLOW_MAIL)
    kickoff_id = client.kickoff()
    running = eventually(lambda: details(client, kickoff_id)["tasks"][0]["steps"], "the first step")
    assert [(step["name"], step["state"], step["seconds"], step["result"]) for step in running] == [
        ("look_up", "running", None, None)
    ]
    client.post(f"/stop/{kickoff_id}")
    assert [step["state"] for step in details(client, kickoff_id)["tasks"][0]["steps"]] == ["unknown"]
    assert [step["state"] for step in steps(client, kickoff_id)["steps"]] == ["unknown"]


def test_without_a_journal_there_are_no_steps(serve: Serve) -> None:
    client = serve(crew=ScriptedCrew(MAILS, JournalOptions(is_kept=False)))
    kickoff_id = client.kickoff()
    assert [task["steps"] for task in finished(client, kickoff_id)["tasks"]] == [[], []]
    assert steps(client, kickoff_id) == {"steps": [], "next": None}


class Caller(ScriptedCrew):
    """A crew of one task that makes as many calls as it is told to."""

    def __init__(self, calls: int = 0, secrets: tuple[str, ...] = (), **told: Any) -> None:
        super().__init__({"inputs": ["topic"], "tasks": [{"id": "write", "agent": "Writer"}]})
        self._calls, self._secrets, self._told = calls, secrets, told

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        job.printed.hide(self._secrets)
        report(TaskStarted("write", "Writer"))
        about: dict[str, Any] = {"task_id": "write", "part": "", "kind": "model", "name": "gpt", "agent": "Writer"}
        for number in range(1, self._calls + 1):
            asked = {"arguments": "[]", "result": None, **self._told, "answer": None}
            report(Step(number=number, key=str(number), **{**about, **asked, "result": None}, is_kept=False))
            answered = {"answer": "1", "result": "1", **self._told, "arguments": None}
            usage = {"total_tokens": 5, "prompt_tokens": 4, "completion_tokens": 1}
            report(
                Step(number=number, key=str(number), **{**about, **answered}, state="done", seconds=1.5, usage=usage)
            )
        names = {"name": "write", "description": "", "expected_output": "", "summary": ""}
        report(TaskDone({"task_id": "write", "agent": "Writer", "output": "x", "execution_time": 1.0, **names}))  # type: ignore[typeddict-item]
        return Completed("x")


def test_all_steps_are_paged_and_the_newest_accompany_the_execution(serve: Serve) -> None:
    client = serve(crew=Caller(120))
    kickoff_id = client.kickoff()
    found = finished(client, kickoff_id)
    assert [step["number"] for step in found["tasks"][0]["steps"]] == list(range(71, 121))
    assert found["left_out"] == ["steps"]
    assert found["tasks"][0]["steps"][0]["usage"]["total_tokens"] == 5
    numbers, after = [], 0
    while after is not None:
        page = steps(client, kickoff_id, f"?after={after}&limit=50")
        numbers += [step["number"] for step in page["steps"]]
        after = page["next"]
    assert numbers == list(range(1, 121))
    assert steps(client, kickoff_id)["next"] == 50
    assert steps(client, kickoff_id, "?limit=120")["next"] is None
    assert steps(client, kickoff_id, "?after=120") == {"steps": [], "next": None}
    assert steps(client, kickoff_id, "?limit=1")["steps"][0]["task_id"] == "write"


def test_pages_of_large_steps_are_shorter_but_omit_none(serve: Serve) -> None:
    client = serve(crew=Caller(100, arguments="ä" * 2_000, result="ö" * 2_000))
    kickoff_id = client.kickoff()
    finished(client, kickoff_id)
    pages, after = [], 0
    while after is not None:
        answer = client.get(f"/executions/{kickoff_id}/steps?limit=500&after={after}")
        assert len(answer.content) <= LARGEST_STEPS + 100
        pages.append([step["number"] for step in answer.json()["steps"]])
        after = answer.json()["next"]
    assert [number for page in pages for number in page] == list(range(1, 101))
    assert [len(page) > 40 for page in pages] == [True, True]


@pytest.mark.parametrize("dialect", ["spec", "live"])
@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "limit=", "limit=1&limit=2", "after=-1", "after=x", "after=9999999999"]
)
def test_a_limit_or_a_number_that_is_none_is_refused(serve: Serve, query: str, dialect: str) -> None:
    client = serve(PLAIN, dialect=dialect)
    refused = client.get(f"/executions/{client.kickoff()}/steps?{query}")
    assert refused.status_code == 400
    assert "must be a single whole number" in refused.json()["detail"]


def test_only_those_who_may_read_an_execution_read_its_steps(serve: Serve) -> None:
    ann, bob = ("ann", "anns-token-of-20-letters"), ("bob", "bobs-token-of-20-letters")
    client = serve(MAILS, user_tokens=[ann, bob])
    kickoff_id = client.holding(ann[1]).kickoff()
    finished(client, kickoff_id)
    assert len(steps(client.holding(ann[1]), kickoff_id)["steps"]) == 3
    assert client.holding(bob[1]).get(f"/executions/{kickoff_id}/steps").status_code == 404
    assert client.holding("nobody").get(f"/executions/{kickoff_id}/steps").status_code == 401
    assert client.get("/executions/x/steps").status_code == 404


SECRET = "a-secret-of-the-crew"
HOSTILE = {
    "html": '"<script>alert(1)</script>"',
    "terminal": json.dumps("\x1b[31mred\x1b[0m"),
    "turned": json.dumps("invoice\u202efdp.exe", ensure_ascii=False),
    "large": '"' + "x" * 10_000_000 + '"',
    "wide": '"' + "\N{PILE OF POO}" * 2_000 + '"',
    "half": '"\ud800"',
    "secret": json.dumps({"key": SECRET}),
    "cut secret": '"' + "." * (16 * 1024 - 10) + SECRET + "." * 100 + '"',
    "seen secret": '"' + "." * 2_046 + SECRET + '"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_arguments_and_results_are_text_without_secrets_and_cut(serve: Serve, name: str) -> None:
    client = serve(crew=Caller(1, (SECRET,), arguments=HOSTILE[name][: 16 * 1024 + 1], result=HOSTILE[name][:20_000]))
    step = finished(client, client.kickoff())["tasks"][0]["steps"][0]
    for text in (step["arguments"], step["result"]):
        assert len(text.encode()) <= 2048
        assert not any(mark in text for mark in ("\x1b", "\u202e", SECRET[:8]))
        assert HOSTILE[name].startswith(text[:20].partition("***")[0].partition("\\u202e")[0].partition("?")[0])
    assert step["cut"] is (name in ("large", "wide", "cut secret", "seen secret"))
    assert (name == "secret") == (step["result"] == '{"key": "***"}')


def test_a_record_with_steps_has_at_most_a_mebibyte(serve: Serve) -> None:
    client = serve(crew=Caller(50, arguments='"' * 5_000, result="\\" * 5_000))
    kickoff_id = client.post("/kickoff", {"inputs": {"topic": "x" * 250_000}}).json()["kickoff_id"]
    found = finished(client, kickoff_id)
    assert len(found["tasks"][0]["steps"]) == 50
    answer = client.get(f"/executions/{kickoff_id}")
    assert len(answer.content) <= LARGEST


def test_they_are_deleted_with_their_execution(serve: Serve, tmp_path: Path) -> None:
    client = serve(MAILS)
    finished(client, client.kickoff())
    with sqlite3.connect(tmp_path / "service.db") as connection:
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (3,)
        connection.execute("DELETE FROM executions")
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (0,)


# --- how often they are news ---


def test_all_calm_writes_become_visible_at_most_once_per_period() -> None:
    chance = random.Random(7)
    calm, now = Calm(0, 0, None), 1000.0
    seen, changed = calm.seen(now), [0.0]
    for _ in range(20_000):
        now += chance.choice((0.001, 0.01, 0.4, 3.0))
        if chance.random() < 0.5:
            calm = calm.next(now)
        if calm.seen(now) != seen:
            assert calm.seen(now) > seen
            assert now // CALM > changed[-1] // CALM
            seen = calm.seen(now)
            changed.append(now)
    assert calm.seen(now + CALM) == calm.writes
    assert len(changed) > 1000


def test_steps_change_the_etag_and_the_record_together(serve: Serve) -> None:
    client = serve(SLOW_MAIL)
    kickoff_id = client.kickoff()
    path = f"/executions/{kickoff_id}"
    seen: dict[str, bytes] = {}

    def has_step() -> bool:
        answer = client.get(path)
        assert seen.setdefault(answer.headers["ETag"], answer.content) == answer.content
        again = client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304 or again.headers["ETag"] != answer.headers["ETag"]
        return b"look_up" in answer.content

    eventually(has_step, "the step")
    assert len(seen) <= 4, "queued, claimed, task started, and at most once for steps"


# --- a scripted crew goes on by its journal ---


KILLED_MAIL = {"tasks": [{**SLOW_MAIL["tasks"][0], "seconds": 10 * FACTOR}]}  # half of them for the kill


def scripted(tmp_path: Path, scenario: dict[str, Any]) -> list[str]:
    (tmp_path / "crew.json").write_text(json.dumps(scenario))
    return ["--crew", "crew.json", "--token", "a-token-of-20-letters"]


def killed(command: Callable[..., Command], options: list[str], after: list[str] | None = None) -> tuple[Client, str]:
    """Kill the service in the second call of a tool, and start it again, maybe with other options."""
    running = command(*options)
    client = running.client("a-token-of-20-letters")
    kickoff_id = client.kickoff()
    eventually(lambda: len(steps(client, kickoff_id)["steps"]) == 2, "the second call")
    running.kill()
    return command(*(after or options)).client("a-token-of-20-letters"), kickoff_id


@pytest.mark.row("S1")
def test_a_killed_service_goes_on_by_the_journal(command: Callable[..., Command], tmp_path: Path) -> None:
    scenario = {"tasks": [{**KILLED_MAIL["tasks"][0], "output": "x"}]}
    client, kickoff_id = killed(command, scripted(tmp_path, scenario))
    found = finished(client, kickoff_id)
    assert [
        (step["number"], step["name"], step["from_journal"], step["state"]) for step in found["tasks"][0]["steps"]
    ] == [
        (1, "look_up", True, "done"),
        (2, "send_mail", False, "done"),
    ]


class Rememberer(Caller):
    """A crew whose process is killed after a memory lookup: a tool call whose start the journal does not keep."""

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        known = job.recorded()
        if known:
            return Completed(str(known[0].answer))
        recall: dict[str, Any] = {"number": 1, "task_id": "write", "part": "", "kind": "tool", "key": "1"}
        report(Step(**recall, name="recall", is_kept=False))
        report(Step(**recall, name="recall", answer='"facts"', state="done"))
        raise CrewKilled("The process was killed.")


@pytest.mark.row("S1")
def test_a_memory_lookup_enters_the_journal_of_the_next_attempt(serve: Serve) -> None:
    client = serve(crew=Rememberer())
    assert client.until(client.kickoff(), "completed")["result"]["output"] == '"facts"'


@pytest.mark.long
@pytest.mark.row("S1")
@pytest.mark.parametrize("after", [["--tool", "send_*=once"], []], ids=["", "rule-taken-away"])
def test_a_run_once_scripted_tool_is_not_run_again(
    command: Callable[..., Command], tmp_path: Path, after: list[str]
) -> None:
    crew = scripted(tmp_path, KILLED_MAIL)
    client, kickoff_id = killed(command, [*crew, "--tool", "send_*=once"], [*crew, *after])
    assert client.until(kickoff_id, "pending")["question"] == (
        "It is unknown whether the tool send_mail did its work: it had started, and its end was not recorded. "
        "Did it succeed?"
    )
    assert [step["state"] for step in details(client, kickoff_id)["tasks"][0]["steps"]] == ["done", "unknown"]


def test_a_revision_uses_the_tools_again(serve: Serve) -> None:
    task = {
        "id": "draft_task",
        "human_input": True,
        "steps": [{"tool": "look_up", "arguments": {"said": "{feedback}"}}],
    }
    client = serve({"inputs": ["topic"], "tasks": [task]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id, approve=False, feedback="more")
    eventually(lambda: len(details(client, kickoff_id)["rounds"]) == 2, "the second round")
    client.resume(kickoff_id)
    found = finished(client, kickoff_id)
    assert [step["arguments"] for step in found["tasks"][0]["steps"]] == ['{"said": ""}', '{"said": "more"}']


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tool", "send_post=once"], "its rule send_post=once matches none of its tools (look_up, send_mail)."),
        (["--tool", "send_mail=once", "--no-journal"], "its rule send_mail=once needs the journal"),
    ],
)
def test_startup_fails_if_a_scripted_crew_cannot_keep_a_rule(tmp_path: Path, options: list[str], reason: str) -> None:
    ended = Command.refused(tmp_path, *scripted(tmp_path, SLOW_MAIL), *options)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert reason in ended.stderr


def test_a_crew_without_tools_keeps_no_rule() -> None:
    with pytest.raises(BadTarget, match=r"none of its tools .it has none."):
        ScriptedCrew(PLAIN, JournalOptions((ToolRule("send_mail", "once"),)))
