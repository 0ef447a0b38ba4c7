"""Against the real crew service, in both dialects, through a proxy that disturbs every other call."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from airflow.providers.common.compat.sdk import AirflowException
from faults.proxy import ALL_FAULTS, FaultProxy
from faults.server import FaultServer
from faults.wire import CLOSE, NoReply, Reply, Request
from sampling import crossed
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from scripts.stack.waiting import PATIENCE

local = pytest.importorskip("crew_service.local", reason="needs the crew service")

downloads = pytest.importorskip("crew_service.http.downloads", reason="needs the crew service")
FileLimits = pytest.importorskip("crew_service.settings", reason="needs the crew service").FileLimits

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.slow]
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "notes_task", "agent": "Researcher", "seconds": 0.1, "output": "Notes"},
        {"id": "only_task", "agent": "Writer", "seconds": 0.1, "output": "All on {topic}"},
    ],
}
FAULTS = [fault for fault in ALL_FAULTS if fault.name != "silence"]


@pytest.mark.row("N1", "N7", "N11")
@pytest.mark.parametrize(("dialect", "deferrable"), crossed(["spec", "live"], [False, True]))
def test_each_execution_starts_once_and_ends_with_its_own_result(
    connect: Connect, tmp_path: Path, dialect: str, deferrable: bool
) -> None:
    db = tmp_path / "service.db"
    with (
        local.running_service(scenario=SCENARIO, dialect=dialect, db=db) as service,
        FaultProxy(service.url, seed=20261120, rate=0.5, faults=FAULTS) as proxy,
    ):
        connect(proxy.url, token=service.token, idempotency_keys=True)
        records = [_until_it_succeeds(f"topic {number}", deferrable) for number in range(4)]
        disturbed = {each.row for each in proxy.injected}
    assert [record["output"] for record in records] == [f"All on topic {number}" for number in range(4)]
    with closing(sqlite3.connect(db)) as database:
        assert database.execute("select count(*) from executions").fetchone() == (4,)
    assert len(disturbed) >= 3


def _until_it_succeeds(topic: str, deferrable: bool, tries: int = 15) -> Any:
    """Try again as Airflow does, with what the earlier tries have left behind."""
    operator = CrewKickoffOperator(
        task_id="kickoff",
        inputs={"topic": topic},
        wait_for_completion=True,
        deferrable=deferrable,
        poll_interval=0.05,
        on_unknown_outcome="fail",
    )
    task_run = TaskRun(retries=tries)
    for _ in range(tries):
        try:
            return run(operator, task_run)
        except AirflowException:
            task_run.retry()
    raise AssertionError(f"{topic} did not succeed within {tries} tries")


@pytest.mark.parametrize(("dialect", "deferrable"), crossed(["spec", "live"], [False, True]))
def test_a_retry_goes_on_from_the_task_that_failed(
    connect: Connect, tmp_path: Path, dialect: str, deferrable: bool
) -> None:
    def service(**last: Any) -> Any:
        notes, last_task = SCENARIO["tasks"]
        tasks = [{**notes, "tokens": 100}, {**last_task, "tokens": 10, **last}]
        return local.running_service(scenario={"tasks": tasks}, dialect=dialect, db=tmp_path / "service.db")

    operator = CrewKickoffOperator(
        **{"task_id": "kickoff", "inputs": {"topic": "tea"}, "wait_for_completion": True, "deferrable": deferrable},
        **{"poll_interval": 0.05, "max_total_tokens": 115},
    )
    task_run = TaskRun(retries=5)
    with service(error="no ink") as failing:
        connect(failing.url, token=failing.token, idempotency_keys=True)
        with pytest.raises(AirflowException, match="no ink"):
            run(operator, task_run)
    with service() as repaired:
        connect(repaired.url, token=repaired.token, idempotency_keys=True)
        record = run(operator, task_run.retry())
    assert record["output"] == "All on tea"
    with closing(sqlite3.connect(tmp_path / "service.db")) as database:
        found = database.execute("select id, continued_from, tokens from executions order by created_at").fetchall()
    (first, none, before), (_, continued_from, after) = found
    assert (none, before, continued_from, after) == (None, 100, first, 10)


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_chinese_inputs_may_be_as_large_as_the_limit(connect: Connect, tmp_path: Path, dialect: str) -> None:
    with local.running_service(scenario=SCENARIO, dialect=dialect, db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        topic = "茶" * 340_000  # 1,020,000 bytes of 1,048,576
        operator = CrewKickoffOperator(
            task_id="kickoff", inputs={"topic": topic}, wait_for_completion=True, poll_interval=0.05
        )
        assert run(operator, TaskRun())["output"] == f"All on {topic}"


def test_a_key_means_the_same_however_a_body_is_escaped(connect: Connect, tmp_path: Path) -> None:
    with local.running_service(scenario=SCENARIO, db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        headers = {"Authorization": f"Bearer {service.token}", "Idempotency-Key": "key-1"}
        body = {"inputs": {"topic": "茶"}}
        escaped = requests.post(f"{service.url}/kickoff", json=body, headers=headers, timeout=PATIENCE)
        assert b"\\u8336" in escaped.request.body
        assert CrewHook().kickoff({"topic": "茶"}, idempotency_key="key-1") == escaped.json()["kickoff_id"]


def test_half_of_a_surrogate_pair_starts_nothing(connect: Connect, tmp_path: Path) -> None:
    with local.running_service(scenario=SCENARIO, db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        said = r"^POST /kickoff returned 400: .* has an unpaired surrogate.*No execution was started"
        with pytest.raises(CrewTaskFailed, match=said):
            run(CrewKickoffOperator(task_id="kickoff", inputs={"topic": "\ud83d"}), TaskRun())


def test_the_first_run_of_the_quickstart_prints_no_warning(
    connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with local.running_service(db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        operator = CrewKickoffOperator(
            task_id="article", inputs={"topic": "tea", "review": "no"}, wait_for_completion=True, poll_interval=0.05
        )
        record = run(operator, TaskRun())
    assert record["state"] == "completed"
    said = "".join(capsys.readouterr()) + caplog.text  # where Airflow logs to depends on its version
    assert "Started execution" in said
    assert "did not ask for" not in said


def test_the_quickstart_shows_what_the_service_answers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text("utf-8")
    with local.running_service() as service:
        headers = {"Authorization": f"Bearer {service.token}"}
        answer = requests.get(f"{service.url}/inputs", headers=headers, timeout=PATIENCE).text
    assert f"/inputs\n{answer}\n```" in page


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_file_reaches_the_crew_as_it_is(connect: Connect, tmp_path: Path, dialect: str) -> None:
    report, content = tmp_path / "report.pdf", b"%PDF-1.7 \x00" + bytes(range(256)) * 8000
    report.write_bytes(content)
    shown = {"tasks": [{"id": "read_task", "output": "{report.size} {report.sha256} on {topic}"}]}
    with local.running_service(scenario=shown, dialect=dialect) as service:
        connect(service.url, token=service.token)
        given = {"task_id": "kickoff", "inputs": {"topic": "tea"}, "wait_for_completion": True, "poll_interval": 0.05}
        operator = CrewKickoffOperator(**given, files={"report": report.as_uri()})
        record = run(operator, TaskRun())
        assert record["output"] == f"{len(content)} {hashlib.sha256(content).hexdigest()} on tea"
        with pytest.raises(AirflowException, match=r"takes no file named 'page'; it takes report. Nothing was started"):
            run(CrewKickoffOperator(**given, files={"page": report}), TaskRun())


@pytest.mark.row("N32")
@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_an_address_signed_anew_finds_the_running_execution(
    connect: Connect, server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    monkeypatch.setattr(downloads, "is_public", lambda host: True)
    scenario = {"tasks": [{"id": "read_task", "output": "{report.size}"}]}
    arrived: list[Request] = []
    with (
        local.running_service(scenario=scenario, dialect=dialect, allow_file_urls=True) as service,
        FaultServer() as bucket,
    ):
        bucket.on("GET /report.pdf*", Reply(body=b"%PDF"))

        def forward(request: Request) -> Reply | NoReply:
            """Pass a request on; the response to the first kickoff is lost, and the bucket speaks no TLS."""
            passed_on = ("authorization", "idempotency-key", "content-type")
            headers = {name: value for name, value in request.headers.items() if name in passed_on}
            body = request.body.replace(b"https://127.0.0.1", b"http://127.0.0.1") or None
            url = f"{service.url}{request.target}"
            answer = requests.request(request.method, url, data=body, headers=headers, timeout=PATIENCE)
            if request.method == "POST":
                arrived.append(request)
            return NoReply(CLOSE) if len(arrived) == 1 else Reply(status=answer.status_code, body=answer.content)

        server.on("GET /*", forward).on("POST /kickoff", forward)
        connect(server.url, token=service.token, idempotency_keys=True)
        address = f"https://127.0.0.1:{bucket.port}/report.pdf?X-Amz-Signature="

        def kickoff(signature: str) -> CrewKickoffOperator:
            given: dict[str, Any] = {"inputs": {}, "wait_for_completion": True, "poll_interval": 0.05}
            return CrewKickoffOperator(task_id="kickoff", files={"report": f"{address}{signature}"}, **given)

        task_run = TaskRun()
        with pytest.raises(AirflowException, match="A retry of this task sends the kickoff again"):
            run(kickoff("first"), task_run)
        record = run(kickoff("second"), task_run.retry())
    assert record["output"] == "4"
    assert [each.target for each in bucket.requests] == ["/report.pdf?X-Amz-Signature=first"]
    assert len(arrived) == 2


@pytest.mark.row("S73")
@pytest.mark.parametrize("size", [100, 30_000_000, pytest.param(2**32, marks=pytest.mark.long)])
def test_a_file_that_is_too_large_is_refused_in_words(connect: Connect, tmp_path: Path, size: int) -> None:
    report = tmp_path / "report.pdf"
    with report.open("wb") as made:
        made.truncate(size)
    with local.running_service(
        scenario={"tasks": [{"id": "read_task", "output": "{report.size}"}]}, file_limits=FileLimits(of_file=99)
    ) as service:
        connect(service.url, token=service.token)
        with pytest.raises(CrewTaskFailed, match=r"is too large for the service: .*at most 99 bytes"):
            run(CrewKickoffOperator(task_id="kickoff", inputs={}, files={"report": report}), TaskRun())


@pytest.mark.parametrize(("dialect", "deferrable"), crossed(["spec", "live"], [False, True]))
def test_what_a_crew_writes_is_brought_home(connect: Connect, tmp_path: Path, dialect: str, deferrable: bool) -> None:
    texts = {"report.md": "All on {topic}", "charts/a.svg": "<svg/>"}
    written = {"tasks": [{"id": "write_task", "output": "done", "files": texts}]}
    with local.running_service(scenario=written, dialect=dialect) as service:
        connect(service.url, token=service.token)
        given = {"inputs": {"topic": "tea"}, "wait_for_completion": True, "poll_interval": 0.05}
        folder = tmp_path / "run"
        operator = CrewKickoffOperator(task_id="kickoff", **given, deferrable=deferrable, files_to=f"{folder}/")
        task_run = TaskRun()
        record = run(operator, task_run)
    paths = {each["name"]: each["path"] for each in record["files"]}
    assert paths == {name: f"{folder}/{name}" for name in texts}
    assert (folder / "report.md").read_text() == "All on tea"
    assert (folder / "charts/a.svg").read_text() == "<svg/>"
