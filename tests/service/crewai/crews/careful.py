"""Crews and Flows whose own code catches what comes out of a crew; the topic says how."""

from __future__ import annotations

import contextlib
import contextvars
import re
import threading
from collections.abc import Callable
from typing import Any

from crewai import Agent, Crew, Task
from crewai.flow import Flow, human_feedback, listen, start
from crewai.hooks import InterceptionPoint, before_tool_call, clear_all_hooks, on
from crewai.tools import tool
from flows import Briefing, Logged, small_crew
from scribe import Scribe, write

SAID = re.compile("Observation: ((?:letter|fallback|paid).*)")


class Delegator(Scribe):
    """Uses its tool once, in words, and then answers with what the tool gave."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        if found := SAID.findall("\n".join(str(turn["content"]) for turn in messages)):
            return f"Thought: I know\nFinal Answer: {found[-1]}"
        return "Thought: I ask\nAction: delegate\nAction Input: {}"


class CarefulFlow(Logged):
    @start()
    def write(self) -> str:
        return f"got {WAYS[self.state.topic](self)}"

    @listen(write)
    async def again(self, before: str) -> str:
        if self.state.topic != "awaits":
            return before
        try:
            return f"got {(await self.letter().kickoff_async(inputs=self.inputs)).raw}"
        except Exception:
            return self.fallback()

    @property
    def inputs(self) -> dict[str, Any]:
        return {"topic": "ducks", "log": self.state.log}

    def letter(self) -> Crew:
        return small_crew("letter", human_input=True)

    def sent(self) -> str:
        return str(self.letter().kickoff(inputs=self.inputs).raw)

    def fallback(self) -> str:
        self.mark("fallback")
        return "fallback"


def catches(flow: CarefulFlow) -> str:
    try:
        return flow.sent()
    except Exception:
        return flow.fallback()


def awaits(flow: CarefulFlow) -> str:
    return "nothing"


def catches_all(flow: CarefulFlow) -> str:
    """Start another crew in its place."""
    try:
        return flow.sent()
    except:  # noqa: E722
        with contextlib.suppress(BaseException):
            return str(small_crew("other").kickoff(inputs=flow.inputs).raw)
        return "nothing"


def retries(flow: CarefulFlow) -> str:
    for _ in range(3):
        with contextlib.suppress(BaseException):
            return flow.sent()
    return "nothing"


def raises_another(flow: CarefulFlow) -> str:
    try:
        return flow.sent()
    except BaseException as error:
        raise ValueError("it failed") from error


def asks(flow: CarefulFlow) -> str:
    try:
        return flow.ask("Which one?") or flow.fallback()
    except Exception:
        return flow.fallback()


def chats(flow: CarefulFlow) -> str:
    with contextlib.suppress(Exception):
        flow.chat()
    return flow.fallback()


def asks_with_a_timeout(flow: CarefulFlow) -> str:
    with contextlib.suppress(BaseException):
        return flow.ask("Which one?", timeout=60) or flow.fallback()
    return flow.fallback()


def in_a_thread(flow: CarefulFlow) -> str:
    answers: list[str] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: answers.append(context.run(flow.sent)))
    thread.start()
    thread.join()
    return answers[0] if answers else "nothing"


def beside(flow: CarefulFlow) -> str:
    """Ask in a task that runs beside another one."""
    crew = flow.letter()
    crew.tasks[0].async_execution = True
    crew.tasks.append(small_crew("other").tasks[0])
    try:
        return str(crew.kickoff(inputs=flow.inputs).tasks_output[0].raw)
    except Exception:
        return flow.fallback()


def in_a_tool(flow: CarefulFlow, *, is_async: bool = False) -> str:
    @tool
    def delegate() -> str:
        """Delegate it."""
        return catches(flow)

    of = Agent(role="outer", goal="g", backstory="b", llm=Delegator(model="delegator"), tools=[delegate])
    outer = Task(name="outer", description="Ask.", expected_output="text", agent=of, async_execution=is_async)
    try:
        return str(Crew(agents=[of], tasks=[outer]).kickoff().raw)
    except Exception:
        return flow.fallback()


def in_a_tool_beside(flow: CarefulFlow) -> str:
    return in_a_tool(flow, is_async=True)


def outside_of_the_method(flow: CarefulFlow) -> str:
    """Ask in a thread that does not belong to the method."""
    thread = threading.Thread(target=lambda: catches(flow))
    thread.start()
    thread.join()
    return "nothing"


class Inner(Flow[Briefing]):
    @start()
    @human_feedback(message="Go on?")
    def ask(self) -> str:
        return "a draft"


def in_another_flow(flow: CarefulFlow) -> str:
    try:
        return str(Inner().kickoff())
    except Exception:
        return flow.fallback()


def without_hooks(flow: CarefulFlow) -> str:
    clear_all_hooks()
    return catches(flow)


def redacts(flow: CarefulFlow) -> str:
    @on(InterceptionPoint.POST_STEP)
    def redact(context: Any) -> None:
        if context.kind == "task":
            context.payload = context.payload.model_copy(update={"raw": "letter v*"})

    return flow.sent()


WAYS: dict[str, Callable[[CarefulFlow], str]] = {
    way.__name__: way
    for way in (
        *(catches, awaits, catches_all, retries, raises_another, in_a_thread, beside, in_a_tool, in_a_tool_beside),
        *(outside_of_the_method, in_another_flow, without_hooks, redacts, asks, asks_with_a_timeout, chats),
    )
}


class WrappingFlow(Flow[Briefing]):
    """Its own kickoff makes something else of what CrewAI returns."""

    @start()
    @human_feedback(message="Go on?")
    def ask(self) -> str:
        return "a draft"

    def kickoff(self, *args: Any, **kwargs: Any) -> Any:
        return {"result": str(super().kickoff(*args, **kwargs))}


class CarefulCrew(Crew):
    def kickoff(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().kickoff(*args, **kwargs)
        except Exception:
            write(kwargs["inputs"]["log"], {"call": "fallback"})
            return {"text": "fallback"}


def careful_crew() -> Crew:
    of = small_crew("draft", human_input=True)
    return CarefulCrew(agents=of.agents, tasks=of.tasks)


def careful_tool(*, is_async: bool = False) -> Crew:
    """A crew whose tool starts a crew that asks."""

    @tool
    def delegate() -> str:
        """Delegate it."""
        with contextlib.suppress(Exception):
            return str(small_crew("letter", human_input=True).kickoff(inputs={"topic": "x", "log": ""}).raw)
        return "fallback"

    of = Agent(role="outer", goal="g", backstory="b", llm=Delegator(model="delegator"), tools=[delegate])
    outer = Task(name="outer", description="Ask.", expected_output="text", agent=of, async_execution=is_async)
    return Crew(agents=[of], tasks=[outer])


def asks_in_a_hook() -> Crew:
    kept: dict[str, Any] = {}

    def remember(inputs: dict[str, Any]) -> dict[str, Any]:
        kept.update(inputs)
        return inputs

    @tool
    def delegate() -> str:
        """Delegate it."""
        write(kept["log"], {"call": "paid"})
        return "paid without approval"

    @before_tool_call
    def approve(context: Any) -> bool | None:
        return None if context.request_human_input("May it?") == "yes" else False

    of = Agent(role="outer", goal="g", backstory="b", llm=Delegator(model="delegator"), tools=[delegate])
    only = Task(name="outer", description="Ask.", expected_output="text", agent=of)
    return Crew(agents=[of], tasks=[only], before_kickoff_callbacks=[remember])


def careful_tool_beside() -> Crew:
    return careful_tool(is_async=True)
