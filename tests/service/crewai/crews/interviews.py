"""Flows whose methods ask people between calls of a model; their process dies on request."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, ClassVar

from crewai import LLM, Flow
from crewai.flow import listen, start
from pydantic import BaseModel
from scribe import write

QUESTIONS = ("Which name?", "Which colour?", "Which name?")  # two are alike


class State(BaseModel):
    case: str = ""
    log: str = ""
    kill: str = ""
    timeout: float | None = None


class Interview(Flow[State]):
    def prepared(self, number: int, said: list[str | None]) -> str:
        model = LLM(model="gpt-4o-mini")
        text = str(model.call(f"Case: {self.state.case} . Question {number}, after {said}"))
        self.point(number)
        return text

    def point(self, place: float) -> None:
        """Kill this process here, once, if that is wanted."""
        kill = Path(self.state.kill)
        if self.state.kill and kill.exists() and float(kill.read_text()) == place:
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def answers(self) -> list[str | None]:
        said: list[str | None] = []
        for number, question in enumerate(QUESTIONS, 1):
            notes = self.prepared(number, said)
            metadata = {"number": number, "notes": notes, "key": os.environ["OPENAI_API_KEY"]}
            said.append(self.ask(question, timeout=self.state.timeout, metadata=metadata))
            self.point(number + 0.5)
        write(self.state.log, {"answers": said})
        return said

    @start()
    def interview(self) -> str:
        return " and ".join(str(each) for each in self.answers())

    @listen(interview)
    def end(self, said: str) -> str:
        return f"They said {said}."


class Awaited(Interview):
    @start()
    async def interview(self) -> str:
        return " and ".join(str(each) for each in self.answers())

    @listen(interview)
    def end(self, said: str) -> str:
        return f"They said {said}."


class Nested(Flow[State]):
    @start()
    def begin(self) -> str:
        return str(Interview().kickoff(inputs={**self.state.model_dump(exclude={"id"})}))


class Catching(Interview):
    @start()
    def interview(self) -> str:
        try:
            return " and ".join(str(each) for each in self.answers())
        except BaseException:
            return "nothing"

    @listen(interview)
    def end(self, said: str) -> str:
        return f"They said {said}."


class Provider:
    def request_input(self, message: str, flow: Any, metadata: dict[str, Any] | None = None) -> str:
        return "ours"


class Own(Interview):
    input_provider = Provider()

    @start()
    def interview(self) -> str:
        return " and ".join(str(each) for each in self.answers())


class Chat(Flow[Any]):
    conversational: ClassVar[bool] = True  # in versions that have such Flows

    @start()
    def bill(self) -> str:
        return "paid"
