"""A model for tests: says which task it answers, and writes each conversation down where the inputs tell it to.

What several crews share is here as well: the inputs of the execution, and how they write something down.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from crewai import BaseLLM
from pydantic import Field

LOG = re.compile(r"Log: (\S+)")
FEEDBACK = re.compile(r"User feedback: (.*?)\nInstructions: ", re.DOTALL)


class Scribe(BaseLLM):
    answers: dict[str, str] = Field(default_factory=dict)  # by the task's name
    otherwise: str = ""  # for the other tasks; empty: a line that counts what a person said

    def call(self, messages: Any, *args: Any, from_task: Any = None, **kwargs: Any) -> str:
        turns = [{"role": turn["role"], "content": str(turn["content"])} for turn in messages]
        text = "\n".join(turn["content"] for turn in turns)
        name = from_task.name if from_task else "nobody"
        if found := LOG.search(text):
            write(found.group(1), {"call": name, "turns": turns})
        self._track_token_usage_internal({"prompt_tokens": 10, "completion_tokens": 1})
        return self.answers.get(name) or self.otherwise or self._line(name, FEEDBACK.findall(text))

    def get_input_tokens_count(self, messages: Any, *args: Any, **kwargs: Any) -> int:
        return 10

    @staticmethod
    def _line(name: str, wishes: list[str]) -> str:
        return " ".join([f"{name} v{1 + len(wishes)}", *(f"({wish})" for wish in wishes)])


class Adder(Scribe):
    """Uses its tool once, in words, as models without function calling do."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        if any("Observation: 7" in str(turn["content"]) for turn in messages):
            return "Thought: I know\nFinal Answer: It is 7."
        return 'Thought: I add\nAction: add\nAction Input: {"a": 3, "b": 4}'


INPUTS: dict[str, Any] = {}


def remember(inputs: dict[str, Any]) -> dict[str, Any]:
    """Keep the inputs for tools; a callback before the kickoff."""
    INPUTS.update(inputs)
    return inputs


def write(log: str, entry: dict[str, Any]) -> None:
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
