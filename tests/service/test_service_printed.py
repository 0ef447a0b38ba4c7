"""`GET /executions/{id}/logs`: what crews print, bounded, kept with the execution, without secrets and codes."""

from __future__ import annotations

import html
import json
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from crew_client import GATED, PLAIN, Client, Receiver, Serve, eventually
from speed import cpu_of
from sqlalchemy import create_engine, text
from stand_in_crew import StandInCrew

from crew_service.engine import printed_writer
from crew_service.engine.crew import (
    LONGEST_IN_STEP,
    Completed,
    Job,
    PendingReview,
    Report,
    StepDone,
    TaskDone,
    TaskInfo,
)
from crew_service.engine.printed import HIDDEN, MOST, Printed, secrets_of
from crew_service.storage import printed

USER = ("ann", "anns-token-of-20-letters")
DIALECTS = pytest.mark.parametrize("dialect", ["spec", "live"])


class Printing(StandInCrew):
    """A crew that prints what its input says, asks a person, and prints once more."""

    tasks = (TaskInfo("write", "Writer", "", True),)

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        if job.decision is None:
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
def test_printed_text_spans_segments_and_is_found_by_every_id(serve: Serve, dialect: str) -> None:
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
    assert set(described) == {"200", "401", "403", "404", "429", "503"}
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


def test_the_last_mebibyte_is_kept_in_bounded_pieces(serve: Serve, tmp_path: Path, postgresql: str) -> None:
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


def test_text_before_a_gap_is_not_joined_to_what_follows(serve: Serve) -> None:
    crew = Flooding()
    client = serve(crew=crew)
    kickoff_id = client.kickoff()
    eventually(lambda: logs(client, kickoff_id) == "early\n", "the first line")
    crew.go_on.set()
    client.until(kickoff_id, "completed")
    kept = logs(client, kickoff_id)
    assert LATE.endswith(kept)
    assert len(kept) > len(LATE) / 2
    page = client.get(f"/view?id={kickoff_id}").text
    assert LATE[-50:] in page
    assert "early" not in page


LATE = "".join(f"late {number}\n" for number in range(500))


class Flooding(Hanging):
    def run(self, job: Job, report: Report) -> Completed:
        job.printed.add(b"early\n")
        self.go_on.wait(60)
        job.printed.add(b"lost\n" + b"\x1b[1m" * MOST + LATE.encode())  # codes take most of the room
        return Completed("Out.")


def test_a_character_that_a_gap_cuts_leaves_nothing() -> None:
    one = Printed()
    one.add("€".encode()[:1])
    assert one.take() == ""
    one.add(b"-" + "ä".encode() * (MOST // 2))  # its last byte was dropped, and so is half of the first of these
    one.add(b"end")
    taken = one.take(is_end=True)
    assert set(taken) == set("äend")
    assert taken.endswith("end")


class Flood(Printing):
    def __init__(self, lines: str) -> None:
        super().__init__()
        self.lines = lines.encode()

    def run(self, job: Job, report: Report) -> Completed:
        for start in range(0, len(self.lines), 10_007):
            job.printed.add(self.lines[start : start + 10_007])
        return Completed("Out.")


def test_the_page_shows_the_organization_the_end_of_printed_text(serve: Serve) -> None:
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


def test_printed_text_is_visible_during_and_after_the_execution(serve: Serve) -> None:
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


def test_printed_text_enters_no_status_list_or_details(serve: Serve) -> None:
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


def test_a_flood_cutting_through_a_secret_leaves_nothing_of_it() -> None:
    one = Printed()
    one.hide(["sk-a-key-of-a-model"])
    for surplus in range(25):
        one.add(b"sk-a-key-of-a-model" + b"." * (MOST - 19 + surplus))
        assert set(one.take(is_end=True)) <= set(f".{HIDDEN}")
        one.stored()


def shown_in_pieces(secret: str, raw: str, size: int) -> str:
    one = Printed()
    one.hide([secret])
    shown = ""
    for start in range(0, len(raw.encode()), size):
        one.add(raw.encode()[start : start + size])
        shown += one.take()
        one.stored()
    return shown + one.take(is_end=True)


KEY = 'sk-a"key\\of/a-model'
TWICE = json.dumps(json.dumps(KEY))[3:-3]


def in_a_panel(left: str, right: str, end: str = "\n") -> str:
    """Break the key as a panel of a terminal does, which fills up a line that is shorter than others."""
    return f"{KEY[:7]}{right}{end}{left}{KEY[7:12]}   {right}{end}{left}{KEY[12:]}"


DISGUISES = {
    "as it is": KEY,
    "zeros": "\0".join(KEY),
    "controls": "\x07\x85".join(KEY),
    "colours": "\x1b[1m".join(KEY),
    "marks of direction": "\u202e\u200b".join(KEY),
    "a query": requests.Request("GET", "http://x", params={"": KEY}).prepare().url.partition("=")[2],  # type: ignore[union-attr]
    "a query, in lower case": quote(KEY, safe="").replace("%5C", "%5c").replace("%2F", "%2f"),
    "an address": requests.Request("GET", f"http://x?={KEY}").prepare().url.partition("=")[2],  # type: ignore[union-attr]
    "HTML": html.escape(KEY),
    "JSON": json.dumps(KEY)[1:-1],
    "JSON twice": TWICE,
    "JSON with slashes": json.dumps(KEY)[1:-1].replace("/", r"\/"),
    "JSON, letter by letter": "".join(f"\\u{ord(letter):04X}" for letter in KEY),
    "repr, letter by letter": "".join(f"\\x{ord(letter):02x}" for letter in KEY),
    "JSON with zeros": json.dumps("\0".join(KEY))[1:-1],
    "JSON with lines": json.dumps("\n".join(KEY))[1:-1],
    "JSON with colours": json.dumps("\x1b[31m".join(KEY))[1:-1],
    "a panel": in_a_panel("\u2502  ", "  \u2502"),
    "a heavy panel with tabs": in_a_panel("\t\u2503\t", "\u2503 ", "\r\n"),
    "a panel in ASCII": in_a_panel("|", "|"),
    "a panel in colours": in_a_panel("\x1b[34m\u2502\x1b[0m ", " \x1b[34m\u2502\x1b[0m"),
    "a panel in JSON": json.dumps(in_a_panel("\u2502 ", " \u2502"))[1:-1],
    "lines that are filled up": in_a_panel("    ", "    "),
    "lines": in_a_panel("", ""),
    "repr with controls": repr("\x07\r".join(KEY))[1:-1],
}


@pytest.mark.row("S41")
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_secret_disguised_by_control_characters_is_masked_across_writes(disguise: str, size: int) -> None:
    one = Printed()
    one.hide([KEY])
    raw = f"the {DISGUISES[disguise]}: \u00e4\n"
    assert one.masked(raw) == f"the {HIDDEN}: \u00e4\n"
    assert shown_in_pieces(KEY, raw, size) == f"the {HIDDEN}: \u00e4\n"


@pytest.mark.row("S41")
def test_what_is_no_secret_stays_as_it_is() -> None:
    one = Printed()
    one.hide([KEY, "new-and-long"])
    for harmless in (
        r"C:\new\table",
        '{"a": "\\u00e4\\n\\"b\\\\"}',
        "sk-a\nsk-a",
        "tab\tand line\n",
        "new-\nx| and-long\n",
        "new - and - long",
    ):
        assert one.masked(harmless) == harmless
    assert one.masked(r"C:\new-and-long\new") == rf"C:\{HIDDEN}\new"


@pytest.mark.row("S41")
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_nothing_is_left_of_secrets_that_overlap_or_go_on(size: int) -> None:
    one = Printed()
    one.hide(["abcdefgh", "abcdefghijkl", "ghijklmnop", "xyzabcdwxyz"])
    raw = "1 abcdefghijkl 2 abcdefghijklmnop 3 abcdefgh 4 xyzabcdwxyzabcdwxyz 5"
    shown = ""
    for start in range(0, len(raw), size):
        one.add(raw[start : start + size].encode())
        shown += one.take()
        one.stored()
    assert shown + one.take(is_end=True) == f"1 {HIDDEN} 2 {HIDDEN} 3 {HIDDEN} 4 {HIDDEN} 5"


@pytest.mark.long
@pytest.mark.row("S41")
@pytest.mark.parametrize("secret", ["sk-a-key-of-a-model", r"\u0073k-a-key-of-a-\u006dodel", "sk-a-key\0-of-a-model"])
def test_a_cut_through_a_secret_leaves_nothing_of_it(secret: str) -> None:
    one = Printed()
    one.hide(["sk-a-key-of-a-model"])
    flood = "\x1b[1m." * (MOST // 5)
    for surplus in range(80, 160, 7):
        one.add((secret * 3 + flood + "." * surplus).encode())
        assert set(one.take(is_end=True)) <= {*f"[1m.{HIDDEN}"}
        one.stored()
        assert one.masked("." * (MOST - surplus) + secret * 9).strip(f".{HIDDEN}") == ""
    one.add(b"the sk-a-key-of")
    assert one.take() == "the "
    one.add(b"." * 2 * MOST)
    assert set(one.take()) == {"."}


@pytest.mark.row("S41")
def test_a_secrets_beginning_is_not_shown_at_the_end_either() -> None:
    assert shown_in_pieces("sk-a-key-of-a-model", "the sk-a-key-of-a-mode", 7) == f"the {HIDDEN}"
    assert shown_in_pieces("sk-a-key-of-a-model", "the sk-a", 7) == "the sk-a"
    assert shown_in_pieces("sk-a-key-of-a-model", "the sk-a  \u2502\n\u2502 ", 7) == "the sk-a  \u2502\n\u2502 "
    assert shown_in_pieces("sk-a-key-of-a-model", "the sk-a-key-of  \u2502\n", 7) == f"the {HIDDEN}"


@pytest.mark.row("S41")
@pytest.mark.parametrize("secret", ["key|of a|model", "|key-of-a-model|", "a key\n  of\n\n| a model"])
def test_a_secret_that_looks_like_a_frame_is_masked_too(secret: str) -> None:
    one = Printed()
    one.hide([secret])
    for place in range(1, len(secret)):
        for broken in (secret, f"{secret[:place]}\n{secret[place:]}"):
            assert one.masked(f"the {broken}\nend") == f"the {HIDDEN}\nend"


@pytest.mark.row("S41")
def test_a_line_is_shown_before_the_next_one_comes() -> None:
    one = Printed()
    one.hide(["sk-a-key-of-a-model"])
    one.add(b"three lines\n")
    assert one.take() == "three lines\n"


ENDLESS = ["s", "\\", "\\u", "\\u0073", "\\u001b]", "\\u001b[", "\x1b]", "\x1b[", "\x1bP", "s\0", "s\\", "\n", "sk-"]
ENDLESS += ["s\n", " ", "\t", "\u2502", "\u2502 ", "s \u2502\n\u2502 ", " \n", "\u2502\n", "\\n", "sk-a  ", "ssss |\n"]


def mask_a_lot_of(part: str) -> None:
    one = Printed()
    one.hide(["sk-a-key-of-a-model", "ssssssssssssssssssss", *(f"another-secret-{number}" for number in range(20))])
    text = part * (MOST // 4 // len(part))
    one.masked(text)
    one.masked(f"{text} sk-a-key-of-\0-model")
    one.add(text.encode())
    one.take()
    one.take(is_end=True)


@cache
def cpu_of_words() -> float:
    return cpu_of(lambda: mask_a_lot_of("a line of words\n"))


@pytest.mark.long
@pytest.mark.row("S41")
@pytest.mark.parametrize("part", ENDLESS)
def test_masking_any_text_costs_at_most_several_times_plain_words(part: str) -> None:
    assert cpu_of(lambda: mask_a_lot_of(part), enough=15 * cpu_of_words()) < 15 * cpu_of_words()


@pytest.mark.row("S41")
def test_lines_without_text_cost_no_more_than_text() -> None:
    one = Printed()
    one.hide(["sk-a-key-of-a-model"])
    assert cpu_of(lambda: one.masked("\n" * MOST)) < 5 * cpu_of(lambda: one.masked("x" * MOST))


class Failing(Printing):
    """A crew that fails with what its input says."""

    def run(self, job: Job, report: Report) -> Completed:
        job.printed.add(f"before {job.inputs['topic']}\n".encode())
        raise RuntimeError(job.inputs["topic"])


@pytest.mark.long
@pytest.mark.row("S41")
@pytest.mark.parametrize("disguise", ["as it is", "zeros", "JSON with colours", "a query"])
@DIALECTS
def test_an_exceptions_secret_is_masked_wherever_the_error_goes(
    serve: Serve, receiver: Receiver, caplog: pytest.LogCaptureFixture, dialect: str, disguise: str
) -> None:
    client = serve(crew=Failing(), user_tokens=[("bob", KEY)], dialect=dialect)
    hooks = {"webhooks": {"events": ["crew_kickoff_failed"], "url": f"{receiver.url}/events", "realtime": True}}
    kickoff_id = client.kickoff(f"has {DISGUISES[disguise]} in it", **hooks)
    error = f"RuntimeError: has {HIDDEN} in it"
    assert error in client.until(kickoff_id, {"spec": "error", "live": "FAILED"}[dialect]).values()
    details = client.get(f"/executions/{kickoff_id}").json()
    [listed] = client.get("/executions").json()["executions"]
    assert details["error"] == listed["error"] == error
    assert error in client.get(f"/view?id={kickoff_id}").text
    assert f"before has {HIDDEN} in it\n" in logs(client, kickoff_id)
    [told] = eventually(lambda: receiver.bodies("/events"), "the webhook")
    assert [event["data"] for event in told["events"] if event["type"] == "crew_kickoff_failed"] == [{"error": error}]
    assert "key" not in caplog.text


class Stepping(Printing):
    """A crew that uses a tool with what its input says, and answers with it."""

    def run(self, job: Job, report: Report) -> Completed:
        said = job.inputs["topic"]
        long = ("." * LONGEST_IN_STEP)[: -len(said) // 2] + said
        used = repr({"to": [{"key": said}]})
        report(StepDone(thought=said, tool="log_in", tool_input=used, result=long[:LONGEST_IN_STEP]))
        self.go_on.wait(60)
        report(StepDone(prompt=said, thought=said, result=said))
        return Completed(said)


@DIALECTS
@pytest.mark.parametrize("disguise", ["as it is", "JSON with colours"])
def test_secrets_in_steps_are_masked_everywhere_but_answers_are_kept(
    serve: Serve, receiver: Receiver, dialect: str, disguise: str
) -> None:
    crew, said = Stepping(), DISGUISES[disguise]
    client = serve(crew=crew, user_tokens=[("bob", KEY)], dialect=dialect)
    events = {"events": ["tool_usage_finished", "agent_execution_completed"], "url": f"{receiver.url}/events"}
    hooks = {"webhooks": {**events, "realtime": True}, "stepWebhookUrl": f"{receiver.url}/steps"}
    kickoff_id = client.kickoff(said, **hooks)
    if dialect == "live":
        record = eventually(lambda: (found := client.status(kickoff_id))["last_step"] and found, "the first step")
        assert record["last_step"]["thought"] == HIDDEN
        assert record["last_step"]["result"].strip(".") == ""
    crew.go_on.set()
    reached(client, kickoff_id, "completed")
    used, finished = eventually(lambda: len(found := receiver.bodies("/steps")) == 2 and found, "both steps")
    assert (used["thought"], used["tool"]) == (HIDDEN, "log_in")
    assert used["tool_input"] == repr({"to": [{"key": HIDDEN}]})
    assert len(used["result"]) > LONGEST_IN_STEP // 2
    assert used["result"].strip(".") == ""
    assert (finished["prompt"], finished["thought"], finished["result"]) == (HIDDEN, HIDDEN, said)
    told = eventually(lambda: len(found := receiver.bodies("/events")) == 2 and found, "both events")
    data = [event["data"] for body in told for event in body["events"]]
    assert data == [{name: step[name] for name in each} for each, step in zip(data, (used, finished), strict=True)]
    assert [set(each) for each in data] == [{"prompt", "thought", "tool", "tool_input", "result"}] * 2


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
