"""Crews of CrewAI's own models, whose answers come from a server of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crewai import LLM, Agent, BaseLLM, Crew, Task
from crewai.events.types.llm_events import LLMCallType
from crewai.flow import Flow, human_feedback, listen, start
from crewai.tools import tool
from pydantic import BaseModel


@tool("add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent(model: str | BaseLLM) -> Agent:
    return Agent(
        role="Writer", goal="g", backstory="b", llm=LLM(model=model) if isinstance(model, str) else model, tools=[add]
    )


def task(name: str, of: Agent, **options: object) -> Task:
    return Task(name=name, description=f"Do {name} on {{topic}}.", expected_output="text", agent=of, **options)


def costly() -> Crew:
    """Two of its tasks run at once, and their agents share a model."""
    shared = LLM(model="gpt-4o-mini")
    left, right, writer = agent(shared), agent(shared), agent("gpt-4o")
    beside = [task("left", left, async_execution=True), task("right", right, async_execution=True)]
    tasks = [*beside, task("draft", writer, human_input=True), task("last", left)]
    return Crew(agents=[left, right, writer], tasks=tasks)


def interrupted() -> Crew:
    """Its second task waits until a file is there, after its model has answered."""
    of = agent("gpt-4o")

    def wait(output):  # type: ignore[no-untyped-def]
        while not Path("go").exists():
            time.sleep(0.02)
        return True, output.raw

    return Crew(agents=[of], tasks=[task("first", of), task("second", of, guardrail=wait)])


class Topic(BaseModel):
    topic: str = "tea"


class CostlyFlow(Flow[Topic]):
    @start()
    def research(self) -> str:
        of = agent("gpt-4o-mini")
        return Crew(agents=[of], tasks=[task("a", of), task("b", of)]).kickoff(inputs={"topic": "tea"}).raw

    @listen(research)
    @human_feedback(message="Go on?", emit=["yes", "no"])
    def check(self, text: str) -> str:
        return text

    @listen("yes")
    async def write(self, answer: object) -> str:
        return str(await LLM(model="gpt-4o").acall("Write."))


class Silent(BaseLLM):
    """What somebody writes around a client of their own: it neither counts nor emits events."""

    def call(self, *args: object, **kwargs: object) -> str:
        return "Final Answer: text"

    async def acall(self, *args: object, **kwargs: object) -> str:
        return self.call()


class Router(BaseLLM):
    """Gives each call to another model."""

    to: BaseLLM

    def call(self, *args: object, **kwargs: object) -> object:
        return self.to.call(*args, **kwargs)


class Odd(BaseLLM):
    """Counts in a thread of its own, and emits its event itself; fails once after it was counted."""

    failures: int = 1

    def call(self, messages: object, *args: object, from_task: object = None, **kwargs: object) -> str:
        figures = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        counting = threading.Thread(target=self._track_token_usage_internal, args=(figures,))
        counting.start()
        counting.join()
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the answer was lost")
        self._emit_call_completed_event("text", LLMCallType.LLM_CALL, from_task=from_task, usage=figures)
        return "Final Answer: text"


def silent() -> Crew:
    """Only the second of its models counts, and the fourth is its second once more."""
    models = Silent(model="quiet"), LLM(model="gpt-4o"), Router(model="router", to=Silent(model="behind"))
    agents = [agent(model) for model in (*models, Router(model="router", to=models[1]))]
    names = ("quiet", "loud", "behind", "again")
    return Crew(agents=agents, tasks=[task(name, of) for name, of in zip(names, agents, strict=True)])


class SilentFlow(Flow[Topic]):
    @start()
    async def write(self) -> str:
        class Late(Silent):
            pass

        return await Silent(model="quiet").acall("Write.") + Late(model="late").call("Write.")


def odd() -> Crew:
    of = agent(Odd(model="odd"))
    return Crew(agents=[of], tasks=[task("only", of)])


class Each(Flow[Topic]):
    """The models of its crew's copies share one count."""

    @start()
    def write(self) -> str:
        of = agent("gpt-each")
        return Crew(agents=[of], tasks=[task("a", of)]).kickoff_for_each([{"topic": "x"}, {"topic": "y"}])[0].raw


def retried() -> Crew:
    """CrewAI throws away an answer that does not fit, with its figures."""
    of = Agent(role="Writer", goal="g", backstory="b", llm=LLM(model="gpt-retried"))
    return Crew(agents=[of], tasks=[task("only", of, output_pydantic=Topic)])


def converted() -> Crew:
    """CrewAI converts its output by the provider's own client."""
    of = agent("gpt-converted")
    return Crew(agents=[of], tasks=[task("only", of, output_json=Topic)])


class Instrumented:
    """A method as tools for observation wrap it."""

    def __init__(self, method: Callable[..., str]) -> None:
        self.method = method

    def __get__(self, instance: object, owner: object = None) -> Callable[..., str]:
        return partial(self.method, instance)


class Answers:
    call = Instrumented(lambda model, *args, **kwargs: f"Final Answer: {model.model}")


class Mixed(Answers, BaseLLM):
    """Has its call from a class that is no model."""


class Cascade(BaseLLM):
    """Asks another model something else, and answers itself."""

    to: BaseLLM

    def call(self, *args: object, **kwargs: object) -> str:
        self.to.call("Is it hard?")
        return "Final Answer: by myself"


def hidden() -> Crew:
    agents = [agent(Mixed(model="mixed")), agent(Cascade(model="cascade", to=LLM(model="gpt-cascade")))]
    return Crew(agents=agents, tasks=[task("a", agents[0]), task("b", agents[1])])
