"""Values of crews as they are stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew_service.storage.json_values import tidy

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


def test_tidy_reads_back_what_is_nested_deeply() -> None:
    value: Any = "x"
    for _ in range(600):
        value = [value]
    assert json.dumps(tidy(value)) == json.dumps(value)
