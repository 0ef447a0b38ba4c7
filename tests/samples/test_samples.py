"""What earlier releases stored still loads: serialized triggers, events, records, and what tasks remember.

Each release has a folder with what its own code wrote (`stored_samples.py`); 0.1 kept neither states of a POST nor of a
question.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest
from stored_samples import HERE, MAKERS, REGISTRATION, Kept, execution_of

from airflow_crew_provider.api.values import record_of
from airflow_crew_provider.inbox import rows
from airflow_crew_provider.inbox.messages import InboxMessages
from airflow_crew_provider.inbox.rows import FlowRun, RegisteredTask, questions_in
from airflow_crew_provider.kickoff.post_record import Earlier, PostRecord
from airflow_crew_provider.models import ExecutionState
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.record import PostState, QuestionState, StoredPost, StoredQuestion
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.watch import Outcome, Watch


def samples(name: str) -> list[Any]:
    return [
        pytest.param(json.loads(path.read_text()), id=path.parent.name) for path in sorted(HERE.glob(f"*/{name}.json"))
    ]


@pytest.mark.row("A8")
@pytest.mark.parametrize("sample", samples("triggers"))
def test_a_trigger_stored_by_an_earlier_release_waits_as_before(sample: list[Any]) -> None:
    for path, kwargs in sample:
        module, name = path.rsplit(".", 1)
        trigger = getattr(importlib.import_module(module), name)(**kwargs)
        stored_again = trigger.serialize()[1]
        assert {name: stored_again[name] for name in kwargs} == kwargs
        assert trigger.watch().deadline == kwargs["deadline"]


@pytest.mark.row("A8")
@pytest.mark.parametrize("sample", samples("events"))
def test_an_event_that_an_earlier_release_fired_is_still_read(sample: list[Any]) -> None:
    for event in sample:
        outcome = Outcome.from_event(event)
        assert (outcome.kind, outcome.kickoff_id, outcome.crew_task_id) == (
            event["kind"],
            event["kickoff_id"],
            event["crew_task_id"],
        )


@pytest.mark.row("A8")
@pytest.mark.parametrize("sample", samples("records"))
def test_an_earlier_releases_record_has_every_key_tasks_need(sample: list[Any]) -> None:
    for record in sample:
        assert set(record) <= set(execution_of(ExecutionState(record["state"])).record())
        assert record_of(str(record), "pending") == record


@pytest.mark.row("A8")
@pytest.mark.parametrize("sample", samples("memories"))
def test_a_tasks_memory_from_an_earlier_release_is_understood(sample: dict[str, Any]) -> None:
    done, unknown = sample["crew_kickoff"]
    for record, earlier in ((done, Earlier.STARTED), (unknown, Earlier.UNKNOWN)):
        retry = Attempt(2, record["max_tries"], retries=2)
        assert PostRecord(Kept(record), retry, record["fingerprint"]).earlier is earlier
    watch = Watch(kickoff_id="k-1", started=0.0)
    watch.recall(sample["crew_watch"])
    assert watch.learned() == {
        "started": 1.0,
        "deadline": 9.0,
        "known": True,
        "failing_since": None,
        "failures": 0,
        "polls": 3,
    }


@pytest.mark.row("A8")
@pytest.mark.parametrize("sample", samples("posts"))
def test_a_post_recorded_by_an_earlier_release_is_still_read(sample: dict[str, Any]) -> None:
    assert list(sample) == sorted(PostState)
    for state, records in sample.items():
        for record in records:
            post = StoredPost.from_json(record)
            assert post.state == state
            assert post.to_json() == {name: value for name, value in record.items() if value != []}


@pytest.mark.row("A8")
@pytest.mark.parametrize("sample", samples("reviews"))
def test_a_review_stored_by_an_earlier_release_is_still_read(sample: dict[str, Any]) -> None:
    for state, record in sample.items():
        question = StoredQuestion.from_json(record)
        assert question.state == state
        assert question.to_json() == {name: value for name, value in record.items() if value is not None}


@pytest.mark.row("A8")
def test_a_0_2_0_prerelease_rejection_names_the_shown_draft() -> None:
    question = StoredQuestion.from_json({"draft": ["e-1", "t-1", "hash"], "rejected": True, "try_number": 1})
    assert (question.state, question.rejected) == (QuestionState.OPEN, [("e-1", "hash")])


@pytest.mark.row("A8", "A24")
@pytest.mark.parametrize("sample", samples("inbox"))
def test_messages_received_before_an_upgrade_are_found_and_read(sample: dict[str, Any]) -> None:
    task = RegisteredTask.of(sample.pop(rows.registration_key(REGISTRATION)))
    assert task
    assert (task.task_id, task.root, task.kickoff_id) == ("resume", "root-1", "k-2")
    assert sample.pop(task.newest_key("root-1"))["at"] == task.registration.at
    asked = InboxMessages.of(sample.pop(task.messages_key), REGISTRATION).newest
    assert asked
    assert asked.as_execution("k-2").crew_task_id == "draft_task"

    run = FlowRun.of(sample.pop(FlowRun("crew_flow", "k-1", "dag", "run").key))
    assert run
    assert (run.dag_id, run.execution_id) == ("dag", "k-1")
    [question] = questions_in(sample.pop(rows.questions_key("crew_flow", "k-1")))
    address = rows.address_in(sample.pop(rows.answer_key("crew_flow", question.id)))
    assert address
    assert (address.response_token, question.outcomes) == ("t", ["yes", "no"])
    assert sample == {rows.answer_key("crew_flow", "q-0"): rows.USED}


@pytest.mark.row("A8")
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_whatever_is_stored_now_has_a_sample(name: str) -> None:
    sampled = {key for parameter in samples(name) for key in _keys(parameter.values[0])}
    now = set(_keys(json.loads(json.dumps(MAKERS[name]()))))
    assert now <= sampled, f"add the samples of this release: {sorted(now - sampled)} is in none"


@pytest.mark.row("A8")
def test_every_trigger_argument_except_the_id_has_a_default() -> None:
    arguments = list(inspect.signature(CrewStatusTrigger).parameters.values())
    assert [each.name for each in arguments if each.default is inspect.Parameter.empty] == ["kickoff_id"]


def _keys(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"{path}.{name}"
            yield from _keys(item, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item, path)
