"""Files that callers upload: who may use them, for what, how large they are, and what becomes of them."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Serve, eventually
from databases import new_sqlite, put
from sampling import crossed
from sqlalchemy import func, select, update

from crew_service.engine.files import MOST_FILES, PIECE, Files
from crew_service.engine.retention import PIECES, forget_old, forget_unused_files
from crew_service.http.uploads import AT_ONCE, OF_ONE
from crew_service.settings import FileLimits
from crew_service.storage.database import Database
from crew_service.storage.files import OF_EXECUTION, take
from crew_service.storage.states import State
from crew_service.storage.tables import executions, file_pieces, files
from scripts.stack.waiting import PATIENCE

SHOWN = "{report.size} {report.sha256} {report}"
READS = {"tasks": [{"id": "read_task", "output": SHOWN}]}
REVIEWED = {"tasks": [{"id": "draft_task", "human_input": True, "output": SHOWN}, {"id": "last_task", "output": SHOWN}]}
TEXT = b"All on tea."
TOKENS = [("ann", "ann-token-of-20-letters"), ("bob", "bob-token-of-20-letters")]
NAMES = ["../../etc/passwd", "a" * 255, "report\u202efdp.exe", "\\\\host\\share", "sub/folder.txt", "null", ".", "'"]
KINDS = {
    b"%PDF-1.7 \x00": "application/pdf",
    b"\x89PNG\r\n\x1a\n\x00": "image/png",
    b"\xff\xd8\xff\xe0": "image/jpeg",
    b"GIF89a": "image/gif",
    b"RIFF\x00\x00\x00\x00WEBPVP8 ": "image/webp",
    b"PK\x03\x04\x00": "application/zip",
    "süß".encode(): "text/plain",
    "süß".encode() * PIECE: "text/plain",  # letters are cut between pieces
    b"\xffnot UTF-8": "application/octet-stream",
    b"zero\x00": "application/octet-stream",
    b"<svg onload='alert(1)'>": "text/plain",
}


def upload(client: Client, content: bytes = TEXT, name: str = "report.txt", **form: str) -> Any:
    return client.session.post(f"{client.url}/files", files={"file": (name, content)}, data=form, timeout=PATIENCE)


def address(client: Client, content: bytes = TEXT) -> str:
    answer = upload(client, content)
    assert answer.status_code == 200, answer.text
    return answer.json()["url"]


def kickoff(client: Client, given: Any, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return client.post("/kickoff", {"input_files": given, **body}, headers=headers)


def expected(content: bytes) -> str:
    return f"{len(content)} {hashlib.sha256(content).hexdigest()} {content.decode()}"


def stored(database: str) -> tuple[int, int]:
    """Return how many files and pieces there are."""
    with closing(Database(database)) as opened, opened.reading() as connection:
        counts = [
            connection.execute(select(func.count()).select_from(each)).scalar_one() for each in (files, file_pieces)
        ]
    return counts[0], counts[1]


def test_a_file_for_a_fileless_input_is_not_called_missing(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], **READS})
    answer = kickoff(client, {"topic": address(client)}, inputs={})
    assert (answer.status_code, "'topic' takes no file; give its value" in answer.text) == (400, True), answer.text


@pytest.mark.parametrize(("dialect", "name"), crossed(["spec", "live"], ["input_files", "inputFiles"]))
def test_a_crew_reads_an_uploaded_file(serve: Serve, database: str, dialect: str, name: str) -> None:
    client = serve(READS, dialect=dialect, db=database)
    answer = upload(client, field_name="report").json()
    assert answer["url"] == f"{client.url}/files/{answer['id']}"
    found = {"field_name": "report", "size": len(TEXT), "sha256": hashlib.sha256(TEXT).hexdigest()}
    assert answer == {**answer, **found, "content_type": "text/plain"}
    elsewhere = answer["url"].replace("http://127.0.0.1", "https://another.example")
    started = client.post("/kickoff", {name: {"report": elsewhere}}).json()["kickoff_id"]
    assert expected(TEXT) in str(client.until(started, {"spec": "completed", "live": "SUCCESS"}[dialect]))


def test_a_large_file_arrives_whole(serve: Serve, database: str) -> None:
    content = os.urandom(3 * PIECE + 1).hex().encode()
    client = serve(READS, db=database)
    started = kickoff(client, {"report": address(client, content)}).json()["kickoff_id"]
    assert client.until(started, "completed")["result"]["output"] == expected(content)
    assert stored(database) == (1, 7)


def test_a_kickoff_may_be_a_form(serve: Serve) -> None:
    client = serve(
        {"inputs": ["topic", "report"], "tasks": [{"id": "a", "output": "{topic} {report.size} {note.size}"}]}
    )
    parts = {"report": ("../a.txt", TEXT), "note": ("b", b"")}
    texts = {"inputs": '{"topic": "tea"}', "meta": '{"a": 1}', "task_webhook_url": "http://127.0.0.1:1/x"}
    answer = client.session.post(f"{client.url}/kickoff", files=parts, data=texts, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert client.until(answer.json()["kickoff_id"], "completed")["result"]["output"] == f"tea {len(TEXT)} 0"


@pytest.mark.parametrize(
    ("parts", "texts", "reason"),
    [
        ({"report": TEXT}, {"inputs": "[]"}, "In the part 'inputs'"),
        ({"report": TEXT}, {"inputs": '{"report": "x"}'}, "both as an input and as a file"),
        ({}, {"report": "without a file name"}, "neither a field of a kickoff nor a file"),
        ({"crewWebhookUrl": TEXT}, {}, "must not be a file"),
        ({"inputFiles": TEXT}, {}, "must not be a file"),
        ({"report": TEXT}, {"input_files": '{"note": "x"}'}, "either as its own parts or in 'input_files'"),
        ({"report": TEXT}, {"inputFiles": '{"note": "x"}'}, "either as its own parts or in 'inputFiles'"),
    ],
)
def test_a_form_that_is_wrong_starts_and_keeps_nothing(
    serve: Serve, database: str, parts: dict[str, bytes], texts: dict[str, str], reason: str
) -> None:
    client = serve(READS, db=database)
    given = {name: (name, content) for name, content in parts.items()} or {"x": (None, "x")}
    answer = client.session.post(f"{client.url}/kickoff", files=given, data=texts, timeout=PATIENCE)
    assert (answer.status_code, client.get("/executions").json()) == (400, {"executions": []})
    assert reason in answer.json()["detail"]
    assert stored(database) == (0, 0)


def test_null_in_a_form_counts_as_absent(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], **READS})

    def answer(**texts: str) -> Any:
        return client.session.post(f"{client.url}/kickoff", files={"report": ("a", TEXT)}, data=texts, timeout=PATIENCE)

    assert answer(inputs='{"topic": null}', meta="null", limits=" null ", webhooks="null").status_code == 200
    missing = answer(inputs="null")
    assert (missing.status_code, missing.json()) == (422, {"detail": "Missing inputs: topic"})


@pytest.mark.row("S71")
def test_a_name_is_only_a_label(serve: Serve) -> None:
    scenario = {"tasks": [{"id": "a", "output": "done"}]}
    client = serve(scenario)
    for name in NAMES:
        assert upload(client, name=name.replace("'", ""), field_name=name).json()["field_name"] == name
        started = kickoff(client, {name: address(client)})
        assert started.status_code == 200, name
        assert client.until(started.json()["kickoff_id"], "completed")
    for name in ("", "a\0b", "a" * 256):
        assert kickoff(client, {name: address(client)}).status_code == 400


@pytest.mark.row("S72")
def test_a_file_is_its_owners_and_serves_one_execution(serve: Serve, database: str) -> None:
    client = serve(
        READS, user_tokens=[("ann", "ann-token-of-20-letters"), ("bob", "bob-token-of-20-letters")], db=database
    )
    ann, bob = (client.holding(f"{name}-token-of-20-letters") for name in ("ann", "bob"))
    of_ann, of_bob = address(ann, b"of ann"), address(bob, b"of bob")
    for who in (bob, client):
        refused = kickoff(who, {"report": of_ann})
        assert (refused.status_code, "the input 'report' is unknown" in refused.text) == (404, True)
    for who, mine, content in ((ann, of_ann, b"of ann"), (bob, of_bob, b"of bob")):
        started = kickoff(who, {"report": mine}).json()["kickoff_id"]
        assert who.until(started, "completed")["result"]["output"] == expected(content)
        assert kickoff(who, {"report": mine}).status_code == 404
    assert client.get(of_ann.removeprefix(client.url)).status_code == 404
    assert ann.get(of_ann.removeprefix(client.url)).status_code == 404
    assert client.holding("nobody").post("/files").status_code == 401
    for unknown in ("x", f"{client.url}/files/{'a' * 43}", "https://example.com/report.pdf", "/etc/passwd"):
        assert kickoff(client, {"report": unknown}).status_code == 404
    for wrong in (None, 1, {"source": of_ann}, [of_ann]):
        assert kickoff(client, {"report": wrong}).status_code == 400


@pytest.mark.parametrize(("dialect", "code"), [("spec", 400), ("live", 422)])
def test_two_names_of_the_files_must_agree(serve: Serve, dialect: str, code: int) -> None:
    client = serve(READS, dialect=dialect)
    files = {"report": address(client)}
    for one, other in ((files, {"report": "x"}), (files, {}), ({}, files)):
        refused = client.post("/kickoff", {"input_files": one, "inputFiles": other})
        assert (refused.status_code, "differ" in refused.text) == (code, True)
    assert client.post("/kickoff", {"input_files": files, "inputFiles": files}).status_code == 200


@pytest.mark.row("S72")
def test_a_used_file_is_named_beside_a_new_one(serve: Serve) -> None:
    client = serve(READS)
    used = address(client)
    assert kickoff(client, {"report": used}).status_code == 200
    refused = kickoff(client, {"first": address(client), "report": used, "last": address(client)})
    assert (refused.status_code, "the input 'report' is unknown" in refused.text) == (404, True)


def test_equal_content_repeats_a_kickoff_whatever_its_address_or_encoding(serve: Serve, database: str) -> None:
    client = serve(READS, db=database)
    first = kickoff(client, {"report": address(client)}, key="a", inputs={})
    assert first.status_code == 200
    again = address(client)
    assert kickoff(client, {"report": again}, key="a", inputs={}).json() == first.json()
    form = {"files": {"report": ("other", TEXT)}, "headers": {"Idempotency-Key": "a"}, "timeout": PATIENCE}
    assert client.session.post(f"{client.url}/kickoff", data={"inputs": "{}"}, **form).json() == first.json()
    for other in ({"report": address(client, b"other")}, {"note": again}, {"report": "https://example.com/files/x"}):
        assert kickoff(client, other, key="a", inputs={}).status_code == 422
    assert len(client.get("/executions").json()["executions"]) == 1


@pytest.mark.parametrize("content", KINDS, ids=lambda content: content[:8].hex())
def test_the_content_tells_the_type(serve: Serve, content: bytes) -> None:
    assert upload(serve(READS), content, name="report.html").json()["content_type"] == KINDS[content]


LIMITS = FileLimits(of_file=2000, of_execution=3000, of_all=None)


@pytest.mark.row("S73")
def test_limits_are_kept(serve: Serve, database: str) -> None:
    client = serve(READS, file_limits=LIMITS, user_tokens=[("ann", "ann-token-of-20-letters")], db=database)
    ann = client.holding("ann-token-of-20-letters")
    refused = upload(client, b"a" * 2001)
    assert (refused.status_code, "at most 2000 bytes" in refused.text) == (413, True)
    pieces = (b"a" * 100_000 for _ in range(30))
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'

    def body() -> Iterator[bytes]:
        yield head
        yield from pieces

    chunked = client.session.post(f"{client.url}/files", data=body(), headers=headers, timeout=PATIENCE)
    assert chunked.status_code == 413
    large = {"a": address(client, b"a" * 2000), "b": address(client, b"a" * 2000)}
    assert kickoff(client, large).status_code == 413
    form = {name: (name, b"a" * 2000) for name in large}
    assert client.session.post(f"{client.url}/kickoff", files=form, timeout=PATIENCE).status_code == 413
    while (answer := upload(client, b"a" * 2000)).status_code == 200:
        pass
    assert (answer.status_code, int(answer.headers["Retry-After"]) > 0) == (429, True)
    assert kickoff(client, {"report": address(ann)}).status_code == 404
    assert upload(ann, b"a" * 2000).status_code == 200
    assert kickoff(client, {"report": large["a"]}).status_code == 200
    assert upload(client, b"a" * 1800).status_code == 200
    many = {f"file {number}": "x" for number in range(201)}
    assert kickoff(client, many).status_code in (404, 413)


@pytest.mark.long
@pytest.mark.row("S73")
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_neither_names_nor_boundaries_count_as_fields_or_files(serve: Serve, dialect: str) -> None:
    most = 100
    client = serve({"inputs": ["topic"], "tasks": [{"id": "a"}]}, max_body=most, file_limits=LIMITS, dialect=dialect)
    assert upload(client, b"a" * LIMITS.of_file, field_name="a" * most).status_code == 200
    assert upload(client, b"a" * LIMITS.of_file, field_name="a" * (most + 1)).status_code == 413
    many = {f"file {number}": ("a", b"a") for number in range(MOST_FILES)}
    for topic, code in (("a" * (most - len('{"topic": ""}')), 200), ("a" * most, 413)):
        inputs = json.dumps({"topic": topic})
        answer = client.session.post(f"{client.url}/kickoff", files=many, data={"inputs": inputs}, timeout=PATIENCE)
        assert answer.status_code == code, answer.text


OF_FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\na\r\n'


@pytest.mark.row("S74")
@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"\r\n", b"\r\n" * 5000),
        (OF_FILE + b"--x--\r\n", b"y" * 10_000),
    ],
    ids=["before its first part", "after its last part"],
)
def test_a_form_that_never_ends_is_refused(serve: Serve, database: str, begin: bytes, more: bytes) -> None:
    client = serve(READS, db=database)

    def body() -> Iterator[bytes]:
        yield begin
        for _ in range(1000):
            yield more

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = client.session.post(f"{client.url}/files", data=body(), headers=headers, timeout=PATIENCE)
    assert (answer.status_code, stored(database)) == (413, (0, 0)), answer.text


@pytest.mark.row("S73")
def test_the_service_stores_no_more_than_its_limit(serve: Serve, database: str) -> None:
    client = serve(READS, file_limits=FileLimits(of_all=3000), db=database)
    assert kickoff(client, {"report": address(client, b"a" * 2000)}).status_code == 200
    assert upload(client, b"a" * 2000).status_code == 507
    assert upload(client, b"a" * 500).status_code == 200


@pytest.mark.parametrize(
    "form", [{}, {"file": (None, "no file name")}, {"other": ("a", b"a")}, {"file": ("a", b"a"), "b": ("a", b"a")}]
)
@pytest.mark.parametrize(("dialect", "code"), [("spec", 400), ("live", 422)])
def test_an_upload_needs_one_file(serve: Serve, database: str, form: dict[str, Any], dialect: str, code: int) -> None:
    client = serve(READS, db=database, dialect=dialect)
    assert client.session.post(f"{client.url}/files", files=form or None, timeout=PATIENCE).status_code == code
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        answer = client.session.post(f"{client.url}/files", data=b"y", headers={"Content-Type": kind}, timeout=PATIENCE)
        assert answer.status_code == code
    assert stored(database) == (0, 0)


def begun(client: Client, sent: int, declared: int = 10 * PIECE) -> socket.socket:
    """Send the beginning of an upload."""
    host, port = client.url.removeprefix("http://").split(":")
    link = socket.create_connection((host, int(port)), timeout=PATIENCE)
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    lines = f"POST /files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\nContent-Length: {declared}\r\n"
    link.sendall(f"{lines}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + head + b"a" * sent)
    return link


@pytest.mark.row("S74")
def test_an_upload_that_stops_in_the_middle_is_no_file(serve: Serve, database: str) -> None:
    client = serve(READS, db=database)
    with begun(client, 2 * PIECE + 1):
        eventually(lambda: stored(database) == (1, 2), "two pieces")
    eventually(lambda: stored(database) == (0, 0), "the end of the upload")


@pytest.mark.row("S74")
def test_an_upload_that_is_too_slow_is_refused(serve: Serve, database: str) -> None:
    client = serve(READS, body_seconds=0.2, db=database)
    with begun(client, 100) as link:
        assert b" 408 " in link.recv(100)
    eventually(lambda: stored(database) == (0, 0), "the end of the upload")


@pytest.mark.row("S75")
def test_slow_uploads_delay_no_kickoff(serve: Serve) -> None:
    client = serve({"tasks": [{"id": "a", "output": "done"}]}, user_tokens=TOKENS)
    links = [begun(client, 100) for _ in range(200)]
    try:
        codes: list[bytes] = []

        def answered() -> bool:
            for link in list(links):
                link.settimeout(0.01)
                try:
                    codes.append(link.recv(12))
                except TimeoutError:
                    continue
                links.remove(link)
                link.close()
            return len(links) == OF_ONE

        eventually(answered, "all but the owner's share refused")
        assert set(codes) == {b"HTTP/1.1 429"}
        for _ in range(20):
            assert client.until(client.post("/kickoff", {}).json()["kickoff_id"], "completed")
        assert upload(client).status_code == 429
        assert upload(client.holding(TOKENS[0][1])).status_code == 200
        others = [begun(client.holding(TOKENS[0][1]), 100) for _ in range(AT_ONCE - OF_ONE)]
        links += others
        eventually(lambda: upload(client.holding(TOKENS[1][1])).status_code == 503, "no place for anybody")
    finally:
        for link in links:
            link.close()
    eventually(lambda: upload(client).status_code == 200, "room for an upload")


def test_files_vanish_with_their_execution_or_after_an_unused_hour(serve: Serve, database: str) -> None:
    client = serve(READS, db=database)
    started = kickoff(client, {"report": address(client)}).json()["kickoff_id"]
    client.until(started, "completed")
    address(client)
    with closing(Database(database)) as opened:
        forget_unused_files(opened, before=opened.now() - 3600)
        assert stored(database) == (2, 2)
        for execution_id, state in (("running", State.RUNNING), ("over", State.FAILED)):
            put(opened, execution_id, state=state, crew="other")
            Files(opened, FileLimits()).begin(OF_EXECUTION + execution_id, 1)
        assert stored(database)[0] == 4
        with opened.writing() as connection:
            connection.execute(update(files).values(changed_at=files.c.changed_at - 3601))
        forget_unused_files(opened, before=opened.now() - 3600)
        assert stored(database) == (2, 1), "the file that a running execution is sending remains"
        with opened.writing() as connection:
            connection.execute(update(executions).values(aged_from=1.0, state=State.COMPLETED))
        forget_unused_files(opened, before=opened.now() - 3600)
        assert stored(database) == (1, 1)
        assert forget_old(opened, before=2.0) == 3
    assert stored(database) == (0, 0)


def test_old_files_are_deleted_in_small_transactions(tmp_path: Path) -> None:
    path = str(new_sqlite(tmp_path / "x.db"))
    left: list[int] = []

    def is_stopping() -> bool:
        left.append(stored(path)[1])
        return False

    with closing(Database(path)) as opened:
        put(opened, "old", state=State.COMPLETED, aged_from=1.0)
        put(opened, "new", state=State.COMPLETED, aged_from=3.0)
        for execution_id in ("old", "new"):
            file = Files(opened, FileLimits()).begin("ann", 10)
            for _ in range(10):
                file.add(b"x")
            file.complete()
            with opened.writing() as connection:
                assert take(connection, "ann", [file.id], into=execution_id)
        assert forget_old(opened, before=2.0, is_stopping=is_stopping) == 1
    assert max(before - after for before, after in pairwise(left)) == PIECES
    assert (left[0], stored(path)) == (20, (1, 10))


@pytest.mark.row("S76")
def test_files_are_there_after_a_review_and_a_restart(serve: Serve, database: str) -> None:
    client = serve(REVIEWED, db=database)
    started = kickoff(client, {"report": address(client)}).json()["kickoff_id"]
    assert client.until(started, "pending")["task_output"] == expected(TEXT)
    assert client.resume(started).status_code == 200
    assert client.until(started, "completed")["result"]["output"] == expected(TEXT)


@pytest.mark.row("S76")
def test_a_continued_execution_has_equal_files(serve: Serve, database: str) -> None:
    failing = {"tasks": [{"id": "a", "output": "{report}"}, {"id": "b", "error": "no", "output": "{report.size}"}]}
    client = serve(failing, db=database)
    started = kickoff(client, {"report": address(client)}).json()["kickoff_id"]
    client.until(started, "error")
    other = kickoff(client, {"report": address(client, b"other")}, continueFrom=started)
    assert (other.status_code, "different files" in other.text) == (422, True)
    assert client.post("/kickoff", {"continueFrom": started}).status_code == 422
    again = kickoff(client, {"report": address(client)}, continueFrom=started)
    assert again.status_code == 200, again.text
    tasks = client.get(f"/executions/{again.json()['kickoff_id']}").json()["tasks"]
    assert tasks[0]["output"] == TEXT.decode()


def test_the_inputs_name_the_files(serve: Serve) -> None:
    named = {"inputs": ["report"], "tasks": [{"id": "a", "output": "{report.sha256}"}]}
    client = serve(named)
    assert client.get("/inputs").json()["files"] == ["report"]
    assert client.post("/kickoff", {}).status_code == 422
    assert kickoff(client, {"report": address(client)}).status_code == 200
