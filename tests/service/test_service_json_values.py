"""Values of crews as they are stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew_service.storage.json_values import DEEPEST, tidy

texts = st.text(st.characters(exclude_categories=()))  # half surrogates, too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.dates(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.dictionaries(texts, inner) | st.dictionaries(st.integers(), inner)
    ),
)


@given(values)
def test_tidy_makes_what_json_makes_of_a_value(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
    assert repr(tidy(value)) == repr(json.loads(text, parse_constant=lambda _: None))


@pytest.mark.parametrize("text", ["x" * 1000, "\u00fc" * 1000])
def test_tidy_copies_no_plain_text(text: str) -> None:
    assert tidy({"task": [{"output": text}]})["task"][0]["output"] is text


def nested(levels: int) -> Any:
    value: Any = "x"
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


def test_tidy_reads_back_what_is_nested_deeply() -> None:
    assert json.dumps(tidy(nested(DEEPEST))) == json.dumps(nested(DEEPEST))


def test_tidy_keeps_too_deeply_nested_values_as_text() -> None:
    value = tidy({"output": "x", "output_json": nested(DEEPEST + 50), "other": {"a": 1}})
    assert (value["output"], value["other"]) == ("x", {"a": 1})
    inner = value["output_json"]
    for _ in range(DEEPEST - 1):
        (inner,) = inner.values() if isinstance(inner, dict) else inner
    assert inner == json.dumps(nested(51))
