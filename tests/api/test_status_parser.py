"""The reader of both dialects: the examples of the specification and of live deployments, and what must never pass."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from faults.dialects import LIVE, PENDING_SPEC, SPEC
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_crew_provider.api import endpoints, status
from airflow_crew_provider.api.responses import HttpResponse, storable
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import Execution, ExecutionState, TaskResult

S = ExecutionState


def read(body: Any) -> Execution:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return endpoints.read(endpoints.status("k-1"), HttpResponse(200, {}, raw))


def test_a_running_execution_of_the_specification_reports_its_progress() -> None:
    seen = read(SPEC.running)
    assert (seen.state, seen.current_task, seen.completed_tasks, seen.total_tasks) == (S.RUNNING, "draft_task", 1, 2)
    assert seen.progress == "1 of 2 tasks, now draft_task"


def test_a_running_execution_of_a_live_deployment_reports_the_same() -> None:
    seen = read(LIVE.running)
    assert (seen.state, seen.progress) == (S.RUNNING, "1 of 2 tasks, now draft_task")


def test_a_flow_without_a_known_total_still_has_progress() -> None:
    progress = {"unit": "step", "completed": 3, "total": None, "remaining": None, "current": "write"}
    assert read({"state": "RUNNING", "progress": progress}).progress == "3 tasks, now write"


def test_an_older_deployment_has_no_progress() -> None:
    assert read({"state": "STARTED", "progress": None}).progress == ""


def test_a_completed_spec_execution_has_output_tasks_and_time() -> None:
    seen = read(SPEC.completed)
    assert (seen.state, seen.output, seen.output_json, seen.execution_time) == (S.COMPLETED, "the output", None, 3.25)
    assert seen.tasks == (TaskResult(task_id="draft_task", agent="Writer", output="a draft", execution_time=1.5),)


def test_a_live_success_has_the_object_and_the_usage() -> None:
    usage = {"total_tokens": 1250, "prompt_tokens": 800, "completion_tokens": 450}
    body = {"state": "SUCCESS", "status": None, "result": '{"a": 1}', "result_json": {"a": 1}, "usage_metrics": usage}
    seen = read(body)
    assert (seen.state, seen.output, seen.output_json, seen.usage) == (S.COMPLETED, '{"a": 1}', {"a": 1}, usage)


@pytest.mark.parametrize(
    ("body", "output", "output_json"),
    [
        ({"result": "plain text"}, "plain text", None),
        ({"result": {"output": "inside"}}, "inside", None),
        ({"result": None, "result_json": {"a": 1}}, '{"a": 1}', {"a": 1}),
        ({"result": None, "last_executed_task": {"output": "the last"}}, "the last", None),
        ({"result": '```json\n{"a": 1}\n```'}, '```json\n{"a": 1}\n```', {"a": 1}),
        ({"result": '```\n{"a": 1}\n```\n'}, '```\n{"a": 1}\n```\n', {"a": 1}),
        ({"result": 'Here it is: {"a": 1}'}, 'Here it is: {"a": 1}', None),
        ({"result": "[1, 2]"}, "[1, 2]", None),
        ({"result": '{"a": NaN}'}, '{"a": NaN}', None),
        ({"result": ""}, "", None),
    ],
)
def test_a_result_is_read_wherever_a_deployment_puts_it(body: Any, output: str, output_json: Any) -> None:
    seen = read({"state": "SUCCESS", **body})
    assert (seen.output, seen.output_json) == (output, output_json)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (SPEC.failed, "ValueError: bad input"),
        (LIVE.failed, "ValueError: bad input"),
        ({"status": "error"}, "no reason given"),
        ({"state": "REVOKED", "status": None}, "no reason given"),
    ],
)
def test_a_failure_reports_its_reason_in_both_dialects(body: Any, error: str) -> None:
    seen = read(body)
    assert (seen.state, seen.error) == (S.ERROR, error)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        *[(word, S.COMPLETED) for word in ("SUCCESS", "success", "completed", "Complete")],
        *[(word, S.ERROR) for word in ("FAILED", "FAILURE", "error", "REVOKED", "cancelled", "CANCELED", "stopped")],
        *[(word, S.RUNNING) for word in ("STARTED", "RUNNING", "PENDING", "queued", "warming up")],
        *[(word, S.PENDING) for word in ("PAUSED", "pending-human-input", "Pending Human Input", "awaiting_input")],
        *[(word, S.PENDING) for word in ("AWAITING_HUMAN_FEEDBACK", "waiting_for_human", "WAITING FOR HUMAN INPUT")],
        *[(word, S.NOT_FOUND) for word in ("NOT FOUND", "not_found", "Not-Found")],
    ],
)
def test_a_live_state_word_means_this(word: str, state: ExecutionState) -> None:
    assert read({"state": word, "status": "a sentence", "result": "r"}).state is state


def test_pending_means_a_person_by_specification_but_queued_when_live() -> None:
    assert read({"status": "pending"}).state is S.PENDING
    assert read({"state": "PENDING", "status": "Task is pending"}).state is S.RUNNING
    assert read({"state": None, "status": "pending"}).state is S.RUNNING


def test_a_pending_execution_has_what_a_resume_needs() -> None:
    seen = read(PENDING_SPEC)
    assert (seen.crew_task_id, seen.output) == ("draft_task", "the draft")
    assert read({"state": "PAUSED", "current_task": "draft_task"}).crew_task_id is None


def test_a_sentence_for_people_is_not_taken_for_a_state() -> None:
    assert read({"state": "RUNNING", "status": "completed"}).state is S.RUNNING


@pytest.mark.row("N7")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b"<html>completed</html>",
        b"\xff\xfe{",
        b"1" * 5000,
        b"[" * 100_000,
        None,
        [],
        ["completed"],
        "completed",
        1,
        True,
        {},
        {"status": None},
        {"status": ["completed"]},
        {"status": True},
        {"state": "", "status": ""},
        {"status": "completed"},
        {"status": "completed", "result": None},
        {"status": "completed", "result": {}},
        {"status": "completed", "result": {"output": None}},
        {"status": "completed", "result": {"output": 5}},
        {"status": "completed", "result": ["x"]},
        {"status": "completed", "result": {"output": "x", "tasks": "none"}},
        {"status": "completed", "result": {"output": "x", "tasks": ["a"]}},
        {"status": "completed", "result": {"output": "x", "tasks": [{"task_id": 5}]}},
        {"status": "completed", "result": {"output": "x", "tasks": [{"execution_time": "1"}]}},
        {"status": "completed", "result": {"output": "x"}, "execution_time": True},
        {"state": "SUCCESS"},
        {"state": "SUCCESS", "result": 5},
        {"state": "SUCCESS", "result": "x", "result_json": "y"},
        {"state": "SUCCESS", "result": "x", "usage_metrics": [1]},
        {"state": "SUCCESS", "result_json": None, "last_executed_task": {"output": 1}},
    ],
)
def test_what_is_not_an_answer_is_never_a_success(body: Any) -> None:
    with pytest.raises(CrewProtocolError):
        read(body)


@pytest.mark.row("N7")
def test_an_unknown_word_is_in_progress_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            seen = read({"status": "polishing-the-crown", "note": "x" * 5000})
            assert (seen.state, seen.state_is_known) == (S.RUNNING, False)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "polishing-the-crown" in message
    assert len(message) < 1500


@pytest.mark.row("N7")
def test_an_unknown_state_in_the_deepest_json_is_in_progress() -> None:
    deepest = next(depth for depth in range(1000, 10, -1) if _is_read(_nested(depth, "running")))
    assert read(_nested(deepest, "deep-in-thought")).state is S.RUNNING


def _nested(depth: int, word: str) -> bytes:
    return b'{"status": "%s", "x": %s%s}' % (word.encode(), b"[" * depth, b"]" * depth)


def _is_read(body: bytes) -> bool:
    try:
        read(body)
    except CrewProtocolError:
        return False
    return True


def test_what_no_database_can_store_is_replaced() -> None:
    seen = read(b'{"status": "completed", "result": {"output": "a\\u0000b\\ud800c", "tasks": []}}')
    assert seen.output == "a\ufffdb\ufffdc"


def test_a_number_that_json_has_no_word_for_becomes_none() -> None:
    assert read(b'{"status": "error", "execution_time": 1e999}').execution_time is None
    assert read(b'{"status": "completed", "result": {"output": "x"}, "execution_time": NaN}').execution_time is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
words = st.sampled_from(["completed", "SUCCESS", "running", "error", "pending", "PAUSED", "NOT FOUND", "odd"])
known_fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("status", "state"), words | json_values),
        **dict.fromkeys(
            ("result", "result_json", "progress", "current_task", "task_id", "task_output", "error", "message"),
            json_values | st.fixed_dictionaries({}, optional={"output": json_values, "tasks": json_values}),
        ),
        **dict.fromkeys(("last_executed_task", "usage_metrics", "execution_time"), json_values),
    },
)


@given(json_values | known_fields)
@example({"state": "SUCCESS", "result": None})
@example({"state": "\0"})
def test_any_json_gives_a_sound_execution_or_a_protocol_error(body: Any) -> None:
    try:
        seen = read(body)
    except CrewProtocolError:
        return
    word = next(word for word in (body.get("state"), body.get("status")) if word and isinstance(word, str))
    assert seen.raw_state == storable(word)
    assert_sound(seen)


def assert_sound(seen: Execution) -> None:
    """Whatever was read can be stored, and is a success only where the service says so."""
    json.dumps(seen.record(), allow_nan=False, ensure_ascii=False).encode()
    if seen.state is S.COMPLETED:
        assert seen.raw_state.lower() in ("success", "completed", "complete")  # docs/api.md
        assert isinstance(seen.output, str)
    if seen.state is S.PENDING:
        assert seen.raw_state in ("pending", "PAUSED")


real_bodies = st.sampled_from([SPEC.running, SPEC.completed, SPEC.failed, LIVE.completed, LIVE.failed, PENDING_SPEC])
splinters = st.sampled_from(
    [b"", b'"', b"[", b"{", b"}", b",", b"null", b"NaN", b"-1e999", b"\\u0000", b"\\ud800", b"\xff", b"\xef\xbb\xbf"]
)


@st.composite
def spoiled_bodies(draw: st.DrawFn) -> bytes:
    """A status body with some of its bytes replaced: much of it is still JSON, or nearly."""
    body = bytearray(json.dumps(draw(known_fields | real_bodies)).encode())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 3))] = draw(splinters | st.binary(max_size=2))
    return bytes(body)


@given(spoiled_bodies() | st.binary(max_size=40))
@example(b'{"status": "complete", "result": {"output": "x", "tasks": []}}')
@example(b'{"status": "completed", "result": {"output": "\\ud800", "tasks": []}}')
@example(b'\xef\xbb\xbf{"status": "completed", "result": {"output": "x"}, "execution_time": -1e999}')
def test_any_bytes_are_an_execution_or_a_protocol_error(body: bytes) -> None:
    try:
        seen = read(body)
    except CrewProtocolError:
        return
    assert_sound(seen)


@pytest.mark.waits
def test_many_spoiled_bodies_get_past_json_and_many_do_not() -> None:
    """A property of bytes that are never JSON would say nothing of the reader."""
    outcomes: list[str] = []

    @settings(max_examples=400, derandomize=True, database=None, deadline=None)
    @given(spoiled_bodies())
    def collect(body: bytes) -> None:
        try:
            outcomes.append(read(body).state)
        except CrewProtocolError as error:
            outcomes.append("not JSON" if "not JSON" in str(error) else "refused")

    collect()
    assert min(outcomes.count(S.COMPLETED), outcomes.count("refused"), outcomes.count("not JSON")) >= 10


def test_the_one_table_of_words_gives_every_word_one_meaning() -> None:
    assert all(word == word.lower().replace(" ", "_").replace("-", "_") for word in status.WORDS)
    assert "pending" not in status.WORDS
