"""`GET /executions/{id}/logs`: what crews print, bounded, kept with the execution, without secrets and codes."""

from __future__ import annotations

import html
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from crew_client import GATED, PLAIN, Client, Serve, eventually
from sqlalchemy import create_engine, text

from crew_service.engine import printed_writer
from crew_service.engine.crew import Completed, Job, PendingReview, Report, TaskDone, TaskInfo
from crew_service.engine.printed import HIDDEN, MOST, Printed, secrets_of
from crew_service.storage import printed

USER = ("ann", "anns-token-of-20-letters")
DIALECTS = pytest.mark.parametrize("dialect", ["spec", "live"])


class Printing:
    """A crew that prints what its input says, asks a person, and prints once more."""

    kind, isolation = "crew", "inline"
    inputs, required = ("topic",), ()
    tasks = (TaskInfo("write", "Writer", "", True),)

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        if job.gate is None:
            job.printed.add(job.inputs["topic"].encode())
            return PendingReview("write", "Draft")
        job.printed.add(b"after the review\n")
        report(TaskDone({"task_id": "write", "agent": "", "output": "Draft", "execution_time": 0.0}))
        return Completed("Out.")


class Hanging(Printing):
    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        job.printed.add(b"before the end\n")
        self.go_on.wait(60)
        job.cancelled.raise_if_set()
        return Completed("Out.")


def logs(client: Client, some_id: str) -> str:
    answer = client.get(f"/executions/{some_id}/logs")
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    return answer.text


def printing(serve: Serve, topic: str, **settings: Any) -> tuple[Client, str]:
    client = serve(crew=Printing(), **settings)
    kickoff_id = client.kickoff(topic)
    reached(client, kickoff_id, "pending")
    return client, kickoff_id


def reached(client: Client, some_id: str, state: str) -> dict[str, Any]:
    return eventually(lambda: (it := client.get(f"/executions/{some_id}").json())["state"] == state and it, state)


@DIALECTS
def test_what_a_crew_prints_is_kept_over_its_segments_and_found_by_every_id(serve: Serve, dialect: str) -> None:
    client, execution_id = printing(serve, "hello\n", dialect=dialect)
    assert logs(client, execution_id) == "hello\n"
    task_id = client.get("/executions?state=pending").json()["executions"][0]["task_id"]
    body = {"executionId": execution_id, "taskId": task_id, "humanFeedback": "Approved.", "isApprove": True}
    assert client.post("/resume", body).ok
    ended = reached(client, execution_id, "completed")
    assert len(ended["kickoff_ids"]) == {"spec": 1, "live": 2}[dialect]
    assert {logs(client, each) for each in ended["kickoff_ids"]} == {"hello\nafter the review\n"}


@DIALECTS
def test_it_is_for_the_organization_and_nobody_else(serve: Serve, dialect: str) -> None:
    client, theirs = printing(serve, "hello", user_tokens=[USER], dialect=dialect)
    ann = client.holding(USER[1])
    anns = ann.kickoff("hers")
    eventually(lambda: logs(client, anns) == "hers", "what her crew printed")
    assert ann.get(f"/executions/{anns}/logs").status_code == 403
    assert ann.get(f"/executions/{theirs}/logs").status_code == 404
    assert client.holding("wrong").get(f"/executions/{theirs}/logs").status_code == 401
    for unknown in ("x", "8c9e72f2-3952-465e-8012-519c3f4fbadd", "%00"):
        assert client.get(f"/executions/{unknown}/logs").status_code == 404
    described = client.get("/openapi.json").json()["paths"]["/executions/{id}/logs"]["get"]["responses"]
    assert set(described) == {"200", "401", "403", "404"}
    assert set(described["200"]["content"]) == {"text/plain"}


def test_a_crew_that_prints_nothing_has_an_empty_log(serve: Serve) -> None:
    client = serve(PLAIN)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    assert logs(client, kickoff_id) == ""


def test_tokens_of_the_service_and_terminal_codes_are_not_shown(serve: Serve) -> None:
    token = "the-token-of-the-organization"
    shown = f"\x1b[31mred\x1b[0m {token[:9]}\x1b[1m{token[9:]} {USER[1]}\0\x07 whs-of-webhooks\r\nend"
    client, execution_id = printing(serve, shown, token=token, user_tokens=[USER], webhook_secret="whs-of-webhooks")
    assert logs(client, execution_id) == f"red {HIDDEN} {HIDDEN} {HIDDEN}\nend"


def test_the_last_mebibyte_is_kept_in_pieces_of_a_bounded_size(serve: Serve, tmp_path: Path, postgresql: str) -> None:
    lines = "".join(f"{number:07}\u00e4\n" for number in range(140_000))
    for place in (f"sqlite:///{tmp_path / 'flood.db'}", postgresql):
        flood = Flood(lines)
        client = serve(crew=flood, db=place)
        kickoff_id = client.kickoff()
        client.until(kickoff_id, "completed")
        kept = logs(client, kickoff_id)
        assert lines.endswith(kept)
        assert MOST - 64 <= len(kept.encode()) <= MOST
        engine = create_engine(place)
        with engine.connect() as connection:
            sizes = list(connection.execute(text("SELECT length(text) FROM printed")).scalars())
        engine.dispose()
        assert max(sizes) <= printed.PIECE
        assert sum(sizes) <= MOST + printed.PIECE


class Flood(Printing):
    def __init__(self, lines: str) -> None:
        super().__init__()
        self.lines = lines.encode()

    def run(self, job: Job, report: Report) -> Completed:
        for start in range(0, len(self.lines), 10_007):
            job.printed.add(self.lines[start : start + 10_007])
        return Completed("Out.")


def test_the_page_of_an_execution_shows_the_end_of_it_to_the_organization(serve: Serve) -> None:
    lines = "".join(f"line {number}\n" for number in range(10_000))
    client = serve(crew=Flood(f"<script>{lines}"), user_tokens=[USER])
    ann = client.holding(USER[1])
    kickoff_id = ann.kickoff()
    reached(client, kickoff_id, "completed")
    page = client.get(f"/view?id={kickoff_id}").text
    assert "line 9999\n" in page
    assert "line 1000\n" not in page
    whole = f"/text?id={kickoff_id}&part=printed"
    assert html.escape(whole.lstrip("/")) in page
    assert client.get(whole).text == f"<script>{lines}"
    assert client.get(whole).headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "line 9999" not in ann.get(f"/view?id={kickoff_id}").text
    assert ann.get(whole).status_code == 404


def test_many_lines_are_few_writes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    add = printed.add
    monkeypatch.setattr(printed, "add", lambda *given, **more: written.append(given[2]) or add(*given, **more))

    class Chatty(Printing):
        def run(self, job: Job, report: Report) -> Completed:
            until = time.monotonic() + 2.5 * printed_writer.PAUSE
            while time.monotonic() < until:
                job.printed.add(b"line\n")
            return Completed("Out.")

    client = serve(crew=Chatty())
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    assert logs(client, kickoff_id).endswith("line\nline\n")
    assert 2 <= len(written) <= 5


def test_it_is_seen_while_the_crew_runs_and_after_the_end_of_the_execution(serve: Serve) -> None:
    crew = Hanging()
    client = serve(crew=crew)
    kickoff_id = client.kickoff()
    eventually(lambda: logs(client, kickoff_id) == "before the end\n", "what is printed")
    assert client.status(kickoff_id)["status"] == "running"
    client.post(f"/stop/{kickoff_id}")
    crew.go_on.set()
    assert logs(client, kickoff_id) == "before the end\n"


def test_machines_on_one_postgresql_all_serve_it(serve: Serve, postgresql: str) -> None:
    one = serve(crew=Printing(), db=postgresql, token="one-token-for-both-of-them")
    other = serve(crew=Printing(), db=postgresql, token="one-token-for-both-of-them")
    ids = [one.kickoff("hello") for _ in range(4)]
    for kickoff_id in ids:
        one.until(kickoff_id, "pending")
        assert logs(one, kickoff_id) == logs(other, kickoff_id) == "hello"


def test_it_is_deleted_with_its_execution_and_not_written_after(serve: Serve, tmp_path: Path) -> None:
    client, execution_id = printing(serve, "hello")
    engine = create_engine(f"sqlite:///{tmp_path / 'service.db'}")
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM printed")).scalar() == 1
        connection.execute(text("DELETE FROM executions"))
        assert connection.execute(text("SELECT count(*) FROM printed")).scalar() == 0
        printed.add(connection, execution_id, "late", most=MOST)
        assert connection.execute(text("SELECT count(*) FROM printed")).scalar() == 0
    engine.dispose()
    assert client.get(f"/executions/{execution_id}/logs").status_code == 404


def test_what_is_printed_enters_no_status_no_list_and_no_details(serve: Serve) -> None:
    client, execution_id = printing(serve, "printed only \x1b[0m")
    for path in (f"/status/{execution_id}", f"/statuses?ids={execution_id}", "/executions"):
        assert "printed only" not in client.get(path).text
    details = client.get(f"/executions/{execution_id}").json()
    assert "printed only" not in json.dumps({**details, "inputs": None})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_nothing_hidden_shows_at_the_seam_of_two_writes(size: int) -> None:
    one = Printed()
    one.hide(["sk-a-key-of-a-model", "short"])
    codes = "\x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1b[38;5;1mred\x1b(B"
    raw = f"ä sk-a-key-of-a-mode, sk-a-key-of-a-model{codes} short\r\n"
    shown = ""
    for start in range(0, len(raw.encode()), size):
        one.add(raw.encode()[start : start + size])
        shown += one.take()
        one.stored()
    assert shown + one.take(is_end=True) == f"ä sk-a-key-of-a-mode, {HIDDEN}link red short\n"


def test_nothing_is_left_of_a_secret_that_a_flood_cuts_through() -> None:
    one = Printed()
    one.hide(["sk-a-key-of-a-model"])
    for surplus in range(25):
        one.add(b"sk-a-key-of-a-model" + b"." * (MOST - 19 + surplus))
        assert set(one.take(is_end=True)) <= set(f".{HIDDEN}")
        one.stored()


def test_variables_are_secret_by_their_names() -> None:
    known = {"OPENAI_API_KEY": "a", "HF_TOKEN": "b", "db_password": "c", "KEYBOARD": "d", "PATH": "e"}
    assert secrets_of(known) == ["a", "b", "c"]


def test_an_unfinished_escape_sequence_holds_a_bounded_text_back() -> None:
    one = Printed()
    one.add(b"\x1b]0;" + b"x" * 100_000)
    assert one.take() == "]0;" + "x" * 100_000


def test_gated_scenarios_still_run(serve: Serve) -> None:
    client = serve(GATED)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    assert logs(client, kickoff_id) == ""
