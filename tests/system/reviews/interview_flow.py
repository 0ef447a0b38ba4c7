"""A Flow that asks three times in one method, with a model call before each question; nobody answers the second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crewai import BaseLLM, Flow
from crewai.flow import listen, start
from pydantic import BaseModel

QUESTIONS: dict[str, float | None] = {"Who is the reader?": None, "Which colour?": 20, "Which title?": None}  # seconds


class CountedModel(BaseLLM):
    """A model without a network, which writes each call to a file."""

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        with Path("calls.log").open("a") as log:
            log.write(f"{messages}\n")
        return f"Notes: {messages}"


class State(BaseModel):
    topic: str = ""


class Interview(Flow[State]):
    @start()
    def interview(self) -> str:
        model, said = CountedModel(model="counted"), []
        for question, timeout in QUESTIONS.items():
            notes = model.call(f"{self.state.topic}, after {said}")
            said.append(self.ask(question, timeout=timeout, metadata={"notes": notes}))
        return ", ".join(map(str, said))

    @listen(interview)
    def end(self, said: str) -> str:
        return f"On {self.state.topic}: {said}"
