"""Which objects a record holds, and which become texts: those that Airflow would not bring back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from faults.dialects import PENDING_SPEC, SPEC
from hypothesis import given
from hypothesis import strategies as st

from airflow_crew_provider.api import status
from airflow_crew_provider.api.answers import hash_of
from airflow_crew_provider.api.status import json_object_in
from airflow_crew_provider.api.values import DEEPEST_XCOM, handed_on, is_kept, rendered
from airflow_crew_provider.models import output_sha256

try:
    from airflow.sdk.serde import deserialize, serialize
except ImportError:  # before Airflow 3.2
    from airflow.serialization.serde import deserialize, serialize  # type: ignore[no-redef]


def nested(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


LOST = [
    '{"id": 123456789012345678901234567890}',
    '{"id": -9223372036854775809}',
    '{"n": [-6.02214076e23]}',
    '{"__classname__": "x", "a": 1}',
    '{"a": [{"__id__": 1}]}',
    '{"a": {"__type": "dict", "__var": {"b": 1}}}',
    nested(DEEPEST_XCOM + 2),
    nested(400),
    '{"id": 123456789012345678901234567890, "list": [1]}',
]
KEPT = [
    '{"id": 18446744073709551615, "other": -9223372036854775808}',
    '{"n": [1.0, 0.1, -1e-300, 999999999999999.5], "yes": true, "none": null}',
    '{"__type": "a kind", "__version__": 1, "class": "__classname__"}',
    nested(DEEPEST_XCOM),
]


@pytest.mark.parametrize("text", LOST, ids=range(len(LOST)))
def test_an_object_airflow_cannot_restore_becomes_a_text(text: str) -> None:
    fenced = f"```json\n{text}\n```"
    pending = status.execution("k-1", {**PENDING_SPEC, "task_output": fenced})
    assert pending.record()["output"] == fenced
    assert pending.record()["output_sha256"] == hash_of(pending) == output_sha256(fenced)
    assert "object_sha256" not in pending.record()
    completed = status.execution("k-1", {**SPEC.completed, "result": {"output": fenced}})
    assert completed.output_json == json.loads(text), "the hook hands it on"
    assert json.loads(completed.record()["output"]) == json.loads(text)


@pytest.mark.parametrize("text", KEPT, ids=range(len(KEPT)))
def test_other_objects_are_in_the_record_as_they_are(text: str) -> None:
    pending = status.execution("k-1", {**PENDING_SPEC, "task_output": text})
    assert pending.record()["output"] == json.loads(text)
    assert pending.record()["output_sha256"] == hash_of(pending) == output_sha256(text)
    assert pending.record()["object_sha256"] == output_sha256(json.loads(text))


@pytest.mark.parametrize("text", LOST, ids=range(len(LOST)))
def test_a_live_deployments_unrestorable_object_beside_text_becomes_text(text: str) -> None:
    body = {"state": "SUCCESS", "result": "All on tea.", "result_json": json.loads(text)}
    seen = status.execution("k-1", body)
    assert (seen.output, seen.output_json) == ("All on tea.", json.loads(text))
    assert json.loads(seen.record()["output"]) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [("-0.0", "0.0"), ("2.5e17", "250000000000000000"), ("-1e16", "-10000000000000000"), ("1.0", "1.0")],
)
def test_a_number_is_read_as_postgresql_returns_it(text: str, read: str) -> None:
    assert str(json_object_in(f'{{"n": {text}}}')) == f"{{'n': {read}}}"


def test_from_ten_quadrillion_up_a_float_becomes_text() -> None:
    assert [is_kept(value) for value in (1e16, -1e16, 9999999999999998.0)] == [False, False, True]


def test_a_value_that_becomes_text_stays_readable() -> None:
    assert handed_on({"__id__": "Jörg"}) == '{"__id__": "Jörg"}'
    assert handed_on({"id": "Jörg"}) == {"id": "Jörg"}


def test_usage_that_airflow_would_not_bring_back_is_none() -> None:
    body = {"state": "SUCCESS", "result": "All.", "usage_metrics": {"total_tokens": 10**30}, "execution_time": 10**30}
    record = status.execution("k-1", body).record()
    assert (record["usage"], record["execution_time"]) == (None, None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["__id__", "__type", "__var"]), inner),
)


@given(VALUES)
def test_what_is_kept_comes_back_from_airflow_as_it_was(value: Any) -> None:
    if is_kept(value):
        assert deserialize(serialize(value)) == value


@pytest.mark.row("S11")
@pytest.mark.parametrize("text", ['```json\n{"a": 1}' + "\n" * 500_000, "```json\n" + "\n" * 500_000 + "```x"])
def test_white_space_after_a_code_fence_takes_linear_time(text: str) -> None:
    """A model may well end in thousands of line breaks; half a million took hours, and all other polls waited."""
    assert json_object_in(text) is None


# --- a record in a rendered field ---

DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({}, "draft"),
        ({"execution_id": "e-1"}, "draft of execution e-1"),
        ({"execution_id": "e" * 101}, f"draft of execution {'e' * 100}"),
        ({"state": "completed", "output": "x" * 1000}, "output, 1,000 characters"),
        ({"output": {"a": "é"}}, "draft, 10 characters"),
        ({"is_approve": True, "output_sha256": DIGEST}, f"review, sha256 {DIGEST}"),
        ({"output_sha256": "secret text"}, "draft"),
        (
            {"execution_id": "e-1", "output": "", "output_sha256": DIGEST},
            f"draft of execution e-1, 0 characters, sha256 {DIGEST}",
        ),
    ],
    ids=str,
)
def test_a_record_in_a_field_is_shown_without_its_texts(record: Any, line: str) -> None:
    assert rendered(record).serialize() == line
    assert dict(rendered(record)) == record


def test_each_record_in_a_field_is_found() -> None:
    found = rendered([{"execution_id": "e-1"}, '{"execution_id": "e-2"}', "a text", 5])
    assert [str(each) for each in found[:2]] == ["draft of execution e-1", "draft of execution e-2"]
    assert found[2:] == ["a text", 5]
    assert rendered(found[0]) is found[0]
    assert (rendered("a text"), rendered(b"bytes"), rendered(5)) == ("a text", b"bytes", 5)


@pytest.mark.parametrize("given", ["[" * 100_000, "(" * 100_000, "a text", "1 +"], ids=lambda given: given[:6])
def test_a_text_that_describes_no_value_stays_a_text(given: str) -> None:
    assert rendered(given) == given
