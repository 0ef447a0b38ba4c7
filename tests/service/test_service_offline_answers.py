"""What the offline model answers: the shape that a request demands, and the tools that a file names. Pure."""

from __future__ import annotations

import datetime
import enum
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from crew_service.engine.crew import BadTarget
from crew_service.offline.answers import ANSWER, Answer, Call, Message, Request, answers_of, embedding, reply
from crew_service.offline.example import example_of

TEXT = "A text."


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel):
    number: Annotated[int, Field(gt=3, multiple_of=5)]
    share: Annotated[float, Field(ge=0, lt=1)]
    names: Annotated[list[str], Field(min_length=2)]
    colour: Colour
    kind: Literal["leaf"]
    when: datetime.datetime
    day: datetime.date


class Tree(BaseModel):
    leaf: Leaf
    leaves: dict[str, Leaf]
    pair: tuple[int, str]
    either: int | str
    below: Tree | None = None
    text: Annotated[str, Field(min_length=9, max_length=12)]
    is_valid: bool


class Nested(BaseModel):
    inner: list[Nested]


class Wide(BaseModel):
    first: list[Wide]
    second: list[Wide]
    third: dict[str, Wide]
    fourth: list[list[Wide]]
    fifth: tuple[Wide, ...]


@pytest.mark.parametrize("model", [Tree, Leaf, Nested, Wide])
def test_an_example_fits_the_schema_of_a_model(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    example = example_of(schema, TEXT)
    jsonschema.validate(example, schema, format_checker=jsonschema.FormatChecker())
    model.model_validate(example)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"]},
        {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}], "properties": {"b": {}}},
        {"type": "array", "maxItems": 0, "items": {"type": "string"}},
        {
            "type": "object",
            "properties": {"x": {"oneOf": [{"type": "integer", "maximum": -3}]}},
            "required": ["x", "y"],
        },
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"enum": [7]}}},
        {},
        True,
    ],
)
def test_an_example_fits_a_schema_written_by_hand(schema: Any) -> None:
    jsonschema.validate(example_of(schema, TEXT), schema)


def test_a_schema_that_nothing_can_fit_ends() -> None:
    example_of(
        {"$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}, "$ref": "#/$defs/a"}, ""
    )


def test_a_schema_that_names_itself_often_gets_a_short_example() -> None:
    assert len(json.dumps(example_of(Wide.model_json_schema(), TEXT))) < 10_000


TWICE = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}},
    "required": ["a", "b"],
}
ENDLESS = [
    {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"},
    {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"},
    {"$defs": {"A": TWICE}, "$ref": "#/$defs/A"},
    {"type": "array", "minItems": 10**9},
    {"type": "string", "minLength": 10**12},
    {"type": "array", "minItems": 10**9, "items": True},
    {"type": "array", "minItems": 4_000, "items": {"const": ["x"] * 100}},
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_schema_that_demands_too_much_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="more than 5,000 values"):
        example_of(schema, TEXT)


ASKED = [Message("system", "You use tools."), Message("user", "Summarize it.")]
CALLED = [Message("assistant", calls=1), Message("tool", "found")]
SEARCH = Call("search", '{"query": "tea"}')
ANSWERS = {"Summarize": Answer("In short: tea.", (SEARCH, SEARCH))}
TOOLS = {"search": {"properties": {"query": {"type": "string"}}, "required": ["query"]}}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request(ASKED), "In short: tea."),  # a tool that is not offered is not called
        (Request(ASKED, TOOLS), SEARCH),
        (Request([*ASKED, *CALLED], TOOLS), SEARCH),
        (Request([*ASKED, *CALLED, *CALLED], TOOLS), "In short: tea."),
        # CrewAI adds a message of its own after a result.
        (Request([*ASKED, *CALLED, Message("user", "Analyze it."), *CALLED, Message("user", "Go on.")], TOOLS),
         "In short: tea."),
        (Request([*ASKED, *CALLED, Message("assistant", "It is tea."), Message("user", "And coffee?")], TOOLS), ANSWER),
        (Request([Message("user", "?")], TOOLS, required="search"), Call("search", json.dumps({"query": ANSWER}))),
        (Request([Message("user", "?")], schema={"type": "object", "properties": {"valid": {"type": "boolean"}}}),
         '{"valid": true}'),
    ],
)  # fmt: skip
def test_the_reply_is_the_files_tools_then_its_text(request_: Request, expected: str | Call) -> None:
    assert reply(request_, ANSWERS) == expected


def test_a_json_text_serves_as_the_object_a_schema_demands() -> None:
    answers = {"it": Answer('{"title": "Tea"}')}
    assert reply(Request(ASKED, schema={"type": "object"}), answers) == '{"title": "Tea"}'


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("Thought: ...\nFinal Answer: the answer", f"Thought: I now can give a great answer\nFinal Answer: {ANSWER}"),
        ("After your plan, state READY or NOT READY.", f"{ANSWER}\n\nREADY: I am ready to execute the task."),
    ],
)
def test_a_text_has_the_words_a_crewai_prompt_demands(prompt: str, text: str) -> None:
    assert reply(Request([Message("user", prompt)]), {}) == text


def test_embeddings_are_stable_and_closer_for_texts_sharing_words() -> None:
    def likeness(one: str, other: str) -> float:
        return sum(a * b for a, b in zip(embedding(one), embedding(other), strict=True))

    assert embedding("green tea") == embedding("green tea")
    assert math.isclose(likeness("", ""), 1.0)
    assert likeness("green tea from Japan", "tea from Japan") > likeness("green tea from Japan", "a red car")


@pytest.mark.parametrize(
    "answers",
    [
        {"tea": 1},
        {"tea": {"txt": "x"}},
        {"tea": {"tools": [{}]}},
        {"tea": {"tools": [{"name": "search", "arguments": "tea"}]}},
        {"tea": {"tools": [{"name": "search", "args": {}}]}},
        {"tea": {"text": None}},
    ],
    ids=str,
)
def test_answers_of_another_shape_are_refused(answers: Any, tmp_path: Path) -> None:
    (file := tmp_path / "answers.json").write_text(json.dumps(answers))
    with pytest.raises(BadTarget, match="maps words to strings"):
        answers_of(file)
