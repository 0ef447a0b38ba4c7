"""What users hand over: plain JSON goes through, anything else is refused with its path."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_crew_provider.api.values import is_sha256, is_uuid, plain, plain_object, visible
from airflow_crew_provider.exceptions import CrewInvalidInput

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [1, {2}]}}, r"inputs\.a\.b\[1\]"),
        ({"when": datetime.datetime(2026, 1, 1)}, r"inputs\.when"),
        ({"a": decimal.Decimal(1)}, r"inputs\.a"),
        ({"a": b"bytes"}, r"inputs\.a"),
        ({"a": float("nan")}, r"inputs\.a"),
        ({"a": float("inf")}, r"inputs\.a"),
        ({"a": {1: "x"}}, r"inputs\.a: has the key 1"),
        ({"a": object()}, r"inputs\.a"),
        ({"a": CIRCLE}, r"inputs\.a\[0\].*deeper than 100"),
        ([1], "inputs: must be an object"),
        ("text", "inputs: must be an object"),
        (None, "inputs: must be an object"),
    ],
)
def test_what_is_not_json_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(CrewInvalidInput, match=path) as error:
        plain_object(value, "inputs")
    assert "Nothing was sent" in str(error.value)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([1], "inputs: must be an object (a dict), not list"),
        (None, "inputs: must be an object (a dict), not NoneType"),
        ({"a": float("nan")}, "inputs.a: nan is not a JSON number"),
        ({"a": [0, float("-inf")]}, "inputs.a[1]: -inf is not a JSON number"),
        ({"a": b"x"}, "inputs.a: bytes is not JSON; convert it first, e.g. to a string"),
        ({"a": bytearray()}, "inputs.a: bytearray is not JSON; convert it first, e.g. to a string"),
        ({"a": memoryview(b"")}, "inputs.a: memoryview is not JSON; convert it first, e.g. to a string"),
        ({"a": {b"x": 1}}, "inputs.a: has the key b'x', which is not a string"),
        ({"a": nested(100)}, f"inputs.a{'[0]' * 24}…: nested deeper than 100 levels"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_refused_is_said_word_by_word(value: Any, problem: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        plain_object(value, "inputs")
    assert str(error.value) == f"{problem}. Nothing was sent"


def test_a_hundred_levels_are_not_too_deep() -> None:
    assert plain_object({"a": nested(99)}, "inputs") == {"a": nested(99)}
    with pytest.raises(CrewInvalidInput, match="deeper than 100"):
        plain_object({"a": json.loads('{"b": ' * 100 + "{}" + "}" * 100)}, "inputs")


def test_sequences_and_mappings_of_any_kind_become_lists_and_dicts() -> None:
    from types import MappingProxyType

    assert plain_object(MappingProxyType({"a": (1, range(2))}), "inputs") == {"a": [1, [0, 1]]}


def test_a_name_full_of_dots_is_not_deep() -> None:
    assert plain({"." * 300: 1}, "inputs") == {"." * 300: 1}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
)
def test_json_goes_through_unchanged(value: Any) -> None:
    assert plain(value, "inputs") == value
    assert json.loads(json.dumps(plain(value, "inputs"))) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Jörg\t茶 🍵\n\u00a0", "Jörg\t茶 🍵\n\u00a0"),
        ("invoice\u202efdp.exe", r"invoice\u202efdp.exe"),
        ("a\x1b[31m\r\x00\u200b", r"a\u001b[31m\u000d\u0000\u200b"),
        ("\ufeff\ufff9\u2028", r"\ufeff\ufff9\u2028"),
    ],
)
def test_characters_that_hide_or_reorder_text_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("value", "is_hash"),
    [
        ("0123456789abcdef" * 4, True),
        ("a" * 63, False),
        ("a" * 65, False),
        ("A" * 64, False),
        ("g" * 64, False),
        ("a" * 64 + "\n", False),
        (None, False),
        (int("1" * 64), False),
    ],
    ids=repr,
)
def test_a_hash_is_64_digits_in_lower_case(value: Any, is_hash: bool) -> None:
    assert is_sha256(value) is is_hash


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0b2e8508-ae72-4f6f-9f4f-cb65eed46f4f", True),
        ("0B2E8508-AE72-4F6F-9F4F-CB65EED46F4F", True),
        ("0b2e8508ae724f6f9f4fcb65eed46f4f", False),
        ("0b2e8508-ae72-4f6f-9f4f-cb65eed46f4g", False),
        ("x0b2e8508-ae72-4f6f-9f4f-cb65eed46f4f", False),
        (None, False),
    ],
    ids=repr,
)
def test_a_uuid_is_one_in_its_usual_form(value: Any, found: bool) -> None:
    assert is_uuid(value) is found
