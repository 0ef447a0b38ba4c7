"""Flows whose states and results are hard to keep; `log` is where their methods leave their marks."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import numpy
from crewai import Agent, Crew, CrewOutput, Task, TaskOutput
from crewai.flow import Flow, human_feedback, listen, or_, router, start
from crewai.flow.persistence import persist
from crewai.lite_agent_output import LiteAgentOutput
from flows import small_crew
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_serializer
from pydantic.alias_generators import to_camel
from scribe import Scribe, write

from crew_service.crewai import codec


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    id: str = ""
    log: str = ""
    draft_text: str = ""
    work_count: int = Field(default=0, validation_alias=AliasChoices("workCount", "works"))


class Page(BaseModel):
    text: str = ""


class LastPage(Page):
    number: int = 0


class Report(BaseModel):
    model_config = ConfigDict(extra="allow", alias_generator=to_camel)
    first_page: Page | None = None
    size: int = 0
    left_out: str = Field(default="", exclude=True)
    key: SecretStr = SecretStr("")
    _read: list[str] = PrivateAttr(default_factory=list)

    @field_serializer("size")
    def _told(self, size: int) -> str:
        return f"{size} pages"


class Cart:
    def __init__(self) -> None:
        self.items = [Page(text="tea")]


class Client:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return "a client"


def report() -> Report:
    made = Report(firstPage=LastPage(text="a", number=3), size=1, left_out="b", key=SecretStr("s"), more=(1,))
    made._read.append("x")
    return made


def answer_of_crew() -> CrewOutput:
    task = TaskOutput(description="d", raw="{}", agent="a", pydantic=LastPage(number=1))
    return CrewOutput(raw="{}", pydantic=report(), tasks_output=[task])


def local() -> Any:
    class Local(BaseModel):
        pass

    return Local()


THINGS: dict[str, Callable[[], Any]] = {
    "a model": report,
    "a list of models": lambda: [Page(), LastPage(number=2)],
    "a tuple": lambda: (1, (Page(),)),
    "a crew's output": answer_of_crew,
    "an agent's output": lambda: LiteAgentOutput(raw="r", pydantic=Page(), agent_role="a"),
    "a date": lambda: date(2026, 11, 28),
    "a time with a zone": lambda: datetime(2026, 11, 28, 3, tzinfo=ZoneInfo("Asia/Tokyo")),
    "a set": lambda: {"b", "a"},
    "infinity": lambda: math.inf,
    "bytes": lambda: b"\xff\x00",
    "an array": lambda: numpy.arange(3.0),
    "an object": Cart,
    "a client": Client,
    "a class of a function": local,
    "a function": lambda: local,
}


def everything() -> dict[str, Any]:
    return {kind: make() for kind, make in THINGS.items() if kind not in NOT_KEPT and kind != "everything"}


NOT_KEPT = ("a client", "a class of a function", "a function")
THINGS["everything"] = everything


class Loose(BaseModel):
    id: str = ""
    log: str = ""
    kind: str = ""
    way: str = ""
    thing: Any = None


class Marked:
    state: Any

    def mark(self, call: str) -> None:
        write(self.state.log, {"call": call})

    def die_once(self) -> None:
        """Die like a killed process, but only the first time."""
        flag = Path(f"{self.state.log}.died")
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def check(self, thing: Any) -> str:
        """Return whether a thing is what it was, or what it has become."""
        if self.state.kind in NOT_KEPT:
            return "same" if type(thing) is not str else thing
        return "same" if codec.encoded(thing) == codec.encoded(THINGS[self.state.kind]()) else repr(thing)


class StateFlow(Flow[Loose], Marked):
    """Keeps something in its state."""

    @start()
    def fill(self) -> str:
        self.mark("fill")
        self.state.thing = THINGS[self.state.kind]()
        return "filled"

    @listen(fill)
    def go_on(self) -> str:
        if self.state.way == "kill":
            self.die_once()
        return self.check(self.state.thing)


class SharingFlow(Flow[Loose], Marked):
    """Changes a part of its state that its state has in two places."""

    @start()
    def fill(self) -> str:
        pages = [Page(text="a"), Page(text="b")]
        self.state.thing = {"pages": pages, "current": pages[0], "all": [pages]}
        self.state.thing["self"] = self.state.thing
        return "filled"

    @listen(fill)
    def go_on(self) -> str:
        self.die_once()
        self.state.thing["current"].text += "!"
        return "went on"

    @listen(go_on)
    @human_feedback(message="Good?")
    def ask(self) -> str:
        return "asked"

    @listen(ask)
    def end(self) -> str:
        self.state.thing["current"].text += "?"
        return " ".join(page.text for page in self.state.thing["self"]["all"][0])


class AskingStateFlow(Flow[Loose], Marked):
    """Asks before it uses its state again."""

    @start()
    def fill(self) -> str:
        self.mark("fill")
        self.state.thing = THINGS[self.state.kind]()
        return "filled"

    @listen(fill)
    def go_on(self) -> str:
        if self.state.way == "kill":
            self.die_once()
        return self.check(self.state.thing)

    @listen(go_on)
    @human_feedback(message="Good?")
    def ask(self) -> Any:
        return self.state.kind

    @listen(ask)
    def end(self) -> str:
        return self.check(self.state.thing)


class ResultFlow(Flow[Loose], Marked):
    """Returns something from a method."""

    @start()
    def make(self) -> Any:
        self.mark("make")
        return THINGS[self.state.kind]()

    @listen(make)
    def take(self, thing: Any) -> str:
        if self.state.way == "kill":
            self.die_once()
        return self.check(thing)


class AskingResultFlow(Flow[Loose], Marked):
    """Asks about something that it returns."""

    @start()
    @human_feedback(message="Good?")
    def make(self) -> Any:
        self.mark("make")
        return THINGS[self.state.kind]()

    @listen(make)
    def take(self, answer: Any) -> str:
        return self.check(answer.output)

    @listen(take)
    @human_feedback(message="And now?")
    def ask(self, checked: str) -> str:
        return checked

    @listen(ask)
    def end(self, answer: Any) -> str:
        first = self.check(self.method_outputs[0].output)
        return f"{answer.output} {first}"


class CrewInMethodFlow(Flow[Loose], Marked):
    """A crew that a method starts asks, after something was made that cannot be kept."""

    @start()
    def make(self) -> Any:
        self.mark("make")
        return THINGS[self.state.kind]()

    @listen(make)
    def write_up(self) -> str:
        return str(small_crew("letter", human_input=True).kickoff(inputs={"topic": "tea", "log": self.state.log}).raw)


@persist()
class CamelFlow(Flow[Camel], Marked):
    @start()
    def draft(self) -> str:
        self.mark("draft")
        self.state.draft_text += "coffee"
        self.state.work_count += 1
        return self.state.draft_text

    @listen(draft)
    @human_feedback(message="Good?")
    def ask(self) -> str:
        return self.state.draft_text

    @listen(ask)
    def end(self) -> str:
        return f"{self.state.draft_text} {self.state.work_count}"


class WithMore(Camel):
    written_by: str = "nobody"


class Outlined(BaseModel):
    """A state with defaults that its own types would refuse, as in CrewAI's guides."""

    topic: str = ""
    outline: Page = None  # type: ignore[assignment]
    pages: list[str] = None  # type: ignore[assignment]


class OutlineFlow(Flow[Outlined]):
    @start()
    def plan(self) -> str:
        return f"{self.state.outline} on {self.state.topic or 'nothing'}"

    @listen(plan)
    @human_feedback(message="Go on?")
    def ask(self, planned: str) -> str:
        return planned

    @listen(ask)
    def end(self) -> str:
        before, self.state.outline = self.state.outline, Page(text="tea")
        return f"{before}, {self.state.pages}, {self.state.topic}"


class GrownFlow(Flow[WithMore]):
    """The Flow of aliases in a later version of its project."""

    @start()
    def draft(self) -> str:
        return ""

    @listen(draft)
    @human_feedback(message="Good?")
    def ask(self) -> str:
        return ""

    @listen(ask)
    def end(self) -> str:
        return f"{self.state.draft_text} {self.state.work_count} by {self.state.written_by}"


class LooseAgainFlow(Flow[dict[str, Any]]):
    """And in one that has no model of its state any more."""

    @start()
    def draft(self) -> str:
        return ""

    @listen(draft)
    @human_feedback(message="Good?")
    def ask(self) -> str:
        return ""

    @listen(ask)
    def end(self) -> str:
        return "ended"


class LargeFlow(Flow[Loose], Marked):
    """Has a state of many MB, and several rounds."""

    @start()
    def fill(self) -> int:
        self.mark("fill")
        self.state.thing = "x" * (int(self.state.kind) << 20)
        return 0

    @listen(fill)
    def grow(self) -> int:
        self.state.thing += "y"
        return 1

    @listen(grow)
    def end(self) -> str:
        if self.state.way == "kill":
            self.die_once()
        return str(len(self.state.thing))


class ChainFlow(Flow[Loose], Marked):
    """Has ten rounds, each of which replaces the 2 MB of its state by what only they lead to.

    A round waits while there is a file with its number.
    """

    @start()
    def begin(self) -> None:
        self.state.thing = {"round": 0, "page": ""}

    @listen(or_(begin, "again"))
    def work(self) -> None:
        number, page = self.state.thing["round"] + 1, self.state.thing["page"]
        self.state.thing = {"round": number, "page": Random(page).randbytes(1 << 20).hex()}
        self.mark(f"{number} began in {os.environ['SERVICE']}, {os.getpid()}")
        while Path(f"{self.state.log}-{number}").exists():
            time.sleep(0.02)
        self.mark(f"{number} ended")

    @router(work)
    def count(self) -> str:
        return "again" if self.state.thing["round"] < 10 else "enough"

    @listen("enough")
    def end(self) -> str:
        return str(self.state.thing["page"][:20])


class ManyLargeResults(Flow[Loose], Marked):
    """Has a small state, but seven large results, which the process after a question needs together."""

    @start()
    def begin(self) -> str:
        return ""

    @listen(or_(begin, "again"))
    def fill(self) -> str:
        return "x" * (10 << 20)

    @router(fill)
    def count(self) -> str:
        self.state.kind += "1"
        return "again" if len(self.state.kind) < 7 else "enough"

    @listen("enough")
    @human_feedback(message="Good?")
    def ask(self) -> str:
        return "Is it?"


class Locked(BaseModel):
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


def lock(output: TaskOutput) -> None:
    output.pydantic = Locked()


def two_tasks(*, human_input: bool) -> Crew:
    """The first task's output has an object that cannot be kept."""
    agent = Agent(role="writer", goal="g", backstory="b", llm=Scribe(model="scribe"))
    first, second = (
        Task(name=name, description=f"Do {name} on {{topic}}. Log: {{log}} .", expected_output="text", agent=agent)
        for name in ("first", "second")
    )
    first.callback, second.human_input = lock, human_input
    return Crew(agents=[agent], tasks=[first, second])


def asking_crew() -> Crew:
    return two_tasks(human_input=True)


def quiet_crew() -> Crew:
    return two_tasks(human_input=False)
