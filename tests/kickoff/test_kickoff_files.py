"""Files are uploaded before the kickoff, which stays at most once: what is sent, and what a retry or a clear needs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException
from cryptography.fernet import Fernet
from faults.server import FaultServer
from faults.wire import CLOSE, NoReply, Reply, Request
from simulated_airflow import TOKEN, Connect, TaskRun, die_after_recording, run

from airflow_crew_provider.compat import encryption
from airflow_crew_provider.compat.version import masks_variables
from airflow_crew_provider.decorators.crew import crew_task
from airflow_crew_provider.exceptions import CrewFileError, CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.kickoff import files
from airflow_crew_provider.models import CrewInputs
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POST, UPLOAD = "POST /kickoff", "POST /files"
STARTED = {"kickoff_id": "k-1"}
TEXT = b"All on tea."
HASH = hashlib.sha256(TEXT).hexdigest()
URL = "https://crew.example/files/"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / 'the "report".pdf'
    path.write_bytes(TEXT)
    return path


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    """Stands for a live deployment, which gives nothing but an address."""
    server.on("GET /inputs", {"inputs": ["topic", "report"]})
    count = iter(range(100))
    server.on(UPLOAD, lambda _: Reply(body={"url": f"{URL}{next(count)}", "field_name": "report"}))
    server.on(POST, STARTED)


def kickoff(source: Any, **more: Any) -> CrewKickoffOperator:
    given = {"task_id": "kickoff", "inputs": {"topic": "AI"}, "files": {"report": source}, "deferrable": False}
    return CrewKickoffOperator(**{**given, "poll_interval": 0.05, **more})


def named(request: Request) -> Any:
    assert request.json["input_files"] == request.json["inputFiles"]
    return request.json["input_files"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_are_uploaded_as_forms_and_named_in_the_kickoff(server: FaultServer, report: Path, scheme: str) -> None:
    assert run(kickoff(f"{scheme}{report}"), TaskRun()) == "k-1"
    (upload,) = server.sent(UPLOAD)
    boundary = upload.headers["content-type"].removeprefix("multipart/form-data; boundary=")
    name, file, end = upload.body.split(f"--{boundary}".encode())[1:]
    assert name == b'\r\nContent-Disposition: form-data; name="field_name"\r\n\r\nreport\r\n'
    label = b'name="file"; filename="the %22report%22.pdf"\r\nContent-Type: application/octet-stream'
    assert file == b"\r\nContent-Disposition: form-data; " + label + b"\r\n\r\n" + TEXT + b"\r\n"
    assert end == b"--\r\n"
    assert upload.headers["authorization"] == f"Bearer {TOKEN}"
    assert named(server.sent(POST)[0]) == {"report": f"{URL}0"}


def test_web_addresses_are_passed_on_and_path_objects_are_paths(server: FaultServer, report: Path) -> None:
    web = "https://bucket.example/report.pdf?signature=1"
    run(kickoff(report, files={"report": report, "logo": web}), TaskRun())
    assert named(server.sent(POST)[0]) == {"logo": web, "report": f"{URL}0"}
    assert len(server.sent(UPLOAD)) == 1


def test_a_scheme_may_be_written_in_capitals(server: FaultServer, report: Path) -> None:
    given = {"report": f"FILE://{report}", "logo": "HTTPS://bucket.example/Logo.png?Signature=A"}
    run(kickoff("", files=given), TaskRun())
    assert named(server.sent(POST)[0]) == {"logo": "https://bucket.example/Logo.png?Signature=A", "report": f"{URL}0"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"report": "http://example.com/report.pdf"}, "is an http:// address; only https:// is passed on"),
        ({"report": "Http://example.com/report.pdf"}, "is an http:// address; only https:// is passed on"),
        ({"report": "reports/today.pdf"}, "is not an absolute path: 'reports/today.pdf'"),
        ({"report": ""}, "must be a path or an https:// address"),
        ({"report": 1}, "must be a path or an https:// address"),
        ({"topic": "/report.pdf"}, "'topic' is both in inputs and in files"),
        ({" ": "/report.pdf"}, "files has an empty name"),
        (["/report.pdf"], "files: must be an object"),
        (
            {"report": "/reports/caf\udce9.pdf"},
            r"files['report'] has a name that is not UTF-8: '/reports/caf\udce9.pdf'",
        ),
        ({"report": "s3://bucket/caf\udce9.pdf"}, "has a name that is not UTF-8: 's3://bucket/caf"),
        ({"report": "https://x.example/caf\udce9.pdf"}, "has a name that is not UTF-8: 'https://x.example/caf"),
        ({"caf\udce9": "/report.pdf"}, r"files['caf\udce9'] has a name that is not UTF-8: '/report.pdf'"),
    ],
)
def test_unsendable_files_are_refused_before_anything_is_sent(server: FaultServer, given: Any, problem: str) -> None:
    with pytest.raises(CrewTaskFailed, match=re.escape(problem)):
        run(kickoff("", files=given), TaskRun())
    assert server.requests == []


@pytest.mark.parametrize("upload", [True, False])
def test_a_file_with_a_latin_1_name_is_refused(server: FaultServer, tmp_path: Path, upload: bool) -> None:
    source = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.pdf")
    Path(source).write_bytes(TEXT)
    with pytest.raises((CrewTaskFailed, CrewInvalidInput), match="has a name that is not UTF-8") as error:
        CrewHook().upload("report", source) if upload else run(kickoff(source), TaskRun())
    str(error.value).encode()  # so that it can be logged
    assert server.requests == []


def test_a_file_in_a_folder_named_in_latin1_is_sent(server: FaultServer, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    task_run = TaskRun()
    with pytest.raises(AirflowException, match=r"caf\\udce9/report.pdf\) cannot be read: it does not exist") as error:
        run(kickoff(str(folder / "report.pdf")), task_run)
    str(error.value).encode()
    (folder / "report.pdf").write_bytes(TEXT)
    assert run(kickoff(str(folder / "report.pdf")), task_run.retry()) == "k-1"


@pytest.mark.row("A72")
@pytest.mark.parametrize("kind", ["missing", "empty", "a folder", "an unknown scheme"])
def test_an_unreadable_file_fails_the_try_and_retries_reread_it(server: FaultServer, report: Path, kind: str) -> None:
    source = {"a folder": report.parent, "an unknown scheme": "nowhere://bucket/report.pdf"}.get(kind, report)
    if kind == "missing":
        report.unlink()
    elif kind == "empty":
        report.write_bytes(b"")
    task_run = TaskRun()
    with pytest.raises(
        AirflowException, match=rf"File 'report' \({re.escape(str(source))}\) .*Nothing was started"
    ) as e:
        run(kickoff(source), task_run)
    assert not isinstance(e.value, CrewTaskFailed)
    assert not server.sent(POST)
    if kind in ("missing", "empty"):
        report.write_bytes(TEXT)
        assert run(kickoff(source), task_run.retry()) == "k-1"


@pytest.mark.row("A72")
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Reply(status=404, body={"detail": "Not Found"}), "this deployment takes no files"),
        (Reply(status=405, body={"detail": "Method Not Allowed"}), "this deployment takes no files"),
        (Reply(status=413, body={"detail": "at most 5 bytes"}), "is too large for the service: .*at most 5 bytes"),
        (Reply(status=413, body="<html>413 Request Entity Too Large</html>"), "is too large for the service"),
    ],
)
def test_a_file_that_is_never_taken_fails_the_task(
    server: FaultServer, report: Path, answer: Reply, problem: str
) -> None:
    server.on(UPLOAD, answer)
    with pytest.raises(CrewTaskFailed, match=rf"File 'report' .*{problem}.*Nothing was started"):
        run(kickoff(report), TaskRun())
    assert len(server.sent(UPLOAD)) == 1
    assert not server.sent(POST)


@pytest.mark.row("A70")
def test_an_upload_is_repeated_after_a_busy_or_lost_response(
    server: FaultServer, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAUSE", 0.01)
    busy = [Reply(status=status, body={}, headers={"Retry-After": "0.01"}) for status in (429, 503)]
    server.on(UPLOAD, *busy, NoReply(CLOSE), Reply(status=502, body="<html>"), {"url": f"{URL}9"})
    assert run(kickoff(report), TaskRun()) == "k-1"
    assert len(server.sent(UPLOAD)) == 5
    assert named(server.sent(POST)[0]) == {"report": f"{URL}9"}


def test_waiting_for_a_busy_service_ends_with_the_kickoff_timeout(
    server: FaultServer, connect: Connect, report: Path
) -> None:
    connect(server.url, kickoff_timeout=5)
    server.on(UPLOAD, Reply(status=429, body={"detail": "too many uploads"}, headers={"Retry-After": "30"}))
    with pytest.raises(AirflowException, match=r"was not uploaded: .*too many uploads\. Nothing was started"):
        run(kickoff(report), TaskRun())
    assert not server.sent(POST)


def test_what_arrives_damaged_is_not_used(server: FaultServer, report: Path) -> None:
    server.on(UPLOAD, {"url": URL, "size": len(TEXT), "sha256": hashlib.sha256(b"other").hexdigest()})
    with pytest.raises(AirflowException, match=r"arrived damaged. Nothing was started"):
        run(kickoff(report), TaskRun())


@pytest.mark.parametrize("size", [-1, 1])
def test_a_file_changing_while_read_is_not_used(
    server: FaultServer, report: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    real = Path.open

    def changing(path: Path, *args: Any, **more: Any) -> Any:
        if path == report:
            with real(path, "wb") as file:
                file.write((TEXT + b"!")[: len(TEXT) + size])
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "open", changing)
    with pytest.raises(AirflowException, match=r"changed while it was read. Nothing was started"):
        run(kickoff(report), TaskRun())
    assert not server.sent(POST)


@pytest.mark.row("A71")
@pytest.mark.parametrize("change", ["none", "changed", "missing"])
@pytest.mark.parametrize(
    "died",
    [True, pytest.param(False, marks=pytest.mark.since_airflow("3.0"))],  # before, a success leaves no record
)
def test_a_retry_with_an_execution_on_record_needs_no_file(
    server: FaultServer, report: Path, capsys: pytest.CaptureFixture[str], change: str, died: bool
) -> None:
    task_run = TaskRun()
    if died:
        die_after_recording(task_run, kickoff(report))
    else:
        run(kickoff(report), task_run)
    if change == "missing":
        report.unlink()
    elif change == "changed":
        report.write_bytes(b"All on coffee.")
    server.on("GET /status/k-1", {"kickoff_id": "k-1", "status": "running"})
    assert run(kickoff(report), task_run.retry()) == "k-1"
    assert len(server.sent(UPLOAD)) == len(server.sent(POST)) == 1
    problem = {"none": None, "changed": "has changed", "missing": "cannot be read: it does not exist"}[change]
    warned = "Execution k-1 continues with the file that was sent" in (written := capsys.readouterr().out)
    assert warned == (change != "none")
    assert problem is None or f"File 'report' ({report}) {problem}" in written
    report.write_bytes(b"All on cocoa.")
    server.on("POST /stop/k-1", {"stopped": True})
    run(kickoff(report), task_run.clear())
    assert b"All on cocoa." in server.sent(UPLOAD)[1].body
    assert named(server.sent(POST)[1]) == {"report": f"{URL}1"}


@pytest.mark.row("A70")
def test_a_worker_dying_between_upload_and_kickoff_starts_nothing(
    server: FaultServer, a_memory: Any, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    task_run = TaskRun()
    with monkeypatch.context() as patch:
        patch.setattr(a_memory, "set", die)
        with pytest.raises(KeyboardInterrupt):
            run(kickoff(report), task_run)
    assert (len(server.sent(UPLOAD)), len(server.sent(POST))) == (1, 0)
    assert run(kickoff(report), task_run.retry()) == "k-1"
    assert named(server.sent(POST)[0]) == {"report": f"{URL}1"}


@pytest.mark.row("A70")
def test_a_worker_death_before_the_record_causes_no_second_kickoff(
    server: FaultServer, a_memory: Any, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = a_memory.set

    def die(key: str, value: Any, **more: Any) -> None:
        if '"kickoff_id"' in value:
            raise KeyboardInterrupt
        keep(key, value, **more)

    task_run = TaskRun()
    with monkeypatch.context() as patch:
        patch.setattr(a_memory, "set", die)
        with pytest.raises(KeyboardInterrupt):
            run(kickoff(report), task_run)
    with pytest.raises(CrewTaskFailed, match="outcome is unknown"):
        run(kickoff(report), task_run.retry())
    assert (len(server.sent(UPLOAD)), len(server.sent(POST))) == (1, 1)


@pytest.mark.row("A70")
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_resent_kickoff_uses_the_recorded_file_addresses(
    server: FaultServer, connect: Connect, report: Path, is_gone: bool
) -> None:
    connect(server.url, idempotency_keys=True)
    again = [Reply(status=404, body={"detail": "The file for the input 'report' is not known."})] if is_gone else []
    server.on(POST, NoReply(CLOSE), *again, STARTED)
    task_run = TaskRun()
    with pytest.raises(AirflowException, match="A retry of this task sends the kickoff again"):
        run(kickoff(report), task_run)
    assert run(kickoff(report), task_run.retry()) == "k-1"
    posts = server.sent(POST)
    assert len({request.headers["idempotency-key"] for request in posts}) == 1
    assert [named(request)["report"] for request in posts] == [f"{URL}{n}" for n in ((0, 0, 1) if is_gone else (0, 0))]
    assert len(server.sent(UPLOAD)) == (2 if is_gone else 1)


@pytest.mark.row("A70")
def test_a_webhooks_credential_is_no_change_of_the_files(
    server: FaultServer, connect: Connect, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RECEIVER", '{"conn_type": "http", "password": "a-word"}')
    connect(server.url, idempotency_keys=True)
    gone = Reply(status=404, body={"detail": "The file for the input 'report' is not known."})
    server.on(POST, NoReply(CLOSE), gone, STARTED)
    task_run, webhooks = TaskRun(), {"human_input": {"url": "https://x.example/h", "conn_id": "receiver"}}
    with pytest.raises(CrewTryFailed):
        run(kickoff(report, webhooks=webhooks), task_run)
    assert run(kickoff(report, webhooks=webhooks), task_run.retry()) == "k-1"


def test_a_resent_kickoff_never_uses_changed_files(server: FaultServer, connect: Connect, report: Path) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, NoReply(CLOSE), Reply(status=404, body={"detail": "The file is not known."}), STARTED)
    task_run = TaskRun()
    with pytest.raises(AirflowException):
        run(kickoff(report), task_run)
    report.write_bytes(b"All on coffee.")
    with pytest.raises(CrewTaskFailed, match=r"not known\.\), and its files have changed since then"):
        run(kickoff(report), task_run.retry())
    assert len(server.sent(POST)) == 2


SIGNED = "https://bucket.example/report.pdf?version=1&X-Amz-Signature="


@pytest.mark.row("N32")
def test_a_resent_kickoff_names_the_web_address_sent_before(
    server: FaultServer, connect: Connect, log_text: Callable[[], str]
) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, NoReply(CLOSE), STARTED)
    task_run = TaskRun()
    with pytest.raises(AirflowException, match="A retry of this task sends the kickoff again"):
        run(kickoff(f"{SIGNED}first-one"), task_run)
    assert run(kickoff(f"{SIGNED}second-one"), task_run.retry()) == "k-1"
    first, second = server.sent(POST)
    assert (first.body, first.headers["idempotency-key"]) == (second.body, second.headers["idempotency-key"])
    assert "The address of file 'report' has changed after its \"?\". The kickoff is sent again as" in log_text()


@pytest.mark.parametrize(("status", "body"), [(400, "not fetched"), (422, "not fetched"), (404, "not known")])
def test_a_refused_old_address_is_replaced_under_the_key(
    server: FaultServer, connect: Connect, status: int, body: str
) -> None:
    connect(server.url, idempotency_keys=True)
    refused = Reply(status=status, body={"detail": f"The file for the input 'report' was {body}."})
    server.on(POST, NoReply(CLOSE), refused, STARTED)
    task_run = TaskRun()
    with pytest.raises(CrewTryFailed):
        run(kickoff(f"{SIGNED}first-one"), task_run)
    assert run(kickoff(f"{SIGNED}second-one"), task_run.retry()) == "k-1"
    posts = server.sent(POST)
    assert [named(each)["report"][len(SIGNED) :] for each in posts] == ["first-one", "first-one", "second-one"]
    assert len({each.headers["idempotency-key"] for each in posts}) == 1


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refused_address_that_is_unchanged_is_not_repeated(
    server: FaultServer, connect: Connect, status: int
) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, NoReply(CLOSE), Reply(status=status, body={"detail": "no"}), STARTED)
    task_run = TaskRun()
    for sent in (1, 2):
        with pytest.raises(CrewTryFailed):
            run(kickoff(f"{SIGNED}first-one"), task_run)
        assert len(server.sent(POST)) == sent
        task_run.retry()


def test_a_key_of_another_body_settles_no_address(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    used = Reply(status=422, body={"detail": "This Idempotency-Key was used before, with another body."})
    server.on(POST, NoReply(CLOSE), used)
    task_run = TaskRun()
    with pytest.raises(CrewTryFailed):
        run(kickoff(f"{SIGNED}first-one"), task_run)
    with pytest.raises(CrewTaskFailed, match=r"used before, with another body.*clear this task"):
        run(kickoff(f"{SIGNED}second-one"), task_run.retry())
    assert len(server.sent(POST)) == 2


@pytest.mark.row("A71")
@pytest.mark.parametrize(("document", "told"), [("1", False), ("2", True)])
def test_a_retry_tells_that_an_address_has_changed(
    server: FaultServer, log_text: Callable[[], str], document: str, told: bool
) -> None:
    task_run, address = TaskRun(), "https://bucket.example/download?document="
    die_after_recording(task_run, kickoff(f"{address}1"))
    server.on("GET /status/k-1", {"kickoff_id": "k-1", "status": "running"})
    assert run(kickoff(f"{address}{document}"), task_run.retry()) == "k-1"
    warning = "'report' has changed after its \"?\". Execution k-1 continues with the file that was sent"
    assert (warning in log_text()) == told
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A47")
def test_addresses_of_files_are_stored_sealed_and_never_shown(
    server: FaultServer,
    connect: Connect,
    variables: Any,
    report: Path,
    log_text: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(server.url, idempotency_keys=True)
    monkeypatch.setattr(encryption, "get_fernet", partial(Fernet, Fernet.generate_key()))
    server.on(UPLOAD, {"url": "https://bucket.example/up?sig=a-signature-of-an-upload"})
    echo = Reply(status=503, body={"detail": f"cannot read {SIGNED}a-signature-of-the-dag"})
    server.on(POST, NoReply(CLOSE), echo, STARTED)
    task_run, given = TaskRun(), {"report": f"{SIGNED}a-signature-of-the-dag", "page": str(report)}
    failures = []
    for _ in range(2):
        with pytest.raises(AirflowException) as failed:
            run(kickoff("", files=given), task_run)
        failures.append(str(failed.value))
        task_run.retry()
    stored = json.dumps([variables.kept, task_run.store.kept])
    (key,) = (value for name, value in variables.kept.items() if "secret" in name)
    assert masks_variables() != key.startswith(encryption.ENCRYPTED)
    assert run(kickoff("", files=given), task_run) == "k-1"
    assert len({request.body for request in server.sent(POST)}) == 1
    assert "a-signature" not in "".join([stored, json.dumps(task_run.xcom), log_text(), *failures])


@pytest.mark.parametrize("found", ["running", "unknown"])
def test_a_record_that_cannot_be_opened_still_starts_nothing_twice(
    server: FaultServer, connect: Connect, variables: Any, report: Path, found: str
) -> None:
    connect(server.url, idempotency_keys=True)
    server.on("GET /status/k-1", {"kickoff_id": "k-1", "status": "running"})
    server.on(POST, STARTED if found == "running" else NoReply(CLOSE), STARTED)
    task_run, given = TaskRun(), {"report": f"{SIGNED}first-one", "page": str(report)}
    if found == "running":
        die_after_recording(task_run, kickoff("", files=given))
    else:
        with pytest.raises(CrewTryFailed):
            run(kickoff("", files=given), task_run)
    for key in [each for each in variables.kept if "secret" in each]:
        del variables.kept[key]
    assert run(kickoff("", files=given), task_run.retry()) == "k-1"
    posts = server.sent(POST)
    assert len({each.headers["idempotency-key"] for each in posts}) == 1
    assert len(posts) == len(server.sent(UPLOAD)) == (1 if found == "running" else 2)


def test_changed_files_are_not_resent_without_their_addresses_on_record(
    server: FaultServer, connect: Connect, variables: Any, report: Path
) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POST, NoReply(CLOSE), STARTED)
    task_run = TaskRun()
    with pytest.raises(CrewTryFailed):
        run(kickoff(report), task_run)
    for key in [each for each in variables.kept if "secret" in each]:
        del variables.kept[key]
    report.write_bytes(b"All on coffee.")
    with pytest.raises(CrewTaskFailed, match="its files have changed since then"):
        run(kickoff(report), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.parametrize(
    "now",
    [
        {"files": None},
        {"files": {}},
        {"files": {"report": "https://bucket.example/new.pdf"}},
        {"files": None, "inputs": {"topic": "AI", "report": "All on tea."}},
    ],
    ids=["none", "empty", "web", "input"],
)
@pytest.mark.parametrize("again", ["clear", "retry"])
def test_a_new_kickoff_sends_only_files_that_its_dag_names(
    server: FaultServer, report: Path, now: Any, again: str
) -> None:
    server.on("POST /stop/k-1", {"status": "stopped"}).on(POST, STARTED, {"kickoff_id": "k-2"})
    task_run = TaskRun()
    run(kickoff(report), task_run)
    server.on("GET /status/k-1", {"status": "error", "error": "the file is no good"})
    assert run(kickoff(report, **now), getattr(task_run, again)()) == "k-2"
    assert server.sent(POST)[1].json.get("input_files", {}) == (now["files"] or {})


@pytest.mark.row("A70")
def test_a_resent_kickoff_answered_404_uploads_files_once_per_try(
    server: FaultServer, connect: Connect, report: Path
) -> None:
    """The service does not know the state that the Flow is to be restored from."""
    connect(server.url, idempotency_keys=True)
    unknown = Reply(status=404, body={"detail": "The state is not known"})
    server.on(POST, NoReply(CLOSE), *([unknown] * 4), STARTED)
    task_run, operator = TaskRun(retries=5), kickoff(report, restore_from="8f6c5d1e-0000-4000-8000-000000000000")
    with pytest.raises(CrewTryFailed):
        run(operator, task_run)
    unclear = "state is not known. It is unknown whether the service acted on an earlier request. A retry"
    for sent in (3, 5):
        with pytest.raises(CrewTryFailed, match=unclear):
            run(operator, task_run := task_run.retry())
        assert len(server.sent(POST)) == sent
    assert run(operator, task_run.retry()) == "k-1"
    posts = server.sent(POST)
    assert len({request.headers["idempotency-key"] for request in posts}) == 1
    assert [named(request)["report"] for request in posts] == [f"{URL}{n}" for n in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("status", [422, 429, 404])
def test_after_a_refusal_a_retry_uploads_the_files_again(server: FaultServer, report: Path, status: int) -> None:
    server.on(POST, Reply(status=status, body={"detail": "no"}), STARTED)
    task_run = TaskRun()
    with pytest.raises(AirflowException):
        run(kickoff(report), task_run)
    report.write_bytes(b"All on coffee.")
    assert run(kickoff(report), task_run.retry()) == "k-1"
    assert [named(request)["report"] for request in server.sent(POST)] == [f"{URL}0", f"{URL}1"]


def test_a_crew_naming_its_accepted_files_gets_no_others(server: FaultServer, report: Path) -> None:
    server.on("GET /inputs", {"inputs": ["topic"], "required": ["topic"], "files": ["page"]})
    with pytest.raises(
        CrewTaskFailed, match=r"The crew takes no file named 'report'; it takes page. Nothing was started"
    ):
        run(kickoff(report), TaskRun())
    assert not server.sent(UPLOAD)


def test_a_file_counts_as_a_required_input(server: FaultServer, report: Path) -> None:
    server.on("GET /inputs", {"inputs": ["topic", "report"], "required": ["topic", "report"], "files": []})
    assert run(kickoff(report), TaskRun()) == "k-1"


def test_the_hook_uploads_and_starts(server: FaultServer, report: Path) -> None:
    hook = CrewHook()
    assert hook.upload("report", str(report)) == f"{URL}0"
    assert hook.kickoff({"topic": "AI"}, files={"report": str(report)}) == "k-1"
    assert named(server.sent(POST)[0]) == {"report": f"{URL}1"}
    with pytest.raises(CrewFileError):
        hook.upload("report", "/nowhere.pdf")
    with pytest.raises(CrewInvalidInput):
        hook.upload("report", "nowhere.pdf")


@pytest.mark.parametrize(
    "wrong",
    [
        {"meta": ["no object"]},
        {"inputs": {"topic": object()}},
        {"inputs": {"id": "1"}},
        {"restore_from": ".."},
        {"webhooks": {"human_input": {}}},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_the_hook_uploads_nothing_for_an_unsendable_request(
    server: FaultServer, report: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(CrewInvalidInput, match=r"(?i)nothing was sent"):
        CrewHook().kickoff(**{"inputs": {"topic": "AI"}, "files": {"report": str(report)}, **wrong})
    assert not server.requests


def test_a_large_file_is_never_in_memory(server: FaultServer, tmp_path: Path) -> None:
    from airflow_crew_provider.client.blocking import LARGEST_PIECE, _Form

    size = 64 * 1024 * 1024
    path = tmp_path / "large"
    with path.open("wb") as made:
        made.truncate(size)
    tracemalloc.start()
    with files._opened("large", str(path)) as content:
        form = _Form(files.Upload("large", "large", content.size, content))
        sent = sum(map(len, form))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sent == len(form) > size
    assert peak < 8 * LARGEST_PIECE
    assert json.dumps(content.sha256) == json.dumps(hashlib.sha256(bytes(size)).hexdigest())


@pytest.mark.parametrize(
    ("of_task", "of_function", "sent"),
    [
        (["a"], CrewInputs({"topic": "tea"}), {"a": "task"}),
        (["a"], {"topic": "tea"}, {"a": "task"}),
        (["a", "b"], CrewInputs({"topic": "tea"}, {"b": f"{URL}function"}), {"a": "task", "b": "function"}),
        ([], CrewInputs({"topic": "tea"}, {"b": f"{URL}function"}), {"b": "function"}),
    ],
    ids=["none by the function", "no files", "both", "none by the task"],
)
@pytest.mark.parametrize("form", [lambda given: given, json.dumps], ids=["XCom", "template"])
def test_a_functions_files_are_sent_beside_its_tasks(
    server: FaultServer, of_task: list[str], of_function: Any, sent: dict[str, str], form: Any
) -> None:
    with DAG("dag"):
        made = crew_task(lambda: of_function, task_id="kickoff", files=form(dict.fromkeys(of_task, f"{URL}task")))()
    operator: Any = made.operator
    operator.wait_for_completion = False
    assert run(operator, TaskRun()) == "k-1"
    assert named(server.sent(POST)[0]) == {name: f"{URL}{whose}" for name, whose in sent.items()}
