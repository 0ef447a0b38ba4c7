"""The kickoff request as one value: how it is read from an operator's arguments, and how it is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.kickoff.request import name_of, request_of
from airflow_crew_provider.models import Kickoff, Webhooks

IDENTITY = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
NAMED = {"inputs": {}, "webhooks": None, "meta": {"airflow": IDENTITY}, "connection": "crew_a"}


def task(**given: Any) -> Any:
    return SimpleNamespace(**{"inputs": {}, "webhooks": None, "meta": None, "restore_from": None, **given})


def refused(**given: Any) -> str:
    with pytest.raises(CrewInvalidInput) as error:
        request_of(task(**given))
    return str(error.value)


def test_what_is_not_given_is_empty() -> None:
    assert request_of(task()) == Kickoff(inputs={}, meta={})


def test_each_argument_has_its_field() -> None:
    given = {"inputs": {"topic": ("a", "b")}, "meta": {"by": "me"}, "restore_from": "s-1", "webhooks": "inbox"}
    asked = Kickoff(inputs={"topic": ["a", "b"]}, meta={"by": "me"}, restore_from="s-1", webhooks="inbox")
    assert request_of(task(**given)) == asked
    assert request_of(task(webhooks={"task": "https://a.example"})).webhooks == Webhooks("https://a.example")


def test_what_cannot_be_sent_is_refused_with_its_place() -> None:
    assert refused(meta={"airflow": 1}) == "meta.airflow: is filled in by this operator. Nothing was sent"
    assert refused(meta=[]) == "meta: must be an object (a dict), not list. Nothing was sent"
    assert refused(restore_from="..") == "'..' is not a crew service id; nothing was sent"
    assert refused(inputs={"id": 1}).startswith("inputs.id: is reserved by the service")


def test_a_request_is_named_as_release_0_1_named_it() -> None:
    assert name_of(request_of(task()), IDENTITY, "crew_a") == NAMED
    assert name_of(Kickoff(inputs={}, idempotency_key="a key"), IDENTITY, "crew_a") == NAMED
    webhooks = name_of(Kickoff(inputs={}, webhooks=Webhooks("https://a.example")), IDENTITY, "crew_a")["webhooks"]
    assert webhooks == {"task": "https://a.example", "step": None, "crew": None, "human_input": None}
    meta = name_of(Kickoff(inputs={}, meta={"by": "me"}), IDENTITY, "crew_a")["meta"]
    assert meta == {"by": "me", "airflow": IDENTITY}


def test_a_later_field_is_in_the_name_where_it_is_given() -> None:
    assert name_of(Kickoff(inputs={}, restore_from="s-1"), IDENTITY, "crew_a") == {**NAMED, "restore_from": "s-1"}
    assert name_of(Kickoff(inputs={}, webhooks="inbox"), IDENTITY, "crew_a") == {**NAMED, "webhooks": "inbox"}
