"""A wait reads the inbox of each upstream task whose `webhooks` may become the word, however the DAG gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, task, task_group
from simulated_airflow import TaskRun

from airflow_crew_provider.inbox.registering import registered_address
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.stored_names import POSTED_KEY

ADDRESS = {"registration": "r-1", "kickoff_id": "k-1", "at": 1.0}


@task
def chosen() -> Any:
    return "inbox"


def kickoff(**more: Any) -> Any:
    return CrewKickoffOperator(task_id="kickoff", inputs={}, **more)


def mapped(**more: Any) -> Any:
    return CrewKickoffOperator.partial(task_id="kickoff", **more)


def of_a_mapped_group() -> Any:
    @task_group
    def group(webhooks: Any) -> Any:
        return CrewKickoffOperator(task_id="kickoff", inputs={}, webhooks=webhooks).output

    return group.expand(webhooks=["inbox"])


def address_in(start: Callable[[], Any], **defaults: Any) -> Any:
    """Return the address that a wait finds after this kickoff."""
    with DAG("dag", schedule=None, default_args=defaults) as dag:
        wait = CrewStatusSensor(task_id="wait", kickoff_id="k-1")
        start() >> wait
    [name] = [each for each in dag.task_ids if each.endswith("kickoff")]
    run = TaskRun("wait", upstream={name: TaskRun(name, xcom={POSTED_KEY: ADDRESS})})
    return registered_address(run.context(), wait, "k-1")


@pytest.mark.parametrize(
    "start",
    [
        lambda: kickoff(webhooks="inbox"),
        lambda: kickoff(webhooks="{{ params.webhooks }}"),
        lambda: kickoff(webhooks="{% if params.webhooks %}inbox{% endif %}"),
        lambda: kickoff(webhooks=chosen()),
        of_a_mapped_group,
        lambda: mapped(webhooks="inbox").expand(inputs=[{}]),
        lambda: mapped(webhooks=chosen()).expand(inputs=[{}]),
        lambda: mapped(inputs={}).expand(webhooks=["inbox"]),
        lambda: mapped().expand_kwargs([{"inputs": {}, "webhooks": "inbox"}]),
    ],
)
def test_kickoffs_possibly_using_the_inbox_are_asked_for_its_address(start: Callable[[], Any]) -> None:
    assert address_in(start) == ADDRESS


@pytest.mark.parametrize("start", [kickoff, lambda: mapped().expand(inputs=[{}])], ids=["a task", "a mapped task"])
def test_the_word_may_come_from_the_dags_defaults(start: Callable[[], Any]) -> None:
    assert address_in(start, webhooks="inbox") == ADDRESS


@pytest.mark.parametrize("webhooks", [None, {"crew": "https://hooks.example.com"}], ids=str)
def test_a_kickoff_without_the_inbox_costs_a_wait_no_request(webhooks: Any) -> None:
    assert address_in(lambda: kickoff(webhooks=webhooks)) is None
    if webhooks:
        assert address_in(lambda: mapped(webhooks=webhooks).expand(inputs=[{}])) is None
