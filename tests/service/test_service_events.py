"""Event streaming: what happens in an execution, to one address, as live deployments send it."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest
from crew_client import GATED, PLAIN, SLOW, Client, Receiver, Serve, eventually
from stand_in_crew import StandInCrew

from crew_service.engine import machine
from crew_service.engine.crew import Cancelled, Completed, Job, Report, TaskStarted
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits
TOKEN = "stream-token-0123456789"


def streamed(receiver: Receiver) -> list[dict[str, Any]]:
    return [event for body in receiver.bodies("/events") for event in body["events"]]


def types(receiver: Receiver) -> list[str]:
    return [event["type"] for event in streamed(receiver)]


def hook(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"url": f"{receiver.url}/events", **more}


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_every_event_of_an_execution_is_streamed_with_its_token(serve: Serve, receiver: Receiver, dialect: str) -> None:
    client = serve(PLAIN, dialect=dialect)
    authentication = {"strategy": "bearer", "token": TOKEN}
    kickoff_id = client.kickoff(webhooks=hook(receiver, events=[], realtime=True, authentication=authentication))
    expected = ["crew_kickoff_started", "task_started", "agent_execution_completed", "task_completed"]
    eventually(lambda: types(receiver) == [*expected, "crew_kickoff_completed"], "every event")
    # What happens at once goes out at once: the start with the first task's, and the agent's answer with its task.
    assert [len(body["events"]) for body in receiver.bodies("/events")] == [2, 2, 1]
    assert all(headers["Authorization"] == f"Bearer {TOKEN}" for _, headers, _ in receiver.taken)
    for event in streamed(receiver):
        assert set(event) == {"id", "execution_id", "timestamp", "type", "data"}
        assert event["execution_id"] == kickoff_id
    assert len({event["id"] for event in streamed(receiver)}) == 5


def test_a_task_ends_and_the_next_begins_in_one_message(serve: Serve, receiver: Receiver) -> None:
    tasks = [{"id": name, "agent": name.title(), "output": name} for name in ("plan", "write")]
    client = serve({"tasks": tasks})
    kickoff_id = client.kickoff(webhooks=hook(receiver))
    client.until(kickoff_id, "completed")
    eventually(lambda: len(streamed(receiver)) == 8, "every event")
    between = receiver.bodies("/events")[1]["events"]
    assert [event["type"] for event in between] == ["agent_execution_completed", "task_completed", "task_started"]
    answer, ended, begun = (event["data"] for event in between)
    assert (answer["result"], ended["output"], begun["task"]) == ("plan", "plan", "write")


class Unlucky(StandInCrew):
    """A crew for which the machine has no file left at first."""

    isolation = "process"

    def __init__(self) -> None:
        self.errors = [OSError(errno.EMFILE, "Too many open files")]

    def run(self, job: Job, report: Report) -> Completed:
        if self.errors:
            raise self.errors.pop()
        return Completed("done")


def test_an_execution_that_began_late_streams_its_start_too(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PAUSE", 0.1)
    client = serve(crew=Unlucky())
    client.until(client.kickoff(webhooks=hook(receiver)), "completed")
    eventually(lambda: types(receiver) == ["crew_kickoff_started", "crew_kickoff_completed"], "start and end")


def test_only_the_types_that_were_asked_for_are_streamed(serve: Serve, receiver: Receiver) -> None:
    client = serve(GATED)
    kickoff_id = client.kickoff(webhooks=hook(receiver, events=["human_feedback_requested", "crew_kickoff_completed"]))
    client.until(kickoff_id, "pending")
    eventually(lambda: types(receiver) == ["human_feedback_requested"], "the question")
    client.resume(kickoff_id, webhooks=hook(receiver, events=["crew_kickoff_completed"]))
    eventually(lambda: types(receiver)[1:] == ["crew_kickoff_completed"], "the end")


def test_without_realtime_the_events_of_a_task_come_together(serve: Serve, receiver: Receiver) -> None:
    client = serve(PLAIN)
    client.kickoff(webhooks=hook(receiver, realtime=False))
    eventually(lambda: "crew_kickoff_completed" in types(receiver), "the end")
    assert [len(body["events"]) for body in receiver.bodies("/events")] == [4, 1]


def _failing(client: Client, receiver: Receiver) -> None:
    client.kickoff(webhooks=hook(receiver))


def _stopped(client: Client, receiver: Receiver) -> None:
    kickoff_id = client.kickoff(webhooks=hook(receiver))
    eventually(lambda: "task_started" in types(receiver), "the start")
    client.post(f"/stop/{kickoff_id}")


@pytest.mark.parametrize(
    ("scenario", "act", "error"),
    [
        ({"tasks": [{"id": "bad", "error": "no luck"}]}, _failing, "no luck"),
        (SLOW, _stopped, "Stopped on request"),
    ],
)
def test_a_failure_and_a_stop_are_streamed(
    serve: Serve, receiver: Receiver, scenario: dict[str, Any], act: Any, error: str
) -> None:
    act(serve(scenario), receiver)
    eventually(lambda: "crew_kickoff_failed" in types(receiver), "the failure")
    assert streamed(receiver)[-1]["data"] == {"error": error}


def test_a_stop_sends_the_events_that_were_held(serve: Serve, receiver: Receiver) -> None:
    has_begun = threading.Event()

    class Endless(StandInCrew):
        def run(self, job: Job, report: Report) -> Completed:
            report(TaskStarted("only_task"))
            has_begun.set()
            job.cancelled.wait()
            raise Cancelled

    client = serve(crew=Endless())
    kickoff_id = client.kickoff(webhooks=hook(receiver, realtime=False))
    assert has_begun.wait(PATIENCE)
    client.post(f"/stop/{kickoff_id}")
    eventually(lambda: types(receiver), "the events")
    assert types(receiver) == ["crew_kickoff_started", "task_started", "crew_kickoff_failed"]


@pytest.mark.parametrize(
    "bad",
    [
        "http://a",
        {},
        {"url": "http://a", "events": "all"},
        {"url": "http://a", "realtime": "yes"},
        {"url": "http://a", "authentication": {"strategy": "basic", "username": "a", "password": "b"}},
    ],
)
def test_a_stream_that_cannot_be_understood_is_refused(serve: Serve, bad: Any) -> None:
    client = serve(PLAIN)
    assert client.post("/kickoff", {"inputs": {"topic": "AI"}, "webhooks": bad}).status_code == 400
    assert client.post("/kickoff", {"inputs": {"topic": "AI"}, "webhooks": None}).status_code == 200
