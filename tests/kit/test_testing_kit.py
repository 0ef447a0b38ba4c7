"""The testing kit, used as a user would use it."""

from __future__ import annotations

import pytest

from airflow_crew_provider.exceptions import CrewExecutionFailed
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution
from airflow_crew_provider.testing import recorded, scenario
from airflow_crew_provider.wait.files import written
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import Watch

pytestmark = pytest.mark.waits


def finished(hook: CrewHook, kickoff_id: str) -> Execution:
    watch = Watch(kickoff_id=kickoff_id, started=0, poll_interval=0.05)
    outcome = Poller(hook).wait(watch)
    if outcome.kind == "failed":
        raise CrewExecutionFailed(kickoff_id, outcome.message)
    assert watch.progress.last is not None
    return watch.progress.last


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_scripted_crew_stands_behind_the_connection(scripted_crew, dialect):
    scripted_crew(scenario("Notes on {topic}", "All on {topic}"), dialect=dialect)
    hook = CrewHook()
    assert finished(hook, hook.kickoff({"topic": "tea"})).output == "All on tea"


def test_two_crews_stand_behind_two_connections(scripted_crew):
    scripted_crew(scenario("one"), crew_conn_id="crew_one")
    scripted_crew(scenario("two"), crew_conn_id="crew_two")
    outputs = [
        finished(hook, hook.kickoff({"topic": "tea"})).output for hook in (CrewHook("crew_one"), CrewHook("crew_two"))
    ]
    assert outputs == ["one", "two"]


def test_a_script_takes_and_gives_files(scripted_crew, tmp_path):
    script = scenario("{notes}", "{notes.size} bytes", files={"report.md": "All on {topic}: {notes}"})
    scripted_crew(script)
    (tmp_path / "notes.txt").write_text("hot water")
    hook = CrewHook()
    done = finished(hook, hook.kickoff({"topic": "tea"}, files={"notes": str(tmp_path / "notes.txt")}))
    assert (done.tasks[0].output, done.output) == ("hot water", "9 bytes")
    record = written(hook, done, str(tmp_path / "out"))
    assert [each["name"] for each in record["files"]] == ["report.md"]
    assert (tmp_path / "out" / "report.md").read_text() == "All on tea: hot water"


def test_a_script_can_fail(scripted_crew):
    scripted_crew(scenario("x", error="out of credit"))
    hook = CrewHook()
    with pytest.raises(CrewExecutionFailed, match="out of credit"):
        finished(hook, hook.kickoff({"topic": "tea"}))


@pytest.mark.parametrize("output", ["All on tea", '{"title": "Tea"}'])
def test_a_recorded_execution_can_be_replayed(scripted_crew, output):
    scripted_crew(scenario("Notes", output))
    hook = CrewHook()
    first = finished(hook, hook.kickoff({"topic": "tea"})).record()
    scripted_crew(recorded(first), crew_conn_id="crew_replay")
    replay = CrewHook("crew_replay")
    again = finished(replay, replay.kickoff({})).record()
    same = [(task["task_id"], task["agent"], task["output"]) for task in first["tasks"]]
    assert [(task["task_id"], task["agent"], task["output"]) for task in again["tasks"]] == same
    assert again["output"] == first["output"]


def test_only_a_completed_record_can_be_replayed():
    with pytest.raises(ValueError, match="pending"):
        recorded({"state": "pending"})


def test_the_demo_crew_takes_a_topic_and_whether_to_review(crew_service):
    assert CrewHook().get_inputs() == ["topic", "review"]
