"""Row S7: a crew that misbehaves ends as an error with the reason, and the others go on.

The crews here run inside the service; what a crew in a process of its own can do is tested with the CrewAI crews.
"""

from __future__ import annotations

import logging
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Serve, an_hour_passes, eventually, figure
from databases import put
from sampling import crossed
from stand_in_crew import StandInCrew
from test_service_owners import Asking

from crew_service.engine import runner
from crew_service.engine.crew import (
    Cancelled,
    Completed,
    Job,
    PendingReview,
    Report,
    StepDone,
    TaskDone,
    TaskOutput,
    TaskStarted,
)
from crew_service.storage.database import Database
from crew_service.storage.states import State
from scripts.stack.waiting import FACTOR, PATIENCE

pytestmark = pytest.mark.waits


class Unruly(StandInCrew):
    """Does what its input `behaviour` names."""

    inputs = required = ("behaviour",)

    def __init__(self, **behaviours: Callable[[Job, Report], Any]) -> None:
        self.behaviours = behaviours

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        report(TaskStarted("only_task", "Agent"))
        output = self.behaviours[job.inputs["behaviour"]](job, report)
        report(TaskDone(TaskOutput(task_id="only_task", agent="Agent", output=output, execution_time=0.0)))
        return Completed(output)


def good(job: Job, report: Report) -> str:
    return "fine"


def start(client: Client, behaviour: str) -> str:
    answer = client.post("/kickoff", {"inputs": {"behaviour": behaviour}})
    assert answer.status_code == 200, answer.text
    return answer.json()["kickoff_id"]


def the_service_goes_on(client: Client) -> bool:
    return client.until(start(client, "good"), "completed")["result"]["output"] == "fine"


@pytest.mark.row("S7")
@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (lambda job, report: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda job, report: sys.exit(3), "SystemExit: 3"),
        (lambda job, report: job.inputs["absent"], "KeyError: 'absent'"),
        (lambda job, report: (_ for _ in ()).throw(KeyboardInterrupt), "KeyboardInterrupt: "),
        (lambda job, report: (_ for _ in ()).throw(ValueError("\ud800 half a pair")), "ValueError: ? half a pair"),
    ],
)
def test_a_crew_that_raises_or_exits_fails_with_the_reason(
    serve: Serve, behaviour: Callable[[Job, Report], Any], error: str
) -> None:
    client = serve(crew=Unruly(good=good, bad=behaviour), workers=1)
    record = client.until(start(client, "bad"), "error")
    assert record["error"] == error
    assert the_service_goes_on(client)


@pytest.mark.long
@pytest.mark.row("S7")
def test_the_time_limit_ends_hanging_crews_and_frees_their_places(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GRACE", 0.2)
    released = threading.Event()
    late: list[type] = []

    def hang(job: Job, report: Report) -> str:
        released.wait(PATIENCE)  # deaf to its cancellation
        try:
            report(StepDone(result="too late"))
        except Cancelled as error:
            late.append(type(error))
            raise
        return "never"

    client = serve(crew=Unruly(good=good, hang=hang), workers=1, time_limit=FACTOR)
    hanging = start(client, "hang")
    record = client.until(hanging, "error")
    assert record["error"] == f"TimeLimitExceeded: the execution took longer than {FACTOR:g} seconds"
    assert record["execution_time"] >= FACTOR
    assert the_service_goes_on(client)
    released.set()
    eventually(lambda: late, "the refusal of the late report")
    assert client.status(hanging) == record


@pytest.mark.row("S7")
def test_the_time_limit_excludes_the_wait_for_a_person(serve: Serve, tmp_path: Path) -> None:
    scenario = {"tasks": [{"id": "draft_task", "human_input": True, "output": "x"}]}
    client = serve(scenario, time_limit=60.0)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    an_hour_passes(tmp_path / "service.db")
    client.resume(kickoff_id)
    client.until(kickoff_id, "completed")


@pytest.mark.row("S7")
def test_a_stopped_crew_is_notified_at_once(serve: Serve) -> None:
    began, heard = threading.Event(), threading.Event()

    def patient(job: Job, report: Report) -> str:
        began.set()
        job.cancelled.wait(PATIENCE)
        heard.set()
        job.cancelled.raise_if_set()
        return "never"

    client = serve(crew=Unruly(patient=patient))
    kickoff_id = start(client, "patient")
    assert began.wait(PATIENCE)
    client.post(f"/stop/{kickoff_id}")
    assert heard.wait(PATIENCE)
    assert client.status(kickoff_id)["error"] == "Stopped on request"


@pytest.mark.row("S7")
def test_megabytes_of_output_and_steps_arrive_while_others_go_on(serve: Serve) -> None:
    def flood(job: Job, report: Report) -> str:
        for _ in range(50):
            report(StepDone(result="y" * 100_000))
            logging.getLogger("a crew").debug("y" * 100_000)
        return "x" * 5_000_000

    client = serve(crew=Unruly(good=good, flood=flood))
    flooding = start(client, "flood")
    assert the_service_goes_on(client)
    assert len(client.until(flooding, "completed")["result"]["output"]) == 5_000_000


LARGE = 10_000_000  # characters
REQUESTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/stop/{}": lambda some_id: {},
    "/resume": lambda some_id: {"execution_id": some_id, "task_id": "t", "human_feedback": "x", "is_approve": True},
    "/resume_feedback": lambda some_id: {"flow_id": some_id, "feedback": "x"},
    "/kickoff": lambda some_id: {"inputs": {"topic": "AI"}, "continueFrom": some_id},
}


@pytest.mark.parametrize(("path", "whose"), crossed(REQUESTS, ["ended", "another's"]))
def test_a_refused_request_reads_no_large_output(serve: Serve, tmp_path: Path, path: str, whose: str) -> None:
    ann = serve(crew=Asking(), user_tokens=[("ann", "anns-token-0123456789")]).holding("anns-token-0123456789")
    task = {"task_id": "t", "output": "x" * LARGE, "agent": "", "execution_time": 1.0}
    values = {"asked": ["t"], "last_task": task, "output": task["output"], "tasks": [task]}
    gate = {**task, "key": "t", "state": {}, "rounds": []}
    with closing(Database(str(tmp_path / "service.db"))) as database:
        put(database, "ended", owner="ann", state=State.COMPLETED, **values)
        put(database, "another's", owner="bob", state=State.WAITING, **values, gate=gate)
    del task, values, gate
    tracemalloc.start()
    try:
        answer = ann.post(path.format(whose), REQUESTS[path](whose))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 400 <= answer.status_code < 500
    assert most < LARGE


@pytest.mark.parametrize("path", ["/stop/{}", "/resume"])
def test_a_refused_stop_or_answer_does_not_wait_for_writers(serve: Serve, tmp_path: Path, path: str) -> None:
    client = serve(crew=Asking())
    with closing(Database(str(tmp_path / "service.db"))) as database:
        put(database, "ended", state=State.COMPLETED, asked=["t"], output="x", tasks=[])
        with database.writing():
            answer = client.post(path.format("ended"), REQUESTS[path]("ended"))
    assert answer.status_code in (400, 409)


def test_a_stop_reads_no_large_draft(serve: Serve, tmp_path: Path) -> None:
    client = serve({"tasks": [{"id": "draft_task", "human_input": True, "output": "x" * LARGE}]})
    kickoff_id = client.kickoff()
    eventually(lambda: figure(client, 'executions{state="waiting"}') == 1, "the question")  # without its draft
    tracemalloc.start()
    try:
        assert client.post(f"/stop/{kickoff_id}").status_code == 200
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < LARGE


def test_values_that_are_no_json_are_reported_as_text(serve: Serve) -> None:
    class Odd(Unruly):
        def run(self, job: Job, report: Report) -> Completed | PendingReview:
            return Completed("x", {"nan": float("nan"), "set": {1}, "half": "\ud800"})

    client = serve(crew=Odd(), dialect="live")
    record = client.until(start(client, "x"), "SUCCESS")
    assert record["result_json"] == {"nan": None, "set": "{1}", "half": "?"}
