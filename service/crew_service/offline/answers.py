"""What the model answers, apart from how OpenAI's endpoints write it. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crew_service.engine.crew import BadTarget
from crew_service.engine.drafts import json_object_in
from crew_service.offline.example import Json, example_of

ANSWER = "An answer from the offline model."
DIMENSIONS = 1536
MOST_DIMENSIONS = 16_384
MOST_NUMBERS = 2_048 * 3_072  # in the embeddings of one request: as many as OpenAI's largest model returns
# What CrewAI's prompts demand of a text: where these words occur, the text is written so, or CrewAI asks again.
DEMANDED = {
    "Final Answer:": "Thought: I now can give a great answer\nFinal Answer: {text}",
    "NOT READY": "{text}\n\nREADY: I am ready to execute the task.",
}


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    :param name: the tool's name
    :param arguments: the arguments as JSON
    """

    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """A message of a conversation.

    :param role: ``system``, ``user``, ``assistant`` or ``tool``
    :param calls: the number of tool calls in it
    """

    role: str
    text: str = ""
    calls: int = 0


@dataclass(frozen=True)
class Request:
    """A request to the model, in whichever form it came.

    :param messages: the conversation
    :param tools: the schema of each tool's arguments, by name
    :param required: the tool that must be called; None if none must
    :param schema: the schema that the answer must fit; None for a text
    """

    messages: list[Message]
    tools: dict[str, Json] = field(default_factory=dict)
    required: str | None = None
    schema: Json | None = None


@dataclass(frozen=True)
class Answer:
    """The answer for a word: the tools to call one after the other, then the text."""

    text: str = ANSWER
    calls: tuple[Call, ...] = ()


def answers_of(file: Path | None) -> dict[str, Answer]:
    """Read the answers.

    :param file: a JSON object that maps words to texts, or to ``{"text": ..., "tools": [{"name", "arguments"}]}``
    :raises BadTarget: it is something else
    """
    if file is None:
        return {}
    try:
        answers = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadTarget(f"The answers in {str(file)!r} cannot be read: {error}.") from None
    try:
        return {word: _answer(answer) for word, answer in answers.items()}
    except (AttributeError, KeyError, TypeError):
        raise BadTarget(
            f"The answers in {str(file)!r} must be one JSON object that maps words to strings, or to objects with "
            '"text" and "tools", a list of objects with "name" and "arguments".'
        ) from None


def _answer(value: Any) -> Answer:
    if isinstance(value, str):
        return Answer(value)
    text, tools = value.get("text", ANSWER), value.get("tools", [])
    if not isinstance(text, str) or set(value) - {"text", "tools"}:
        raise TypeError
    calls = []
    for tool in tools:
        arguments = tool.get("arguments", {})
        if not isinstance(tool["name"], str) or not isinstance(arguments, dict) or set(tool) - {"name", "arguments"}:
            raise TypeError
        calls.append(Call(tool["name"], json.dumps(arguments)))
    return Answer(text, tuple(calls))


def reply(request: Request, answers: dict[str, Answer]) -> str | Call:
    """Return the text or the call with which the model answers."""
    question, calls = _question(request.messages)
    chosen = next((answer for word, answer in answers.items() if word in question), Answer())
    following = chosen.calls[calls:]
    if following and following[0].name in request.tools:
        return following[0]
    if request.required is not None:
        schema = request.tools.get(request.required, {})
        return Call(request.required, _shaped(chosen.text, schema))
    if request.schema is not None:
        return _shaped(chosen.text, request.schema)
    text = chosen.text
    for demand, form in DEMANDED.items():
        if any(demand in each.text for each in request.messages if each.role != "assistant"):
            text = form.format(text=text)
    return text


def _question(messages: list[Message]) -> tuple[str, int]:
    """Return the message that the model answers, and how many tools it has called since."""
    calls, last = 0, len(messages) - 1
    while last > 0:
        before, message = messages[last - 1], messages[last]
        if message.role == "tool" or message.calls or before.role == "tool":
            calls += message.calls
            last -= 1
        else:
            break
    return (messages[last].text if messages else ""), calls


def _shaped(text: str, schema: Json) -> str:
    """Return the text as JSON: the object that it is, else an example with the text in it."""
    value = json_object_in(text)
    return json.dumps(example_of(schema, text) if value is None else value, allow_nan=False)


def embedding(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Return a unit vector; the more words two texts share, the closer are theirs."""
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()) or [text]:
        digest = hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
        vector[int.from_bytes(digest[:4], "big") % dimensions] += 1.0
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]
