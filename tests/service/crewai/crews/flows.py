"""Flows of many kinds; the input `log` is the file in which their methods leave their marks."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from crewai import Agent, Crew, Task
from crewai.flow import Flow, and_, human_feedback, listen, or_, router, start
from crewai.flow.persistence import persist
from crewai.memory.unified_memory import Memory
from pydantic import BaseModel
from scribe import Scribe, write


class Briefing(BaseModel):
    topic: str = "nothing"
    log: str = ""
    round: int = 0
    parts: list[str] = []


class Logged(Flow[Briefing]):
    def mark(self, call: str) -> None:
        if self.state.log:
            write(self.state.log, {"call": call})


class BriefingFlow(Logged):
    """A gate with outcomes, one of which leads back to it, then a gate for free text."""

    @start()
    def begin(self) -> str:
        self.mark("begin")
        return "notes"

    @listen(or_(begin, "rework"))
    @human_feedback(message="May this go out?", emit=["publish", "rework", "drop"])
    def draft(self) -> str:
        self.state.round += 1
        self.mark("draft")
        said = f", after: {self.last_human_feedback.feedback}" if self.last_human_feedback else ""
        return f"Draft {self.state.round} on {self.state.topic}{said}"

    @listen("publish")
    @human_feedback(message="Where to?")
    def place(self, approved: Any) -> str:
        self.mark("place")
        self.state.parts.append(approved.output)
        return "Choose a place"

    @listen(place)
    def send(self, answer: Any) -> str:
        self.mark("send")
        return f"{self.state.parts[0]}, sent to {answer.feedback}"

    @listen("drop")
    def give_up(self) -> str:
        return "dropped"


@persist()
class RoundsFlow(Logged):
    """An outcome leads back to the first of two steps before the gate."""

    @start()
    def begin(self) -> str:
        self.mark("begin")
        return "notes"

    @listen(or_(begin, "again"))
    def sift(self) -> str:
        self.mark("sift")
        return "the best"

    @listen(sift)
    def write_up(self) -> str:
        self.state.round += 1
        self.mark("write_up")
        return f"Draft {self.state.round}"

    @listen(write_up)
    @human_feedback(message="May this go out?", emit=["send", "again"])
    def check(self, draft: str) -> str:
        self.mark("check")
        return draft

    @listen("send")
    def post(self, checked: Any) -> str:
        self.mark("post")
        return f"{checked.output}, sent"


class ReviewFlow(Logged):
    """Two reviewers side by side, and work beside both."""

    @start()
    @human_feedback(message="Are the facts right?", emit=["approved", "rejected"])
    def facts(self) -> str:
        self.mark("facts")
        return "Facts"

    @start()
    @human_feedback(message="Is the style right?")
    def style(self) -> str:
        self.mark("style")
        return "Style"

    @start()
    async def figures(self) -> str:
        await asyncio.sleep(0.3)
        self.mark("figures")
        self.state.parts.append("figures")
        return "Figures"

    @listen(figures)
    def table(self) -> str:
        self.mark("table")
        return "Table"

    @listen(and_("approved", style, table))
    def publish(self) -> str:
        self.mark("publish")
        answers = sorted(f"{one.method_name}={one.outcome or one.feedback}" for one in self.human_feedback_history)
        return f"published with {', '.join(answers)} and {self.state.parts}"


class ForgetfulFlow(Logged):
    @start()
    @human_feedback(message="Go on?")
    def ask(self) -> str:
        self.cart = ["tea"]
        return "A cart"

    @listen(ask)
    def pay(self) -> str:
        return f"paid for {self.cart}"


class RacingFlow(Logged):
    @start()
    def begin(self) -> str:
        return "go"

    @listen(begin)
    @human_feedback(message="Quick?")
    def person(self) -> str:
        return "a person's way"

    @listen(begin)
    async def machine(self) -> str:
        await asyncio.sleep(0.2)
        return "the machine's way"

    @listen(or_(person, machine))
    def finish(self, result: Any) -> str:
        return f"finished by {result}"


class Needy(BaseModel):
    topic: str
    depth: int = 1


class NeedyFlow(Flow[Needy]):
    @start()
    def tell(self) -> dict[str, Any]:
        return {"topic": self.state.topic, "depth": self.state.depth}


class PlainFlow(Flow):
    initial_state = {"topic": "something"}  # noqa: RUF012 - as users write it

    @start()
    def tell(self) -> str:
        return f"about {self.state['topic']} for {self.state.get('who')}"


@persist()
class CountingFlow(Flow[Briefing]):
    @start()
    def count(self) -> str:
        self.state.round += 1
        return f"{self.state.topic} {self.state.round}"

    @listen(count)
    @human_feedback(message="Go on?", emit=["yes", "no"])
    def ask(self) -> str:
        return f"{self.state.topic} {self.state.round}"

    @listen("yes")
    def again(self) -> str:
        self.state.round += 1
        return f"{self.state.topic} {self.state.round}"


def small_crew(name: str, *, human_input: bool = False) -> Crew:
    writer = Agent(role=name, goal="g", backstory="b", llm=Scribe(model="scribe"))
    text = f"Do {name} on {{topic}}. Log: {{log}} ."
    task = Task(name=name, description=text, expected_output="text", agent=writer, human_input=human_input)
    return Crew(agents=[writer], tasks=[task])


class Slow(Scribe):
    def call(self, *args: Any, **kwargs: Any) -> str:
        time.sleep(1)
        return super().call(*args, **kwargs)


class ParallelLetters(Logged):
    """Two crews at once, each with a draft to approve; the one that starts later is the first to ask."""

    @start()
    async def write(self) -> str:
        letter, note = (small_crew(name, human_input=True) for name in ("letter", "note"))
        letter.agents[0].llm = Slow(model="scribe")

        async def written(crew: Crew, pause: float) -> str:
            await asyncio.sleep(pause)
            return str((await crew.kickoff_async(inputs=self.state.model_dump())).raw)

        return " and ".join(await asyncio.gather(written(letter, 0), written(note, 0.2)))


class SeldomReviewed(Logged):
    """A draft that a person sees only once, and another after it."""

    @start()
    def write(self) -> str:
        is_first = not Path(self.state.log).exists()
        crews = small_crew("letter", human_input=is_first), small_crew("note", human_input=True)
        return " and ".join(str(crew.kickoff(inputs=self.state.model_dump()).raw) for crew in crews)


class ChaptersFlow(Logged):
    """A loop around a draft that a person sees each time; with `round`, each has a text of its own."""

    @start()
    def begin(self) -> None:
        self.mark("begin")

    @listen(or_(begin, "more"))
    def write(self) -> None:
        topic = f"{self.state.topic} {len(self.state.parts) * self.state.round}"
        crew = small_crew("chapter", human_input=True)
        self.state.parts.append(crew.kickoff(inputs={"topic": topic, "log": self.state.log}).raw)

    @router(write)
    def check(self) -> str:
        return "more" if len(self.state.parts) < 2 else "done"

    @listen("done")
    def finish(self) -> str:
        return " and ".join(self.state.parts)


class CrewsFlow(Logged):
    """Several crews, one of them asynchronous, and a result that is no plain text."""

    @start()
    def research(self) -> Any:
        return small_crew("research").kickoff(inputs=self.state.model_dump())

    @listen(research)
    async def write_up(self, found: Any) -> Any:
        written = await small_crew("writing").kickoff_async(inputs=self.state.model_dump())
        return f"{found.raw} + {written.raw}"

    @router(write_up)
    def check(self, text: str) -> str:
        self.state.parts.append(text)
        return "good"

    @listen("good")
    def finish(self) -> dict[str, Any]:
        return {"text": self.state.parts[0]}


class CrewAsksFlow(Logged):
    """A crew of two tasks that asks at the second, then a question of the Flow itself, then another crew that asks."""

    @start()
    def begin(self) -> str:
        self.mark("begin")
        return "go"

    @listen(begin)
    def research(self) -> str:
        self.state.round += 1
        crew = small_crew("research")
        crew.tasks.append(small_crew("writing", human_input=True).tasks[0])
        text = crew.kickoff(inputs={"topic": self.state.topic, "log": self.state.log}).raw
        return f"{text} in round {self.state.round}"

    @listen(research)
    @human_feedback(message="Where to?")
    def place(self, text: str) -> str:
        self.state.parts.append(text)
        return text

    @listen(place)
    async def send(self, answer: Any) -> str:
        letters = []
        for reader in (answer.feedback, "the press"):
            crew = small_crew("letter", human_input=True)
            crew.tasks[0].callback = lambda letter: self.mark(f"sent {letter.raw}")
            letters.append(await crew.kickoff_async(inputs={"topic": reader, "log": self.state.log}))
        return f"{self.state.parts[0]}; {' and '.join(letter.raw for letter in letters)}"


class AwaitedFlow(Logged):
    """Awaits a crew with memory, whose task has an asynchronous callback."""

    @start()
    async def send(self) -> str:
        crew = small_crew("letter", human_input=True)
        memory = Memory(
            embedder=lambda texts: [[1.0, float(len(text))] for text in texts],
            llm=Scribe(model="scribe"),
            storage=f"{self.state.log}.memory",  # other crews' vectors have other lengths
        )
        crew.agents[0].memory = memory.scope("/letters")

        async def sent(letter: Any) -> None:
            await asyncio.sleep(0)
            self.mark(f"sent {letter.raw}")
            for record in memory.list_records("/letters"):
                self.mark(record.content.partition("Result: ")[2])

        crew.tasks[0].callback = sent
        return (await crew.akickoff(inputs={"topic": self.state.topic, "log": self.state.log})).raw


class FicklePlan(Logged):
    """A method whose crew has other texts each time it runs."""

    @start()
    def plan(self) -> str:
        return small_crew("plan", human_input=True).kickoff(inputs={"topic": str(time.time()), "log": ""}).raw


class InterruptedFlow(Logged):
    """Waits in its second method until it is let go."""

    @start()
    def first(self) -> Briefing:
        self.mark("first")
        self.state.parts.append("first")
        return Briefing(topic="of the first")

    @listen(first)
    def second(self, given: Briefing) -> str:
        write(self.state.log, {"call": "second", "pid": os.getpid()})
        while not Path(f"{self.state.log}.go").exists():
            time.sleep(0.05)
        return f"{given.topic} {self.state.parts}"


class FirstFlow(Logged):
    """Uses the result of the source that ends first, and of the one that ends last."""

    @start()
    async def slow(self) -> str:
        await asyncio.sleep(0.5)
        return "slow"

    @start()
    async def fast(self) -> str:
        return "fast"

    @listen(or_(slow, fast))
    async def first(self, which: str) -> str:
        await asyncio.sleep(1)
        self.mark(f"first {which}")
        return f"first {which}"

    @listen(and_(slow, fast))
    async def last(self, which: str) -> str:
        await asyncio.sleep(1)
        self.mark(f"last {which}")
        return f"last {which}"


def made() -> Flow[Any]:
    return PlainFlow()
