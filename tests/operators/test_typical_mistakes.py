"""Twelve typical mistakes: each ends in one sentence that names the mistake and tells the way out."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import Connect, run

from airflow_crew_provider.compat import version
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTryFailed
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("simulated_airflow")
LONGEST = 600
WAITS = {"wait_for_completion": True, "poll_interval": 0.05}
Mistake = Callable[[], Any]


class DataFrame:
    """A table as pandas has it: neither a mapping nor a sequence."""


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {"topic": "tea"}, "deferrable": False, **more})


def fails_with(mistake: Mistake, *words: str) -> None:
    """The mistake ends in an error whose text is one line and holds all the words."""
    with pytest.raises(Exception) as error:
        mistake()
    text = str(error.value)
    assert "\n" not in text.strip()
    assert len(text) < LONGEST
    for word in words:
        assert word in text


@pytest.fixture(autouse=True)
def a_crew(server: FaultServer) -> None:
    server.on("POST /kickoff", {"kickoff_id": "k-1"}).on("GET /inputs", {"inputs": ["topic"]})


@pytest.fixture
def plain_http() -> Iterator[str]:
    """The name and port of a web server that speaks no TLS."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_misspelt_parameter() -> None:
    with pytest.raises(
        (TypeError, AirflowException), match=r"CrewKickoffOperator(.|\n)*pol_interval"
    ):  # the words are Airflow's
        kickoff(pol_interval=5)


def test_https_where_the_service_speaks_http(plain_http: str, connect: Connect) -> None:
    connect(f"https://{plain_http}", timeout=PATIENCE, kickoff_timeout=PATIENCE)
    fails_with(lambda: run(kickoff()), "write http:// before it", "No execution was started")


def test_a_host_without_a_scheme(plain_http: str, connect: Connect) -> None:
    connect(plain_http, timeout=PATIENCE, kickoff_timeout=PATIENCE)
    fails_with(
        lambda: run(kickoff()),
        "a Host without a scheme means https; if you mean http, write http://",
        "No execution was started",
    )


def test_a_web_page_where_the_crew_is_expected(server: FaultServer) -> None:
    server.on("GET /inputs", Reply(body="<!DOCTYPE html><title>Sign in</title>"))
    with pytest.raises(CrewTryFailed, match=r"Sign in.*this is not a crew deployment.*No execution was started"):
        run(kickoff())


def test_a_text_where_an_object_is_expected(server: FaultServer) -> None:
    fails_with(
        lambda: run(kickoff(inputs="topic: tea")), "inputs: must be an object (a dict), not str", "Nothing was sent"
    )
    assert server.requests == []


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), DataFrame()], ids=["datetime", "pandas"])
def test_a_datetime_or_a_table_in_the_inputs(server: FaultServer, value: Any) -> None:
    kind = type(value).__name__
    fails_with(
        lambda: run(kickoff(inputs={"topic": [value]})), f"inputs.topic[0]: {kind} is not JSON; convert it first"
    )
    assert server.requests == []


def test_an_id_that_the_service_does_not_know(server: FaultServer, impatient: None) -> None:
    server.on("GET /status/k-9", Reply(status=404, body={"detail": "no such execution"}))
    wait = CrewStatusSensor(task_id="wait", kickoff_id="k-9", poke_interval=0.05, deferrable=False)
    fails_with(lambda: run(wait), "k-9", "Check the id, and whether the crew")


REVIEWS = "airflow_crew_provider.review.airflow_form"


def test_a_review_before_airflow_3_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, REVIEWS, raising=False)
    monkeypatch.setattr(version, "RELEASE", (3, 0))
    review = partial(__import__, REVIEWS)
    fails_with(review, "needs Airflow 3.1 or newer", "pass the four fields to CrewResumeOperator")


@pytest.mark.since_airflow("3.1")
def test_a_review_import_failing_otherwise_names_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, REVIEWS, raising=False)
    monkeypatch.setitem(sys.modules, "airflow.providers.standard.operators.hitl", None)  # as where it is broken
    with pytest.raises(ImportError, match=r"import of airflow\.providers\.standard\.operators\.hitl halted"):
        __import__(REVIEWS)


def test_the_command_without_its_extra() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from crew_service.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert "pip install airflow-crew-service" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_time_of_a_wrong_type() -> None:
    fails_with(lambda: kickoff(timeout="an hour"), "timeout must be a number of seconds or a timedelta, not 'an hour'")


def test_a_connection_that_does_not_exist(server: FaultServer) -> None:
    fails_with(lambda: run(kickoff(crew_conn_id="crew_nowhere")), "crew_nowhere", "No execution was started")
    assert server.requests == []


def test_a_wrong_token(server: FaultServer) -> None:
    server.on("GET /inputs", Reply(status=401, body={"detail": "Invalid or missing authentication credentials"}))
    fails_with(lambda: run(kickoff()), "401", "crew_default", "No execution was started")


def sensor(**more: Any) -> CrewStatusSensor:
    return CrewStatusSensor(task_id="wait", deferrable=False, poke_interval=0.05, timeout=PATIENCE, **more)


@pytest.mark.parametrize("form", [lambda given: given, str], ids=["XCom", "template"])
def test_a_record_instead_of_its_id(server: FaultServer, form: Any) -> None:
    record = {"state": "completed", "kickoff_id": "k-1", "execution_id": "k-1", "output": LONG}
    fails_with(lambda: run(sensor(kickoff_id=form(record))), "but is a record: pass its field 'kickoff_id'")
    of_another = {"kickoff_id": "k-2", "execution_id": form(record)}
    fails_with(lambda: run(sensor(**of_another)), "execution_id must be an id, but is a record")
    assert not server.requests


LONG = "long" * 750_000
OUTPUT = {"output": LONG}
RESUME: dict[str, Any] = {"execution_id": "k-1", "crew_task_id": "t", "human_feedback": "", "is_approve": True}


@pytest.mark.parametrize(
    "mistake",
    [
        *(lambda given=given: run(sensor(kickoff_id=given)) for given in (OUTPUT, [OUTPUT], LONG)),
        *(lambda given=given: run(kickoff(restore_from=given)) for given in (OUTPUT, LONG)),
        lambda: run(kickoff(inputs={LONG: object()})),
        lambda: run(kickoff(inputs={"topic": {(LONG,): 1}})),
        lambda: run(kickoff(inputs={f"input {number}": 1 for number in range(100_000)}, crew_conn_id="crew_strict")),
        lambda: run(kickoff(meta=LONG)),
        lambda: run(kickoff(webhooks={LONG: "https://example.com"})),
        lambda: run(kickoff(crew_conn_id=LONG)),
        *(lambda given=given: run(kickoff(files={"report": given})) for given in (OUTPUT, LONG, f"/{LONG}")),
        lambda: run(kickoff(files={"report": f"nowhere://{LONG}"})),
        lambda: run(kickoff(files={LONG: "report.pdf"})),
        lambda: run(kickoff(inputs={LONG: 1}, files={LONG: "/report.pdf"})),
        *(lambda given=given: run(kickoff(output_to=given, **WAITS)) for given in (OUTPUT, f"nowhere://{LONG}")),
        *(lambda given=given: run(kickoff(files_to=given, **WAITS)) for given in (OUTPUT, f"nowhere://{LONG}")),
        *(lambda given=given: run(kickoff(output_schema=given, **WAITS)) for given in (LONG, {"type": LONG})),
        *(lambda name=name: run(kickoff(**{name: LONG}, **WAITS)) for name in ("max_total_tokens", "max_cost")),
        *(lambda name=name: kickoff(**{name: LONG}) for name in ("timeout", "on_unknown_outcome", "retry_from")),
        *(lambda name=name: run(CrewResumeOperator(task_id="t", **{**RESUME, name: OUTPUT})) for name in RESUME),
        lambda: run(CrewResumeOperator(task_id="t", review={**RESUME, "execution_id": OUTPUT})),
    ],
)
def test_a_message_never_repeats_all_of_a_long_value(connect: Connect, server: FaultServer, mistake: Mistake) -> None:
    connect(server.url, conn_id="crew_strict", kind="crew")
    with pytest.raises(Exception) as error:
        mistake()
    assert "long" * 100 not in str(error.value)
    assert len(str(error.value)) < 10 * LONGEST
    assert not server.sent("POST *")
