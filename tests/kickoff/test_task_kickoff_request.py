"""The kickoff request as one value: how it is read from an operator's arguments, and how it is named."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.compat import web
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.kickoff.request import StartingTask, binding_review, name_of, request_of, seen_from_outside
from airflow_crew_provider.models import Webhooks

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


def test_a_later_field_is_in_the_name_when_given() -> None:
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
def test_the_page_links_to_airflow_and_defers_to_its_review(
    monkeypatch: pytest.MonkeyPatch, url: str, named: Any
) -> None:
    monkeypatch.setattr(web, "RELEASE", (3, 0))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
    assert seen_from_outside(in_dag(review("a"))) == named
    binding = {"task_id": "a", "approvals": 2, "named_people": False}
    assert seen_from_outside(in_dag(review("a", 2))) == {**named, "review": binding}


class Mapped:
    """A mapped task, whose arguments are in two places."""

    task_id = "mapped"

    def __init__(self, partial: Any, expanded: Any, **of_class: Any) -> None:
        self.partial_kwargs, self.expand_input = partial, SimpleNamespace(value=expanded)
        self.operator_class = type("Operator", (), of_class)


@pytest.mark.parametrize(
    ("mapped", "found"),
    [
        (Mapped({"approvals": 2}, {"pending": []}), {"approvals": 2, "named_people": False}),
        (Mapped({"approvals": 1}, {"assigned_users": ["ann"]}), {"approvals": 1, "named_people": True}),
        (Mapped({"approvals": 3}, {"approvals": 2}), {"approvals": 2, "named_people": False}),
        (Mapped({}, {}, approvals=2), {"approvals": 2, "named_people": False}),
        (Mapped({"approvals": 2}, "an XCom"), {"approvals": 2, "named_people": False}),
        (Mapped({}, {}), None),
    ],
    ids=["partial", "expanded", "both", "of the class", "unknown", "none"],
)
def test_a_mapped_review_is_recognized_by_its_arguments(mapped: Mapped, found: Any) -> None:
    assert binding_review(in_dag(mapped)) == (found and {"task_id": "mapped", **found})


# --- files ---


def test_a_request_has_the_files_of_its_task() -> None:
    assert request_of(task(files={"notes": "/a/b"})) == Kickoff(inputs={}, meta={}, files={"notes": "/a/b"})
    assert request_of(task(files='{"notes": "/a/b"}')).files == {"notes": "/a/b"}
    assert request_of(task(files={})).files is None
    assert refused(inputs={"notes": 1}, files={"notes": "/a/b"}).startswith("'notes' is both in inputs and in files.")


def test_files_are_not_in_the_name_of_a_request() -> None:
    assert name_of(Kickoff(inputs={}, files={"notes": "/a/b"}), IDENTITY, "crew_a") == NAMED


# --- the parameters of an operator ---


def starting(**given: Any) -> StartingTask:
    return StartingTask(task_id="kickoff", inputs={"topic": "tea"}, crew_conn_id="crew_a", **given)


GIVEN: dict[str, Any] = {
    "files": {"notes": "/a/b"},
    "webhooks": {"task": "https://a.example"},
    "meta": {"by": "me"},
    "restore_from": "s-1",
    "check_inputs": False,
    "poll_in_worker": 2.5,
    "poll_interval": 3,
    "timeout": 60,
    "cancel_on_kill": False,
    "on_unknown_outcome": "retry",
    "retry_from": "start",
}


def test_parameters_are_kept_as_they_were_given() -> None:
    made = starting(**GIVEN, max_total_tokens=5)
    assert {name: getattr(made, name) for name in GIVEN} == GIVEN
    assert (made.inputs, made.crew_conn_id, made.max_total_tokens) == ({"topic": "tea"}, "crew_a", 5)


def test_airflow_masks_the_query_of_a_files_address() -> None:
    address = f"https://bucket.example/report.pdf?sig={uuid4().hex}"
    assert redact(address) == address
    starting(files={"report": address}).hide_rendered()
    assert redact(address) == "https://bucket.example/report.pdf?***"


def test_parameters_that_are_not_given_have_their_defaults() -> None:
    made = starting()
    assert {name: getattr(made, name) for name in GIVEN} == {
        **dict.fromkeys(("files", "webhooks", "meta", "restore_from", "timeout")),
        **{"check_inputs": True, "cancel_on_kill": True, "on_unknown_outcome": "fail", "retry_from": "failed_task"},
        **{"poll_in_worker": 0.0, "poll_interval": 10.0},
    }


def test_parameters_of_other_types_are_brought_into_form() -> None:
    made = starting(
        files={"notes": Path("/a/b")}, webhooks=Webhooks("https://a.example"), poll_in_worker=timedelta(seconds=2)
    )
    assert made.files == {"notes": "/a/b"}
    assert made.webhooks == Webhooks("https://a.example").as_dict()
    assert made.poll_in_worker == 2.0
    assert starting(poll_in_worker=None).poll_in_worker == 0.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"poll_interval": -1}, "poll_interval must be a number of seconds or a timedelta, not -1. Nothing was sent"),
        ({"timeout": "soon"}, "timeout must be a number of seconds or a timedelta, not 'soon'. Nothing was sent"),
        ({"poll_in_worker": []}, "poll_in_worker must be a number of seconds or a timedelta, not []. Nothing was sent"),
        ({"on_unknown_outcome": "ask"}, "on_unknown_outcome must be 'fail' or 'retry', not 'ask'"),
        ({"retry_from": "middle"}, "retry_from must be 'failed_task' or 'start', not 'middle'"),
        (
            {"webhooks": {"human_input": {"url": "https://a.example", "token": "t"}}},
            "webhooks.human_input.token would be readable in the rendered fields; put the credential into an Airflow "
            "connection and set conn_id",
        ),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_parameter_that_cannot_be_used_is_refused_at_once(given: Any, said: str) -> None:
    with pytest.raises((CrewInvalidInput, ValueError)) as refused:
        starting(**given)
    assert str(refused.value) == said
