"""Files that crews write, over the API: listed, versioned, with their rounds, and only ever downloaded."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from crew_client import Client, Receiver, Serve, eventually

from crew_service.engine import output_files
from crew_service.engine.crew import FilePiece, Job, Report
from crew_service.engine.files import PIECE, UNUSED_OF_OWNER, Files
from crew_service.local import running_service
from crew_service.scripted_crew import ScriptedCrew
from crew_service.settings import FileLimits
from crew_service.storage import files
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database
from scripts.stack.waiting import PATIENCE

HTML = "<html><script>alert(1)</script>"
NAMES = ["report.md", "charts/a b.svg", "süß.txt", "a" * 1000]
REFUSED = ["", "\u202efdp.exe", "/etc/passwd", "../a", "a/../b", "a//b", "./a", "a\\b", "a\nb", "a" * 1001]
DRAFT = {"id": "draft_task", "human_input": True, "output": "Draft {revision}", "files": {"a.md": "text {revision}"}}
LAST = {"id": "last_task", "output": "Done", "files": {"b.md": "all on {topic}"}}


def scenario(**files: str) -> dict[str, Any]:
    return {"tasks": [{"id": "write_task", "output": "Done", "files": files}]}


def listed(client: Client, started: str) -> list[dict[str, Any]]:
    return client.get(f"/executions/{started}/files").json()["files"]


def get(client: Client, started: str, name: str, **more: Any) -> Any:
    path = f"{client.url}/executions/{started}/files/{name}"
    return client.session.get(path, timeout=PATIENCE, **more)


def test_files_have_their_draft_round_and_are_final_once_approved(serve: Serve, receiver: Receiver) -> None:
    client = serve(scenario={"tasks": [DRAFT, LAST]})
    started = client.kickoff(inputs={"topic": "tea"}, crewWebhookUrl=f"{receiver.url}/crew")
    client.until(started, "pending")
    assert [(each["name"], each["state"], each["round"]) for each in listed(client, started)] == [("a.md", "draft", 1)]
    client.resume(started, approve=False, feedback="shorter")
    eventually(lambda: len(listed(client, started)) == 2, "the second draft")
    client.until(started, "pending")  # its files are stored before it
    client.resume(started, crewWebhookUrl=f"{receiver.url}/crew")
    client.until(started, "completed")
    found = listed(client, started)
    assert [(each["name"], each["version"], each["state"], each["round"]) for each in found] == [
        ("b.md", 1, "final", None),
        ("a.md", 2, "final", 2),
        ("a.md", 1, "draft", 1),
    ]
    assert found[0] == {
        **{"name": "b.md", "version": 1, "size": 10, "sha256": hashlib.sha256(b"all on tea").hexdigest()},
        **{"content_type": "text/plain", "task_id": "last_task", "created_at": found[0]["created_at"]},
        **{"direction": "out", "round": None, "state": "final"},
        "view": f"/file?id={started}&name=b.md&version=1&direction=out",
    }
    assert client.get(f"/executions/{started}").json()["files"] == found
    assert [get(client, started, "a.md", params={"version": each}).text for each in (1, 2)] == ["text 1", "text 2"]
    assert get(client, started, "a.md").text == "text 2"
    body = eventually(lambda: receiver.bodies("/crew"), "the webhook")[0]
    assert {(each["name"], each["version"]) for each in body["files"]} == {("a.md", 2), ("b.md", 1)}


def signed_in(client: Client) -> requests.Session:
    browser = requests.Session()
    browser.post(f"{client.url}/login", data={"token": client.token}, timeout=PATIENCE)
    return browser


def page(client: Client, started: str) -> str:
    return signed_in(client).get(f"{client.url}/view", params={"id": started}, timeout=PATIENCE).text


def test_a_drafts_form_lists_its_files_but_no_rejected_ones(serve: Serve) -> None:
    notes = {"id": "notes_task", "output": "Notes", "files": {"notes.md": "notes"}}
    draft = {**DRAFT, "files": {"chart.png": "always this", "a.md": "text {revision}"}}
    client = serve(scenario={"tasks": [notes, draft]})
    started = client.kickoff()
    for revision in (1, 2):
        known = 1 + 2 * revision
        eventually(lambda known=known: len(listed(client, started)) == known, "the draft's files")
        client.until(started, "pending")  # they are stored before the question
        form = re.search(r'id="draft-.*?</form>', page(client, started), re.DOTALL)
        assert form
        links = dict(re.findall(r'href="(file\?[^"]+)">([^<]+)</a> \([0-9]+ Bytes\)', form[0]))
        assert sorted(links.values()) == ["a.md", "chart.png", "notes.md"]
        address = next(unescape(link) for link, name in links.items() if name == "a.md")
        assert signed_in(client).get(f"{client.url}/{address}", timeout=PATIENCE).text == f"text {revision}"
        client.resume(started, approve=False, feedback="shorter")


@pytest.mark.row("S83")
@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_only_ever_downloaded(serve: Serve, name: str) -> None:
    client = serve(scenario=scenario(**{name: HTML}))
    started = client.kickoff()
    client.until(started, "completed")
    answer = get(client, started, name)
    assert (answer.status_code, answer.text) == (200, HTML)
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    assert answer.headers["x-content-type-options"] == "nosniff"
    etag = answer.headers["etag"]
    assert etag == f'"{hashlib.sha256(HTML.encode()).hexdigest()}"'
    assert get(client, started, name, headers={"If-None-Match": etag}).status_code == 304
    shown = page(client, started)
    assert "alert(1)" not in shown
    (link,) = re.findall(r'href="(file\?[^"]+)"', shown)
    found = signed_in(client).get(f"{client.url}/{unescape(link)}", timeout=PATIENCE)
    assert (found.text, found.headers["content-disposition"][:10]) == (HTML, "attachment")


@pytest.mark.long
@pytest.mark.row("S83")
@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_is_no_relative_path_is_not_stored(serve: Serve, name: str) -> None:
    client = serve(scenario=scenario(**{name: "text"}))
    started = client.kickoff()
    client.until(started, "completed")
    assert listed(client, started) == []
    assert "is not stored: its name is not valid." in client.get(f"/executions/{started}/logs").text


@pytest.mark.parametrize("name", ["caf\udce9.txt", "a\nThe file b", "a" * 5000], ids=["bytes", "line", "long"])
def test_a_refused_name_is_one_printable_line_and_fails_nothing(serve: Serve, name: str) -> None:
    class Odd(ScriptedCrew):
        def run(self, job: Job, report: Report) -> Any:
            report(FilePiece(name, "write_task", 1, "YQ==", is_last=True))
            return super().run(job, report)

    client = serve(crew=Odd(scenario()))
    started = client.kickoff()
    client.until(started, "completed")
    (line,) = client.get(f"/executions/{started}/logs").text.splitlines()
    assert line.startswith(f"The file {name[:1]}")
    assert line.endswith(" is not stored: its name is not valid.")
    assert len(line) < 2 * output_files.LONGEST_NAME


def test_what_is_too_large_is_not_stored_and_fails_nothing(serve: Serve) -> None:
    limits = FileLimits(of_file=2 * PIECE, of_execution=3 * PIECE)
    files = {"a": "a" * 2 * PIECE, "b": "b" * (2 * PIECE + 1), "c": "c" * 2 * PIECE, "d": "d" * PIECE}
    client = serve(scenario=scenario(**files), file_limits=limits)
    started = client.kickoff()
    client.until(started, "completed")
    assert {each["name"]: each["size"] for each in listed(client, started)} == {"a": 2 * PIECE, "d": PIECE}
    assert get(client, started, "a").text == files["a"]
    log = client.get(f"/executions/{started}/logs").text
    assert f"The file b is not stored: a file may have at most {2 * PIECE} bytes." in log
    assert f"The file c is not stored: the files of an execution may have at most {3 * PIECE} bytes." in log


@pytest.mark.parametrize("trouble", [DatabaseUnavailable("away"), None], ids=["outage", "deleted"])
def test_a_download_that_ends_early_logs_no_traceback(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Exception | None
) -> None:
    client = serve(scenario=scenario(a="a" * 2 * PIECE))
    started = client.kickoff()
    client.until(started, "completed")
    failing, piece = [1], files.piece

    def failing_piece(connection: Any, file_id: str, number: int) -> bytes | None:
        if number not in failing:
            return piece(connection, file_id, number)
        if trouble:
            raise trouble
        return None

    monkeypatch.setattr(files, "piece", failing_piece)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        get(client, started, "a")
    failing[:] = [0]
    assert get(client, started, "a").status_code == (503 if trouble else 404)
    logged = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record for record in logged if record.exc_info] == []
    assert sum("ended early" in record.getMessage() for record in logged) == 1


def test_five_versions_are_kept_and_an_unchanged_file_is_none(serve: Serve) -> None:
    task = {"output": "x", "files": {"a": "{topic}", "b": "same"}}
    tasks = [{**task, "id": f"task_{n}", "files": {"a": str(n // 2), "b": "same"}} for n in range(14)]
    client = serve(scenario={"tasks": tasks})
    started = client.kickoff()
    client.until(started, "completed")
    versions = {name: [each["version"] for each in listed(client, started) if each["name"] == name] for name in "ab"}
    assert versions == {"a": [7, 6, 5, 4, 3], "b": [1]}


def test_only_who_may_see_the_execution_gets_its_files(serve: Serve) -> None:
    users = [("ann", "anns-token-of-20-letters"), ("bob", "bobs-token-of-20-letters")]
    client = serve(scenario=scenario(a="text"), user_tokens=users)
    ann, bob = (client.holding(token) for _, token in users)
    started = ann.kickoff()
    ann.until(started, "completed")
    assert get(ann, started, "a").status_code == get(client, started, "a").status_code == 200
    assert get(bob, started, "a").status_code == bob.get(f"/executions/{started}/files").status_code == 404
    assert get(ann, started, "a", params={"version": "2"}).status_code == 404
    for wrong in ({"version": "x"}, {"version": "0"}, {"direction": "up"}):
        assert get(ann, started, "a", params=wrong).status_code == 400
    assert get(ann, started, "b").status_code == 404


def test_a_file_that_was_given_is_listed_and_returned(serve: Serve) -> None:
    client = serve(scenario={"tasks": [{"id": "read_task", "output": "{report.size}"}]})
    content = b"%PDF-1.7 given"
    url = client.session.post(f"{client.url}/files", files={"file": ("x", content)}, timeout=PATIENCE).json()["url"]
    started = client.post("/kickoff", {"input_files": {"report": url}}).json()["kickoff_id"]
    client.until(started, "completed")
    (found,) = listed(client, started)
    assert (found["name"], found["direction"], found["content_type"]) == ("report", "in", "application/pdf")
    assert get(client, started, "report", params={"direction": "in"}).content == content
    assert get(client, started, "report").status_code == 404


def test_older_versions_give_way_before_a_newer_one_is_refused(serve: Serve) -> None:
    tasks = [{"id": f"task_{number}", "output": "x", "files": {"a.md": f"{number}" * 24}} for number in range(7)]
    client = serve(scenario={"tasks": tasks}, file_limits=FileLimits(25, 60, None))
    started = client.kickoff()
    client.until(started, "completed")
    assert [each["version"] for each in listed(client, started)] == [7, 6]
    assert get(client, started, "a.md").text == "6" * 24


def test_a_draft_leaves_the_newest_final_version(serve: Serve) -> None:
    final = {"id": "first_task", "output": "x", "files": {"a.md": "f" * 24}}
    drafted = {"id": "draft_task", "human_input": True, "output": "x", "files": {"a.md": "{revision}" + "d" * 23}}
    client = serve(scenario={"tasks": [final, drafted]}, file_limits=FileLimits(25, 60, None))
    started = client.kickoff()
    client.until(started, "pending")
    client.resume(started, approve=False, feedback="again")
    eventually(lambda: listed(client, started)[0]["version"] == 3, "the revision's file")
    assert [(each["version"], each["state"]) for each in listed(client, started)] == [(3, "draft"), (1, "final")]


def test_a_file_begun_during_an_outage_is_stored_after_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, outputs = itertools.count(), files.outputs

    def outputs_once_away(*arguments: Any, **more: Any) -> Any:
        if next(looks) == 1:
            raise DatabaseUnavailable("away")
        return outputs(*arguments, **more)

    monkeypatch.setattr(files, "outputs", outputs_once_away)
    client = serve(scenario=scenario(**{"a.md": "a", "b.md": "b", "c.md": "c"}))
    started = client.kickoff()
    client.until(started, "completed")
    assert next(looks) > 2
    assert {each["name"] for each in listed(client, started)} == {"a.md", "b.md", "c.md"}


def test_a_file_waits_for_no_room_that_unused_uploads_take(tmp_path: Path) -> None:
    with contextlib.closing(Database(str(tmp_path / "x.db"))) as database:
        store = Files(database, FileLimits(of_file=PIECE, of_execution=PIECE))
        for _ in range(UNUSED_OF_OWNER):  # as killed processes leave them behind
            store.begin("execution x", PIECE)
        piece = FilePiece("a.md", "", 1, "YQ==", True)
        told = output_files.OutputFiles(store, "x").receive(piece)
    assert told == "earlier uploads of this execution that did not end still take its room, for up to an hour"


def test_rejected_files_stay_drafts_in_the_continuing_execution(tmp_path: Path) -> None:
    def service(name: str, **more: Any) -> Any:
        task = {"id": "draft_task", "human_input": True, "output": "Draft", "files": {name: "text {revision}"}, **more}
        return running_service(scenario={"tasks": [task]}, db=tmp_path / "service.db")

    with service("rejected.md") as running:
        client = Client(running.url, running.token)
        started = client.kickoff()
        client.until(started, "pending")
    with service("rejected.md", revised="Draft {revision}", error="no paper") as running:
        client = Client(running.url, running.token)
        client.resume(started, approve=False, feedback="do not send this")
        client.until(started, "error")
    with service("good.md") as running:
        client = Client(running.url, running.token)
        continued = client.kickoff(continueFrom=started)
        client.until(continued, "pending")
        client.resume(continued)
        client.until(continued, "completed")
        found = {(each["name"], each["state"]) for each in listed(client, continued)}
    assert found >= {("good.md", "final"), ("rejected.md", "draft")}
    assert ("rejected.md", "final") not in found


def test_of_a_same_named_file_and_folder_the_newer_remains() -> None:
    def row(name: str, changed_at: float, version: int = 1) -> Any:
        return SimpleNamespace(name=name, version=version, changed_at=changed_at)

    def names(*rows: Any) -> set[str]:
        return {each.name for each in output_files._newest(rows)}

    assert names(row("report/a", 1.0), row("report/b/c", 1.5), row("report", 2.0)) == {"report"}
    assert names(row("report", 2.0), row("report/a", 3.0), row("reports", 1.0)) == {"report/a", "reports"}
    assert names(row("report", 1.0), row("report/a", 2.0), row("report", 3.0, 2)) == {"report"}
