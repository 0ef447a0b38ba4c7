"""The kickoff request as one value: how it is read from an operator's arguments, and how it is named."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.compat import web
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.kickoff.request import binding_review, name_of, request_of, seen_from_outside
from airflow_crew_provider.models import Kickoff, Webhooks

IDENTITY = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
NAMED = {"inputs": {}, "webhooks": None, "meta": {"airflow": IDENTITY}, "connection": "crew_a"}


def task(**given: Any) -> Any:
    return SimpleNamespace(**{**dict.fromkeys(each.name for each in fields(Kickoff)), "inputs": {}, **given})


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


@pytest.mark.parametrize("text", ['{"topic": "tea", "n": null}', "{'topic': 'tea', 'n': None}"], ids=["JSON", "Python"])
def test_the_text_of_a_rendered_template_is_read(text: str) -> None:
    """Like `{{ dag_run.conf }}`, which renders to the text of a dict."""
    asked = {"topic": "tea", "n": None}
    assert request_of(task(inputs=text, meta=text)) == Kickoff(inputs=asked, meta=asked)
    webhooks = "{'crew': 'https://a.example'}"
    assert request_of(task(webhooks=webhooks)).webhooks == Webhooks(crew="https://a.example")
    assert refused(inputs="no JSON") == "inputs: must be an object (a dict), not str. Nothing was sent"
    assert refused(inputs="[1]") == "inputs: must be an object (a dict), not list. Nothing was sent"
    assert refused(inputs='{"id": 1}').startswith("inputs.id is reserved by the service")
    assert "put the credential into an Airflow connection" in refused(
        webhooks='{"human_input": {"url": "https://a.example", "token": "t"}}'
    )


def test_what_cannot_be_sent_is_refused_with_its_place() -> None:
    assert refused(meta={"airflow": 1}) == "meta.airflow is filled in by this operator. Nothing was sent"
    assert refused(meta=[]) == "meta: must be an object (a dict), not list. Nothing was sent"
    assert refused(restore_from="..") == "'..' is not a crew service id; nothing was sent"
    assert refused(inputs={"id": 1}).startswith("inputs.id is reserved by the service")


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


def test_what_identifies_a_loops_iteration_is_not_in_the_name() -> None:
    iteration = {**IDENTITY, "region_id": "loop", "region_index": 2}
    assert name_of(request_of(task()), iteration, "crew_a") == NAMED


# --- what the service's page is told of this Airflow ---


def in_dag(*later: Any, **more: Any) -> Any:
    return SimpleNamespace(task_id="kickoff", get_flat_relatives=lambda upstream: () if upstream else later, **more)


def review(task_id: str, approvals: Any = 1, assigned_users: Any = None) -> Any:
    return SimpleNamespace(task_id=task_id, approvals=approvals, assigned_users=assigned_users)


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ((), None),
        ((review("a"),), None),
        ((review("a", "2"), review("b", None, ["ann"])), None),
        ((review("a", 2),), {"task_id": "a", "approvals": 2, "named_people": False}),
        ((review("a", 1, ["ann"]),), {"task_id": "a", "approvals": 1, "named_people": True}),
        ((review("a", 2, []),), {"task_id": "a", "approvals": 2, "named_people": False}),
        ((review("b", 2), review("a_10", 3), review("a", 4)), {"task_id": "a", "approvals": 4, "named_people": False}),
        ((review("a"), review("z", 2), review("a_10", 3)), {"task_id": "z", "approvals": 2, "named_people": False}),
        ((SimpleNamespace(task_id="a", assigned_users=["ann"]),), None),
    ],
)
def test_the_first_review_that_not_everybody_decides_alone_is_named(later: Any, found: Any) -> None:
    assert binding_review(in_dag(*later)) == found


def test_a_task_may_be_the_review_itself() -> None:
    own = in_dag(review("a", 3), approvals=2, assigned_users=["ann"])
    assert binding_review(own) == {"task_id": "kickoff", "approvals": 2, "named_people": True}


@pytest.mark.parametrize(
    ("url", "named"), [("https://airflow.example", {"base_url": "https://airflow.example"}), ("", {})]
)
def test_the_page_links_to_this_airflow_and_defers_to_its_review(
    monkeypatch: pytest.MonkeyPatch, url: str, named: Any
) -> None:
    monkeypatch.setattr(web, "RELEASE", (3, 0))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
    assert seen_from_outside(in_dag(review("a"))) == named
    binding = {"task_id": "a", "approvals": 2, "named_people": False}
    assert seen_from_outside(in_dag(review("a", 2))) == {**named, "review": binding}
