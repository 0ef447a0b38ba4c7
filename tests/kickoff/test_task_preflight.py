"""A kickoff's inputs are compared with what the crew asks for, before anything is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from warning_log import WarningLog

from airflow_crew_provider.api.responses import masker
from airflow_crew_provider.exceptions import (
    CrewConnectionError,
    CrewError,
    CrewInvalidInput,
    CrewMissingInputs,
    CrewNotFound,
    CrewProtocolError,
    CrewServerError,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.kickoff.request import check_inputs, missing_inputs
from airflow_crew_provider.models import ExpectedInputs

WHERE = ("GET", "/inputs", "no")


def hook(asked: ExpectedInputs | CrewError, kind: str | None = None) -> Any:
    def inputs() -> ExpectedInputs:
        if isinstance(asked, CrewError):
            raise asked
        return asked

    return SimpleNamespace(inputs=inputs, connection=SimpleNamespace(kind=kind), mask=masker(["secret"]))


@pytest.mark.parametrize("kind", ["crew", "flow", None])
@pytest.mark.parametrize("required", [None, [], ["topic"]])
def test_inputs_that_fit_are_taken_without_a_word(log: WarningLog, kind: str | None, required: Any) -> None:
    asked = ExpectedInputs(["topic", "tone"], required)
    assert check_inputs(hook(asked, kind), {"topic": 1, "tone": None}, log) is asked
    assert log.lines == []


@pytest.mark.parametrize(
    ("asked", "kind", "lacking"),
    [
        (ExpectedInputs(["topic", "tone"], ["topic", "tone"]), None, ["topic", "tone"]),
        (ExpectedInputs(["topic", "tone"], ["tone"]), None, ["tone"]),
        (ExpectedInputs(["topic", "tone"], ["tone"]), "flow", ["tone"]),
        (ExpectedInputs(["topic", "tone"], ["tone"]), "crew", ["tone"]),
        (ExpectedInputs(["topic", "tone"]), "crew", ["topic", "tone"]),
    ],
)
def test_a_required_input_that_is_missing_fails(
    log: WarningLog, asked: ExpectedInputs, kind: str | None, lacking: Any
) -> None:
    with pytest.raises(CrewMissingInputs) as error:
        check_inputs(hook(asked, kind), {"other": 1}, log)
    assert (error.value.names, error.value.status_code) == (lacking, None)
    assert error.value.detail == (f"Missing inputs: {', '.join(lacking)} (the crew asks for topic, tone; given: other)")


def test_secrets_among_the_names_are_not_shown(log: WarningLog) -> None:
    with pytest.raises(CrewMissingInputs) as error:
        check_inputs(hook(ExpectedInputs(["secret"], ["secret"])), {}, log)
    assert error.value.names == ["***"]
    assert error.value.detail == "Missing inputs: *** (the crew asks for ***; given: none)"
    check_inputs(hook(ExpectedInputs(["a-secret"])), {"b-secret": 1}, log)
    assert log.lines == [
        "The crew also asks for a-***. The service decides whether these inputs are required",
        "The crew did not ask for b-***; it asks for a-***",
    ]


@pytest.mark.parametrize("kind", ["flow", None])
def test_the_service_decides_where_required_inputs_are_unknown(log: WarningLog, kind: str | None) -> None:
    asked = ExpectedInputs(["topic", "tone", "size"])
    assert check_inputs(hook(asked, kind), {"tone": 1}, log) is asked
    assert log.lines == ["The crew also asks for topic, size. The service decides whether these inputs are required"]


def test_an_input_that_may_be_left_out_is_not_mentioned(log: WarningLog) -> None:
    check_inputs(hook(ExpectedInputs(["topic", "tone"], ["topic"]), "crew"), {"topic": 1}, log)
    assert log.lines == []


@pytest.mark.parametrize("names", [["topic"], []])
def test_an_input_that_nobody_asked_for_is_told(log: WarningLog, names: list[str]) -> None:
    check_inputs(hook(ExpectedInputs(names)), {"topic": 1, "b": 2, "a": 3, **dict.fromkeys(names)}, log)
    told = "The crew did not ask for a, b; it asks for topic"
    assert log.lines == [told if names else "The crew did not ask for a, b, topic; it asks for none"]


FINAL = [
    *(CrewUnauthorized(401, *WHERE), CrewNotFound(404, *WHERE), CrewInvalidInput("no"), CrewWebPage("no")),
    *(CrewConnectionError("no", unreachable=True), CrewConnectionError("no", permanent=True)),
]


@pytest.mark.parametrize("error", FINAL, ids=repr)
def test_what_a_kickoff_would_fail_with_too_fails_at_once(log: WarningLog, error: CrewError) -> None:
    with pytest.raises(type(error)) as raised:
        check_inputs(hook(error), {}, log)
    assert raised.value is error
    assert log.lines == []


@pytest.mark.parametrize("error", [CrewServerError(500, *WHERE), CrewProtocolError("no"), CrewConnectionError("no")])
def test_a_check_that_fails_otherwise_holds_nothing_up(log: WarningLog, error: CrewError) -> None:
    assert check_inputs(hook(error), {}, log) is None
    assert log.lines == [f"The crew's inputs could not be checked ({error}); starting the crew anyway"]


def test_a_service_refusal_is_worded_in_the_same_way() -> None:
    said = missing_inputs(["a"], ExpectedInputs(["a", "b"]), {"b": 1, "c": 2})
    assert said == "Missing inputs: a (the crew asks for a, b; given: b, c)"


def test_a_file_that_the_crew_does_not_take_is_refused(log: WarningLog) -> None:
    asked = ExpectedInputs(["notes"], files=["notes"])
    assert check_inputs(hook(asked), {}, log, {"notes": "/a"}) is asked
    with pytest.raises(CrewInvalidInput, match="takes no file named 'other'; it takes notes"):
        check_inputs(hook(asked), {}, log, {"other": "/a"})
