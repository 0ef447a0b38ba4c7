"""What is accepted as a schema, and what is said of an output that breaks it."""

from __future__ import annotations

import sys
from datetime import date
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, RootModel, field_validator

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.wait.schema import (
    LONGEST_VIOLATION,
    MOST_FOUND,
    listed,
    matching,
    refuse_bad_schema,
    validator_of,
)

PRICES = {
    "type": "object",
    "required": ["total"],
    "properties": {
        "total": {"type": "number", "minimum": 0},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "$defs": {"item": {"type": "object", "required": ["name"]}},
}


ENDLESS = "it refers to itself endlessly or is nested too deeply"


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


class Item(BaseModel):
    name: str
    due: date


class Order(BaseModel):
    model_config = ConfigDict(strict=True)
    items: list[Item]
    note: str = "none"


class Spoilt(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def breaks(cls, value: str) -> str:
        raise KeyError(value)


def violations(schema: Any, output: Any) -> list[str]:
    return matching(validator_of(schema), output)[1]


def test_an_output_that_matches_is_returned_as_it_is() -> None:
    output = {"total": 3, "items": [{"name": "tea"}], "more": True}
    assert matching(validator_of(PRICES), output) == (output, [])


def test_each_violation_is_listed_with_its_path() -> None:
    found = violations(PRICES, {"total": -1, "items": [{"name": "tea"}, {}]})
    assert found == ["$.items[1]: 'name' is a required property", "$.total: -1 is less than the minimum of 0"]


def test_a_model_lists_violations_by_path_and_accepts_text_dates() -> None:
    output = {"items": [{"name": "tea", "due": "2026-11-21"}]}
    assert matching(validator_of(Order), output) == (output, [])
    found = violations(Order, {"items": [{"name": "tea", "due": "2026-11-21"}, {"due": "soon"}]})
    assert [each.split(": ")[0] for each in found] == ["$.items[1].name", "$.items[1].due"]


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_model_is_found_by_its_import_path(separator: str) -> None:
    assert violations(f"{__name__}{separator}Item", {"name": "tea"}) == ["$.due: Field required"]


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_model_is_found_in_a_package(separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a_package", "a_package.models"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Item=Item))
    assert violations(f"a_package.models{separator}Item", {"name": "tea"}) == ["$.due: Field required"]


def test_a_validator_that_raises_anything_is_a_violation() -> None:
    assert violations(Spoilt, {"name": "tea"}) == ["$: Spoilt raised KeyError: 'tea'"]


@pytest.mark.parametrize("text", ['["a", "b"]', '```json\n["a", "b"]\n```\n'])
@pytest.mark.parametrize("schema", [{"type": "array"}, RootModel[list[str]]], ids=["schema", "model"])
def test_a_text_is_read_as_json_unless_accepted_as_text(schema: Any, text: str) -> None:
    assert matching(validator_of(schema), text) == (["a", "b"], [])


def test_a_text_that_is_accepted_stays_a_text() -> None:
    assert matching(validator_of({"type": "string"}), "42") == ("42", [])


@pytest.mark.parametrize("text", ["Sorry, no.", '{"total": NaN}', '{"total": 1} and more', "[" * 100_000])
def test_a_non_json_text_is_reported_as_not_json(text: str) -> None:
    assert violations(PRICES, text)[-1] == "$: the output is a string, not JSON"


def test_a_text_that_is_not_json_keeps_its_first_violations() -> None:
    output, found = matching(validator_of(PRICES), "no")
    assert (output, found) == ("no", ["$: 'no' is not of type 'object'", "$: the output is a string, not JSON"])
    assert matching(validator_of(PRICES), "[1]") == ([1], ["$: [1] is not of type 'object'"])


def test_violations_are_listed_in_the_order_of_their_paths() -> None:
    schema = {"properties": {name: {"type": "string"} for name in "bac"}, "minProperties": 9}
    found = violations(schema, {"b": 1, "c": 1, "a": 1})
    assert [each.split(":")[0] for each in found] == ["$", "$.a", "$.b", "$.c"]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a; b"),
        (["a"] * 20, "; ".join(["a"] * 20)),
        (["a"] * 21, "; ".join(["a"] * 20) + "; and 1 more"),
        (["x" * LONGEST_VIOLATION], "x" * LONGEST_VIOLATION),
        (["x" * (LONGEST_VIOLATION + 1)], "x" * LONGEST_VIOLATION + "…"),
    ],
    ids=len,
)
def test_violations_in_one_message(found: list[str], text: str) -> None:
    assert listed(found) == text


def test_an_output_of_none_breaks_the_schema() -> None:
    assert violations(PRICES, None) == ["$: None is not of type 'object'"]


def test_a_message_is_neither_long_nor_about_everything() -> None:
    text = listed(["x" * 10_000] * 5_000)
    assert len(text) < 21 * (LONGEST_VIOLATION + 10)
    assert text.endswith("; and 4980 more")


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "objekt"}, {"required": "total"}, "nothing here", "module", ":Model", "", 5, ["a"], dict),
        Item(name="a", due="2026-01-01"),
    ],
    ids=str,
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(CrewInvalidInput, match="output_schema"):
        refuse_bad_schema(schema)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("nothing here", "must look like 'package.module:Model', not 'nothing here'"),
        (5, "must be a JSON Schema (a dict), a pydantic model or its import path, not int"),
        (dict, "must be a JSON Schema (a dict), a pydantic model or its import path, not type"),
        (
            {"properties": {"a": {"required": "x"}}},
            "is not a JSON Schema: $.properties.a.required: 'x' is not of type 'array'",
        ),
        ({"$ref": "other.json"}, "refers to 'other.json', which it does not contain; nothing is fetched"),
    ],
    ids=str,
)
def test_what_is_no_schema_is_told_why(schema: Any, problem: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        refuse_bad_schema(schema)
    assert str(error.value) == f"output_schema {problem}"
    assert error.value.__suppress_context__ or error.value.__context__ is None


def test_a_long_problem_of_a_schema_is_cut_off() -> None:
    with pytest.raises(CrewInvalidInput) as error:
        refuse_bad_schema({"type": "x" * 1000})
    assert str(error.value) == f"output_schema is not a JSON Schema: $.type: '{'x' * (LONGEST_VIOLATION - 1)}…"


@pytest.mark.parametrize("where", ["$defs", "properties"])
def test_a_reference_is_looked_up_from_where_it_stands(where: str) -> None:
    part = {"$id": "http://x.example/part", "$defs": {"b": {"type": "string"}}, "$ref": "#/$defs/b"}
    refuse_bad_schema({where: {"a": part}, "$ref": f"#/{where}/a"})
    refuse_bad_schema({"properties": {"$ref": {"type": "string"}}})
    with pytest.raises(CrewInvalidInput, match=r"/\$defs/c', which it does not contain"):
        refuse_bad_schema({where: {"a": {**part, "$ref": "#/$defs/c"}}})


@pytest.mark.parametrize("reference", ["#/$defs/none", "http://127.0.0.1:9/schema.json", "other.json"])
def test_a_schema_with_unresolved_references_is_refused_without_fetching(reference: str) -> None:
    with pytest.raises(CrewInvalidInput, match="which it does not contain"):
        refuse_bad_schema({"properties": {"a": {"items": {"$ref": reference}}}})


def test_every_part_of_a_schema_is_looked_through_for_references() -> None:
    parts = {"a": {"$ref": "#/$defs/none"}, "b": {"properties": {"c": {}}}}
    for properties in (parts, dict(reversed(parts.items()))):
        with pytest.raises(CrewInvalidInput, match="which it does not contain"):
            refuse_bad_schema({"properties": properties})


def test_nothing_is_fetched_when_an_output_is_compared_either(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *arguments, **more: fetched.append(arguments))
    with pytest.raises(CrewInvalidInput, match=r"^output_schema cannot be applied: .*Unresolvable"):
        validator_of({"$ref": "http://127.0.0.1:9/schema.json"})({})
    assert fetched == []


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$schema": 5}, "AttributeError: "),
        ({"$schema": ["x"]}, "TypeError: "),
        ({"$ref": "#"}, ENDLESS),
        ({"allOf": [{"$ref": "#"}]}, ENDLESS),
        ({"$id": "http://[", "$ref": "x"}, "ValueError: "),
        (deep(3000), ENDLESS),
    ],
    ids=["number", "list", "itself", "itself in a list", "address", "deep"],
)
def test_a_schema_breaking_the_library_is_refused_at_dag_parsing(schema: Any, problem: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        refuse_bad_schema(schema)
    assert str(error.value).startswith(f"output_schema cannot be applied: {problem}")
    assert error.value.__suppress_context__


@pytest.mark.parametrize("name", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize("where", [lambda part: part, lambda part: {"properties": {"a": part}}], ids=["root", "part"])
def test_a_dynamic_reference_is_looked_up_too(name: str, where: Any) -> None:
    with pytest.raises(CrewInvalidInput, match="which it does not contain"):
        refuse_bad_schema(where({name: "#nope"}))


def test_a_schema_of_a_tree_may_refer_to_itself() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$dynamicRef": "#"}}}
    refuse_bad_schema(tree)
    assert violations(tree, {"left": {"right": 5}}) == ["$.left.right: 5 is not of type 'object'"]


def test_a_library_failure_on_an_output_blames_the_schema() -> None:
    schema = {"properties": {"a": {"$ref": "#/properties/a"}}}
    assert violations(schema, {"b": 1}) == []
    with pytest.raises(CrewInvalidInput) as error:
        violations(schema, {"a": 1})
    assert str(error.value).startswith(f"output_schema cannot be applied: {ENDLESS}")


ORDER = {"type": "object", "properties": {"items": {"type": "array", "items": {"$ref": "item.json"}}}}


@pytest.mark.parametrize(
    ("order", "problem"),
    [(ORDER, "refers to 'item.json'"), ({"type": "objekt"}, "is not a JSON Schema"), (5, "is not a JSON Schema")],
    ids=["another document", "no type", "no schema"],
)
def test_a_schema_behind_another_keyword_is_looked_at_too(order: Any, problem: str) -> None:
    with pytest.raises(CrewInvalidInput, match=problem):
        refuse_bad_schema({"$ref": "#/components/schemas/Order", "components": {"schemas": {"Order": order}}})


UNTYPED = {"required": ["total"], "properties": {"total": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        (UNTYPED, "I am sorry, I cannot do that.", "the output is a string"),
        (UNTYPED, '{"total": "many"}', "'many' is not of type 'integer'"),
        ({"items": {"required": ["price"]}}, '[{"name": "tea"}]', "'price' is a required property"),
    ],
)
def test_an_untyped_schema_takes_no_text_for_object_or_list(schema: Any, text: str, problem: str) -> None:
    found = matching(validator_of(schema), text)[1]
    assert any(problem in each for each in found), found


def test_an_untyped_schema_takes_the_json_of_a_text() -> None:
    assert matching(validator_of(UNTYPED), '{"total": 3}') == ({"total": 3}, [])


def test_of_very_many_violations_some_are_looked_for() -> None:
    many = violations({"type": "array", "items": {"type": "integer"}}, ["x"] * 5_000)
    assert len(many) == MOST_FOUND


@pytest.mark.parametrize("schema", [PRICES, Order, "somewhere.else:Model", {}], ids=["schema", "model", "path", "any"])
def test_what_is_a_schema_is_taken(schema: Any) -> None:
    refuse_bad_schema(schema)


@pytest.mark.parametrize("path", ["no_such_module:Model", f"{__name__}:Missing", f"{__name__}:PRICES"])
def test_a_model_that_cannot_be_imported_is_named(path: str) -> None:
    with pytest.raises(CrewInvalidInput, match=path) as error:
        validator_of(path)
    said = {
        "no_such_module": "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        "Missing": f"cannot be imported: AttributeError: module {__name__!r} has no attribute 'Missing'",
        "PRICES": "is not a pydantic model",
    }
    assert str(error.value) == f"output_schema {path!r} {next(text for name, text in said.items() if name in path)}"


def test_a_schema_may_have_parts_that_are_true_or_false() -> None:
    schema = {"type": "object", "properties": {"a": True, "b": False}}
    refuse_bad_schema(schema)
    assert violations(schema, {"a": 1}) == []
    assert len(violations(schema, {"b": 1})) == 1


def test_a_text_fits_a_schema_without_structural_rules() -> None:
    assert violations({"minLength": 1}, "text") == []
    said = "$: the output is a string, but the schema describes an object or a list"
    assert violations({"required": ["a"]}, "text")[0] == said


def test_a_recursion_panic_in_rust_counts_as_a_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such code raises no `Exception`, so nothing else would catch it."""

    class PanicException(BaseException):
        pass

    def panics(self: object, instance: object, _schema: object = None) -> list[object]:
        raise PanicException("RecursionError")

    monkeypatch.setattr(jsonschema.Draft202012Validator, "iter_errors", panics)
    with pytest.raises(CrewInvalidInput, match="refers to itself endlessly"):
        validator_of({"type": "object"})({})
