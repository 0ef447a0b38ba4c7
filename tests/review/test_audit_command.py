"""The audit command against a socket: whom it trusts, what it never prints. On a real Airflow: tests/system."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from airflow_crew_provider.audit.cli import main
from airflow_crew_provider.stored_names import TASK_RECORD, record_suffix

pytestmark = pytest.mark.waits
SECRET = "the-token-of-a-person"


class Answers(BaseHTTPRequestHandler):
    """Answers every path with what the test has put there."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        path, _, query = self.path.partition("?")
        [region] = parse_qs(query).get("region_id", [""])
        answers = self.server.answers  # type: ignore[attr-defined]
        status, headers, body = answers.get(f"{path} in {region}") or answers.get(path, (404, {}, b"{}"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.seen, server.answers = [], {}  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("AIRFLOW_API_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AIRFLOW_API_TOKEN", SECRET)
    yield server
    server.shutdown()
    server.server_close()


def page(key: str, *rows: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps({key: rows, "total_entries": len(rows)}).encode()


def test_without_decisions_it_prints_nothing_and_the_token_overrides_netrc(
    airflow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    airflow.answers["/api/v2/dags/a%20b/dagRuns"] = page("dag_runs", {"dag_run_id": "run/1"})
    airflow.answers["/api/v2/dags/a%20b/dagRuns/run%2F1/hitlDetails"] = page("hitl_details")
    airflow.answers["/api/v2/dags/a%20b/dagRuns/run%2F1/taskInstances/~/xcomEntries"] = page("xcom_entries")
    assert main(["a b"]) == 0
    assert capsys.readouterr() == ("", "")
    assert {header for _, header in airflow.seen} == {f"Bearer {SECRET}"}


def test_a_deadline_decision_without_an_airflow_response_is_listed(
    airflow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def question(task_id: str) -> dict[str, Any]:
        task = {"task_id": task_id, "map_index": -1, "state": "success"}
        return {
            "task_instance": task,
            "params": {"human_feedback": {}},
            "response_received": False,
            "responded_at": None,
        }

    run = "/api/v2/dags/tea/dagRuns/r"
    hidden = "a\x9b31m\x85\u202eb"  # characters that terminals act on
    review = {"output_sha256": "0", "decided_at": "2026-11-20T12:00:00+00:00", "is_approve": True, "reviewer": None}
    review["human_feedback"] = hidden
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details", question("decided"), question("open"))
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries")
    entry = (200, {}, json.dumps({"value": review}).encode())
    airflow.answers[f"{run}/taskInstances/decided/xcomEntries/crew_decision"] = entry
    assert main(["tea", "r"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["task_id"], json.loads(line)["taken"]) == ("decided", True)
    assert line.isprintable()
    assert json.loads(line)["human_feedback"] == hidden


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_untaken_answer_is_listed_unless_for_another_operator(
    airflow: Any, capsys: pytest.CaptureFixture[str], is_ours: bool
) -> None:
    run = "/api/v2/dags/tea/dagRuns/r"
    form = {
        "task_instance": {"task_id": "ask", "map_index": -1, "state": "success"},
        "params": {"human_feedback": {}},
        "response_received": True,
        "responded_at": "2026-11-20T12:00:00Z",
        "chosen_options": ["approve"],
    }
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details", form)
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries")
    if is_ours:
        about = (200, {}, json.dumps({"value": {"execution_id": "k-1"}}).encode())
        airflow.answers[f"{run}/taskInstances/ask/xcomEntries/crew_execution"] = about
    assert main(["tea", "r"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["task_id"], line["taken"]) for line in lines] == [("ask", False)] * is_ours


@pytest.mark.row("A26")
@pytest.mark.parametrize(("by", "listed"), [(None, 1), ("earlier", 1), ("this", 0)])
def test_a_decision_on_an_archived_attempts_form_is_listed(
    airflow: Any, capsys: pytest.CaptureFixture[str], by: str | None, listed: int
) -> None:
    run = "/api/v2/dags/tea/dagRuns/r"
    review = {"output_sha256": "0", "decided_at": "2026-11-20T12:00:00+00:00", "schema_revision": by}
    entry = {"key": "crew_decision", "task_id": "review", "map_index": 2}
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details")
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries", entry)
    airflow.answers[f"{run}/taskInstances/review/2"] = (200, {}, b'{"state": "success"}')
    value = (200, {}, json.dumps({"value": review}).encode())
    airflow.answers[f"{run}/taskInstances/review/xcomEntries/crew_decision"] = value
    assert main(["tea", "r"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    said = [(line["task_id"], line["map_index"], line["task_state"], line["taken"]) for line in lines]
    assert said == [("review", 2, "success", True)] * listed


@pytest.mark.row("A28")
def test_each_loop_iteration_is_queried_and_listed_by_its_address(
    airflow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "/api/v2/dags/tea/dagRuns/r"
    of_round = {f"region-{number}": number for number in (0, 1)}

    def place(region_id: str) -> dict[str, Any]:
        region = {"region_id": region_id, "region_index": of_round[region_id]}
        return {"task_id": "review", "map_index": -1, **region}

    asked = {"params": {"human_feedback": {}}, "response_received": True}
    form = {**asked, "task_instance": {**place("region-0"), "state": "success"}}
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details", form)
    entries = [{"key": "crew_decision", **place(each)} for each in of_round]
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries", *entries)
    airflow.answers[f"{run}/taskInstances/review"] = (200, {}, b'{"state": "success"}')
    for region_id, number in of_round.items():
        review = {"output_sha256": str(number), "decided_at": f"2026-11-20T12:00:0{number}+00:00"}
        value = (200, {}, json.dumps({"value": review}).encode())
        path = f"{run}/taskInstances/review/xcomEntries/crew_decision"
        airflow.answers[f"{path} in {region_id}"] = value
    assert main(["tea", "r"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    said = [(line["region_id"], line["region_index"], line["output_sha256"], line["taken"]) for line in lines]
    assert said == [("region-0", 0, "0", True), ("region-1", 1, "1", True)]


def test_all_decisions_of_one_task_and_unprocessed_answers_are_listed(
    airflow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "/api/v2/dags/tea/dagRuns/r"
    times = [f"2026-11-20T12:00:0{number}+00:00" for number in range(4)]
    said = {"kickoff_id": "e", "status": "resumed", "message": None}
    decided = [
        {"round": 1, "decided_at": times[0], "taken": True, "service": said},
        {"round": 2, "decided_at": times[1], "schema_revision": "this"},  # nobody was asked
        {"round": 3, "decided_at": times[2]},  # stored, and not sent yet
    ]
    task = {"task_id": "crew", "map_index": -1, "state": "queued"}
    form = {"task_instance": task, "params": {"human_feedback": {}}, "response_received": True}
    answers = [{**form, "responded_at": times[number].replace("+00:00", "Z")} for number in (2, 3)]
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details", *({**each, "chosen_options": []} for each in answers))
    entries = [{"key": key, "task_id": "crew", "map_index": -1} for key in ("crew_decisions", "crew_decision")]
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries", *entries)
    airflow.answers[f"{run}/taskInstances/crew"] = (200, {}, b'{"state": "queued"}')
    value = (200, {}, json.dumps({"value": decided}).encode())
    airflow.answers[f"{run}/taskInstances/crew/xcomEntries/crew_decisions"] = value
    assert main(["tea", "r"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    listed = [(line.get("round"), line["taken"], line.get("service")) for line in lines]
    assert listed == [(1, True, said), (3, True, None), (None, False, None)]
    assert {(line["dag_id"], line["task_id"], line["task_state"]) for line in lines} == {("tea", "crew", "queued")}


TIME = "2026-11-20T12:00:00+00:00"
ODD = [
    "text",
    3,
    True,
    None,
    {},
    [],
    [1, "x", None],
    [{}],
    [{"decided_at": 5}],
    [{"decided_at": "2026-11-20T12:00:00"}],
]
ODD += [{"output_sha256": 1}, {"output_sha256": "0", "decided_at": []}, {"decided_at": TIME, "reviewer": 3}]


@pytest.mark.row("A42")
@pytest.mark.parametrize("key", ["crew_decision", "crew_decisions", "crew_resume", "crew_execution"])
def test_an_xcom_of_another_shape_does_not_end_the_audit(
    airflow: Any, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    run = "/api/v2/dags/tea/dagRuns/r"
    review = {"output_sha256": "0", "decided_at": TIME, "task_id": "forged", "dag_id": "forged", "taken": "forged"}
    places = [("odd", each) for each in ("crew_decision", key)] + [("review", "crew_decision")]
    entries = [{"key": each, "task_id": task_id, "map_index": -1} for task_id, each in places]
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details")
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries", *entries)
    for task_id in ("odd", "review"):
        airflow.answers[f"{run}/taskInstances/{task_id}"] = (200, {}, b'{"state": "success"}')
    for odd in ODD:
        for task_id, name, value in [("odd", key, odd), ("review", "crew_decision", review)]:
            entry = (200, {}, json.dumps({"value": value}).encode())
            airflow.answers[f"{run}/taskInstances/{task_id}/xcomEntries/{name}"] = entry
        assert main(["tea", "r"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        told = [(line["dag_id"], line["task_id"], line["taken"]) for line in lines]
        assert ("tea", "review", True) in told
        assert "forged" not in str([lines[0][name] for name in ("dag_id", "task_id", "taken")])


@pytest.mark.parametrize(
    ("status", "more", "taken"),
    [
        ("resumed", {}, True),
        ("not sent", {}, False),
        ("already_responded", {}, False),  # from an earlier release
        ("already_responded", {"taken": False}, False),
        ("already_responded", {"taken": True}, True),  # sent again
    ],
)
def test_an_answer_that_changed_nothing_was_not_taken(
    airflow: Any, capsys: pytest.CaptureFixture[str], status: str, more: dict[str, Any], taken: bool
) -> None:
    task = {"task_id": "review", "map_index": -1, "state": "success"}
    detail = {"task_instance": task, "params": {"human_feedback": {}}, "response_received": True}
    run = "/api/v2/dags/tea/dagRuns/r"
    given = {"execution_id": "e", "crew_task_id": "t", "decided_at": "2026-11-20T12:00:00+00:00"}
    said = {"kickoff_id": "e", "status": status, "message": None}
    values = {
        "review/xcomEntries/crew_decision": {**given, "output_sha256": "0"},
        "resume/xcomEntries/crew_resume": {**given, **said, **more},
    }
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details", detail)
    entry = {"key": "crew_resume", "task_id": "resume", "map_index": -1}
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries", entry)
    for path, value in values.items():
        airflow.answers[f"{run}/taskInstances/{path}"] = (200, {}, json.dumps({"value": value}).encode())
    assert main(["tea", "r"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["taken"], line["service"]) == (taken, said if status != "not sent" else None)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, {}, SECRET.encode()), "refused the credentials"),
        ((500, {}, SECRET.encode()), "returned 500"),
        ((200, {}, b"<html>"), "JSONDecodeError"),
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "returned 302"),
        ((404, {}, b"{}"), "has no resource dags/tea/dagRuns"),
        ((404, {}, b"<html>default backend</html>"), "JSONDecodeError"),
        ((404, {}, b'"no backend"'), "returned 404"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_without_a_credential(
    airflow: Any, capsys: pytest.CaptureFixture[str], answer: Any, sentence: str
) -> None:
    airflow.answers["/api/v2/dags/tea/dagRuns"] = answer
    assert main(["tea"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert SECRET not in err
    assert len(err.splitlines()) == 1


def test_a_missing_url_or_credential_names_the_variables_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AIRFLOW_API_URL", "AIRFLOW_API_TOKEN", "AIRFLOW_API_USER", "AIRFLOW_API_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    assert main(["tea"]) == 1
    assert "AIRFLOW_API_URL" in capsys.readouterr().err
    assert main(["tea", "--airflow-url", "http://127.0.0.1:1"]) == 1
    assert "AIRFLOW_API_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize("status", [401, 500, None])
def test_a_password_in_the_url_is_never_printed(
    airflow: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int | None
) -> None:
    airflow.answers["/api/v2/dags/d/dagRuns"] = (status or 200, {}, b"no JSON")
    monkeypatch.setenv("AIRFLOW_API_URL", f"http://rita:pa55-w0rd@127.0.0.1:{airflow.server_port}")
    assert main(["d"]) == 1
    printed = "".join(capsys.readouterr())
    assert "127.0.0.1" in printed
    assert "pa55-w0rd" not in printed
    assert "rita" not in printed
    assert {header for _, header in airflow.seen} == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    "url", ["http://rita:pa/55@127.0.0.1:1", "http://rita:pa55@[::1", "http://rita:pa55@127.0.0.1:no"]
)
def test_an_unreadable_url_is_not_printed_with_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("AIRFLOW_API_URL", url)
    monkeypatch.setenv("AIRFLOW_API_TOKEN", SECRET)
    assert main(["d"]) == 1
    printed = "".join(capsys.readouterr())
    assert "Airflow at http://" in printed
    assert "pa" not in printed.replace("parse", "")


ASK = {"kind": "tool", "agent": "Writer", "tool": "send_mail", "arguments": {"to": "ann"}, "number": 3}


@pytest.mark.parametrize(
    "more",
    [{"ask": ASK, "outcome": "deny", "auto_approved": None}, {"is_approve": True, "auto_approved": "short enough"}],
    ids=["question", "rule"],
)
def test_a_decision_is_listed_with_agent_question_or_rule_reason(
    airflow: Any, capsys: pytest.CaptureFixture[str], more: dict[str, Any]
) -> None:
    run = "/api/v2/dags/tea/dagRuns/r"
    review = {"output_sha256": "0", "decided_at": "2026-11-20T12:00:00+00:00", "reviewer": None, **more}
    entry = {"key": "crew_decision", "task_id": "review", "map_index": -1}
    airflow.answers[f"{run}/hitlDetails"] = page("hitl_details")
    airflow.answers[f"{run}/taskInstances/~/xcomEntries"] = page("xcom_entries", entry)
    airflow.answers[f"{run}/taskInstances/review"] = (200, {}, b'{"state": "success"}')
    value = (200, {}, json.dumps({"value": review}).encode())
    airflow.answers[f"{run}/taskInstances/review/xcomEntries/crew_decision"] = value
    assert main(["tea", "r"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert {name: json.loads(line)[name] for name in more} == more


RUN = "/api/v2/dags/tea/dagRuns/r"
OF_RECORD = (
    "/api/v2/variables/"
    + TASK_RECORD
    + record_suffix({"dag_id": "tea", "run_id": "r", "task_id": "crew", "map_index": -1})
)


def used(execution_id: str, state: str | None = None, usage: Any = None) -> dict[str, Any]:
    return {"execution_id": execution_id, "kickoff_id": execution_id, "state": state, "usage": usage}


def a_task_with(airflow: Any, record: Any = None, **xcoms: Any) -> None:
    entries = [{"key": key, "task_id": "crew", "map_index": -1} for key in xcoms]
    airflow.answers[f"{RUN}/taskInstances/~/xcomEntries"] = page("xcom_entries", *entries)
    airflow.answers[f"{RUN}/taskInstances/crew"] = (200, {}, b'{"state": "failed"}')
    for key, value in xcoms.items():
        entry = (200, {}, json.dumps({"value": value}).encode())
        airflow.answers[f"{RUN}/taskInstances/crew/xcomEntries/{key}"] = entry
    if record is not None:
        text = record if isinstance(record, str) else json.dumps({"version": 1, "parts": record})
        airflow.answers[OF_RECORD] = (200, {}, json.dumps({"value": text}).encode())


ABOUT = {"crew_conn_id": "crew_default", "execution_id": "e-3", "kickoff_id": "e-3"}
FIRST = used("e-1", "error", {"total_tokens": 7})
POSTS = {"kickoff_id": "e-3", "earlier": [{"kickoff_id": "e-0", "cleared": True}, {"kickoff_id": "e-2"}, {}]}


@pytest.mark.parametrize(
    ("record", "xcoms", "executions"),
    [
        pytest.param(None, {"crew_usage": {"executions": [FIRST]}}, [FIRST], id="a try that ended by itself"),
        pytest.param({"crew_kickoff": {"kickoff_id": "e-3"}}, {}, [used("e-3")], id="a first try that was killed"),
        pytest.param(
            {"crew_kickoff": POSTS, "crew_used": {"executions": [FIRST]}},
            *({}, [FIRST, used("e-2"), used("e-3")]),
            id="a later one",
        ),
        pytest.param({"crew_resume": {"kickoff_id": "e-9"}}, {}, [used("e-9"), used("e-3")], id="a resume"),
        pytest.param({"crew_watch": {}}, {}, None, id="a sensor, which starts nothing"),
        pytest.param("***", {}, [used("e-3")], id="a record that Airflow masks"),
        pytest.param(None, {}, None, id="no record"),
    ],
)
def test_usage_of_tasks(
    airflow: Any, capsys: pytest.CaptureFixture[str], record: Any, xcoms: Any, executions: Any
) -> None:
    a_task_with(airflow, record, crew_execution=ABOUT, **xcoms)
    assert main(["tea", "r", "--usage"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    task = {"dag_id": "tea", "run_id": "r", "task_id": "crew", "map_index": -1, "task_state": "failed"}
    assert lines == ([] if executions is None else [{**task, "executions": executions}])


def test_a_token_that_may_not_read_variables_is_told_so(airflow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    a_task_with(airflow, crew_execution=ABOUT)
    airflow.answers[OF_RECORD] = (403, {}, b"{}")
    assert main(["tea", "r", "--usage"]) == 1
    assert "refused the credentials or access (403)" in capsys.readouterr().err
