"""Which keys of an output become XComs, and what fails where one cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider import stored_names
from airflow_crew_provider.compat import supervisor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from airflow_crew_provider.wait.output import push_keys

FATE = (
    "The execution has completed, and its output is still available from the service; a retry would fail too. To run "
    "the crew again, clear its kickoff. If you only changed the rule, check this execution with a CrewStatusSensor: "
    "clearing a task that started it starts another one"
)

RESERVED = "is an XCom key used by Airflow or this provider"
UNFIT = "?, #, /, %, a backslash or a control character"


def pushed(output: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: found.update({key: value}))
    push_keys({"ti": ti}, "k-1", output)
    return found


def refusal_of(output: Any) -> str:
    with pytest.raises(CrewTaskFailed) as failure:
        pushed(output)
    return str(failure.value)


@pytest.mark.parametrize("output", [{}, {"total": 3, "k" * 512: None, "by day, week": [1], "ü:v1.2": 1, " ": {}}])
def test_each_key_is_pushed_with_its_value(output: Any) -> None:
    assert pushed(output) == output


def test_a_non_object_output_is_refused_with_its_type() -> None:
    assert refusal_of([1]) == f"multiple_outputs: the output of execution k-1 is list, not an object. {FATE}"


def test_every_key_that_cannot_be_an_xcom_is_named() -> None:
    output = {"total": 3, "": 1, "k" * 513: 1, "a?": 1, "a#b": 1, "kickoff_id": 1}
    assert refusal_of(output) == (
        "multiple_outputs: the output of execution k-1 has keys that are not valid for XCom: "
        f"'' does not have 1 to 512 characters; '{'k' * 60}' does not have 1 to 512 characters; 'a?' contains {UNFIT}; "
        f"'a#b' contains {UNFIT}; 'kickoff_id' {RESERVED}. {FATE}"
    )


OF_AIRFLOW = ["skipmixin_key", "_link_CrewExecutionLink"]
PUSHED = [
    "return_value",
    "execution_id",
    "crew_refused_answer",
    "crew_execution_url",
    "crew_execution",
    "crew_inbox",
    "crew_inbox_box",
]
FOUND_IN_ANY_TASK = ["crew_inbox:" + "x" * 24, "crew_inbox_more", "crew_decision", "crew_decisions", "crew_resume"]
# Names of records and fields that are stored elsewhere.
NO_XCOM_KEYS = ("crew_kickoff", "crew_run", "crew_watch", "schema_revision", "not sent", "human_feedback", "validation")


@pytest.mark.row("A42")
@pytest.mark.parametrize("key", sorted({*OF_AIRFLOW, *PUSHED, *FOUND_IN_ANY_TASK, *stored_names.XCOM_KEYS}))
def test_what_the_provider_reads_itself_is_never_written(key: str) -> None:
    assert f"{key!r} {RESERVED}" in refusal_of({key: 1})


@pytest.mark.row("A42")
def test_a_crew_may_use_names_that_are_not_xcom_keys() -> None:
    output = dict.fromkeys(NO_XCOM_KEYS, 1)
    assert pushed(output) == output


@pytest.mark.parametrize(
    "key",
    ["../review/return_value", "./kickoff_id", "/abs", "a/item/0", "a\\b", "kickoff%5Fid", "100%", "a\nb", "a\x7fb"],
)
def test_a_key_never_reaches_another_xcom_through_its_url(key: str) -> None:
    assert f"{key!r} contains {UNFIT}. " in refusal_of({key: 1})


@pytest.mark.parametrize("key", [".", ".."])
def test_a_key_that_reads_as_a_relative_path_is_refused(key: str) -> None:
    assert f"{key!r} is a relative path. " in refusal_of({key: 1})


class InProcessSupervisorComms:
    """Airflow's line to its API server in `dag.test()`."""


@pytest.mark.parametrize("in_process", [True, False], ids=["dag.test()", "worker"])
def test_dag_test_logs_unpushable_keys_and_pushes_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_process: bool
) -> None:
    line = InProcessSupervisorComms() if in_process else object()
    monkeypatch.setattr(supervisor, "task_runner", SimpleNamespace(SUPERVISOR_COMMS=line))
    found: dict[str, Any] = {}

    def push(key: str, value: Any) -> None:
        found[key.encode("ascii").decode()] = value

    output = {"größe": 3, "ключ" * 20: 5, "note": 6}
    context = {"ti": SimpleNamespace(xcom_push=push)}
    if not in_process:
        with pytest.raises(UnicodeError):
            push_keys(context, "k-1", output)
        return
    push_keys(context, "k-1", output)
    assert found == {"note": 6}
    shown = "ключ" * 15
    assert caplog.messages == [f"`airflow dags test` cannot push the output keys 'größe'; '{shown}'; a worker can"]


def test_an_unpushable_ascii_key_fails_in_dag_test_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "task_runner", SimpleNamespace(SUPERVISOR_COMMS=InProcessSupervisorComms()))

    def push(key: str, value: Any) -> None:
        value.encode("ascii")

    with pytest.raises(UnicodeError):
        push_keys({"ti": SimpleNamespace(xcom_push=push)}, "k-1", {"note": "größe"})
