"""Crews whose tools share a cart, which is gone with their process; which tools they call is the model's to say."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from asking import agent, remember
from crewai import Crew, Flow, Task
from crewai.flow import listen, start
from crewai.tools import BaseTool
from pydantic import BaseModel
from scribe import write

CART: list[str] = []
LOG: list[str] = []


def put(item: str) -> str:
    """Put an item into the cart, unless it is sold out, which is found in another process only."""
    if item == "nothing":
        raise ValueError("there is no such item")
    if item == "the last one" and os.path.exists(LOG[0] + ".sold"):
        raise LookupError("sold out")
    if item == "the last one":
        write(LOG[0] + ".sold", {})
    CART.append(item)
    write(LOG[0], {"put": item})
    return f"{item} is in the cart"


class Add(BaseTool):
    name: str = "add"
    description: str = "Put an item into the cart."

    def _run(self, item: str) -> str:
        return put(item)


class AddLater(BaseTool):
    name: str = "add_later"
    description: str = "Put an item into the cart, asynchronously."

    async def _run(self, item: str) -> str:
        await asyncio.sleep(0)
        return put(item)


class AddAll(BaseTool):
    name: str = "add_all"
    description: str = "Put items into the cart, each with another tool."

    def _run(self, items: list[str]) -> str:
        return ", ".join(Add().run(item=item) for item in items)


class AddEach(AddAll):
    name: str = "add_each"


class Pay(BaseTool):
    name: str = "pay"
    description: str = "Pay for what is in the cart."

    def _run(self) -> str:
        write(LOG[0], {"paid": list(CART)})
        return "paid"


def begin(inputs: dict[str, Any]) -> dict[str, Any]:
    LOG[:] = [inputs["log"]]
    return remember(inputs)


def crew(*before: Any) -> Crew:
    agents = [*before, agent("Clerk", Add(), AddLater(), AddAll(), AddEach(), Pay())]
    only = Task(name="buy", description="Buy. Case: {case} .", expected_output="text", agent=agents[0])
    return Crew(agents=agents, tasks=[only], before_kickoff_callbacks=[begin])


def team() -> Crew:
    """Return a crew whose first agent has the cart filled by another one, and pays itself."""
    return crew(agent("Boss", Pay(), allow_delegation=True))


class Fail(BaseTool):
    name: str = "fail"
    description: str = "End the process, once."

    def _run(self) -> str:
        if not os.path.exists(LOG[0] + ".killed"):
            write(LOG[0] + ".killed", {})
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"


def two(*, human_input: bool = False) -> Crew:
    """Return a crew whose first task fills the cart, and whose second pays."""
    clerk = agent("Clerk", Add(), AddLater(), AddAll(), AddEach(), Fail(), Pay())
    fill = Task(name="fill", description="Fill. Case: {case} .", expected_output="text", agent=clerk)
    fill.human_input = human_input
    buy = Task(name="buy", description="Buy. Case: {case} .", expected_output="text", agent=clerk)
    return Crew(agents=[clerk], tasks=[fill, buy], before_kickoff_callbacks=[begin])


def reviewed() -> Crew:
    return two(human_input=True)


class State(BaseModel):
    case: str = ""
    log: str = ""


class Method(Flow[State]):
    @start()
    def buy(self) -> str:
        return str(crew().kickoff(self.state.model_dump()).raw)


class TwoTasks(Flow[State]):
    @start()
    def buy(self) -> str:
        return str(two().kickoff(self.state.model_dump()).raw)


class TwoMethods(Flow[State]):
    @start()
    def fill(self) -> str:
        begin(self.state.model_dump())
        return Add().run(item="tea")

    @listen(fill)
    def buy(self) -> str:
        begin(self.state.model_dump())
        return Pay().run()
