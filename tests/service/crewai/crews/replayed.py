"""Tasks of many kinds, whose model and tools log each call that is made, and kill their process before a chosen one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as N
from typing import Any

from crewai import Agent, BaseLLM, Crew, Flow, Process, Task
from crewai.events import ToolUsageFinishedEvent, ToolUsageStartedEvent, crewai_event_bus
from crewai.events.types.logging_events import AgentLogsExecutionEvent
from crewai.events.types.memory_events import MemoryRetrievalCompletedEvent, MemoryRetrievalStartedEvent
from crewai.events.types.reasoning_events import AgentReasoningCompletedEvent, AgentReasoningStartedEvent
from crewai.flow import start
from crewai.knowledge.knowledge import Knowledge
from crewai.memory.types import MemoryRecord
from crewai.memory.unified_memory import Memory
from crewai.tools import BaseTool, tool
from crewai.utilities.internal_instructor import InternalInstructor
from crewai.utilities.rpm_controller import RPMController
from pydantic import BaseModel, Field
from scribe import write

INPUTS: dict[str, Any] = {}
TURN = threading.Lock()


def log(**entry: Any) -> int:
    """Log a call and return how many came before, unless the process is to die here."""
    with TURN:
        path = Path(INPUTS["log"])
        made = len(path.read_text().splitlines()) if path.exists() else 0
        wanted = path.with_suffix(".kill")
        if wanted.exists() and int(wanted.read_text()) == made:
            wanted.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        write(str(path), entry)
        return made


@crewai_event_bus.on(ToolUsageStartedEvent)
def started(source: Any, event: ToolUsageStartedEvent) -> None:
    heard(started=event.tool_name, args=event.tool_args)


@crewai_event_bus.on(ToolUsageFinishedEvent)
def finished(source: Any, event: ToolUsageFinishedEvent) -> None:
    heard(finished=event.tool_name, args=event.tool_args)


@crewai_event_bus.on(MemoryRetrievalStartedEvent)
@crewai_event_bus.on(AgentReasoningStartedEvent)
def began(source: Any, event: Any) -> None:
    heard(started=event.type)


@crewai_event_bus.on(MemoryRetrievalCompletedEvent)
@crewai_event_bus.on(AgentReasoningCompletedEvent)
def ended(source: Any, event: Any) -> None:
    heard(finished=event.type)


@crewai_event_bus.on(AgentLogsExecutionEvent)
def logged(source: Any, event: AgentLogsExecutionEvent) -> None:
    heard(logged=event.formatted_answer.text)


def heard(**entry: Any) -> None:
    """Log what a listener got in a file of its own: it may run beside the crew, and no call is counted."""
    with TURN:
        write(str(Path(INPUTS["log"]).with_suffix(".events")), entry)


def action(name: str, **arguments: Any) -> str:
    return f"Thought: next\nAction: {name}\nAction Input: {json.dumps(arguments)}"


def final(text: str) -> str:
    return f"Thought: I know\nFinal Answer: {text}"


def calls(*asked: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"id": f"call{place}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for place, (name, arguments) in enumerate(asked)
    ]


class Player(BaseLLM):
    """Answers by what its function makes of the chat and of the number of results in it."""

    play: Callable[[str, int], Any]
    native: bool = False

    def supports_function_calling(self) -> bool:
        return self.native

    def call(self, messages: Any, *args: Any, from_task: Any = None, **kwargs: Any) -> Any:
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        results = sum(turn["role"] == "tool" for turn in turns)
        results += sum("Observation: " in (turn["content"] or "") for turn in turns if turn["role"] == "assistant")
        log(model=from_task.name if from_task else "nobody", length=len(turns))
        return self.play("\n".join(str(turn["content"]) for turn in turns), results)


def agent(play: Callable[[str, int], Any], *tools: Any, native: bool = False, **options: Any) -> Agent:
    llm = Player(model="player", play=play, native=native)
    return Agent(role="Clerk", goal="g", backstory="b", llm=llm, tools=list(tools), **options)


def task(of: Agent | None, name: str = "only", **options: Any) -> Task:
    text = options.pop("text", f"Do {name}.")
    return Task(name=name, description=text, expected_output="text", agent=of, **options)


def crew(of: Agent, *tasks: Task, **options: Any) -> Crew:
    return Crew(agents=[of], tasks=list(tasks) or [task(of)], before_kickoff_callbacks=[remember], **options)


def remember(inputs: dict[str, Any]) -> dict[str, Any]:
    INPUTS.update(inputs, fresh=str(uuid.uuid4()))
    return dict(INPUTS)


@tool
def take(what: str) -> str:
    """Take something."""
    log(tool="take", what=what)
    return f"took {what}"


class Roll(BaseTool):
    name: str = "Roll"
    description: str = "Roll dice."
    cache_function: Any = staticmethod(lambda *_: False)

    def _run(self, what: str) -> str:
        return f"rolled {log(tool='roll', what=what)}"


class Point(BaseModel):
    x: int


def in_turn(*asked: Any) -> Callable[[str, int], Any]:
    """Give one answer after the other, by the number of results."""
    return lambda text, results: asked[min(results, len(asked) - 1)]


def plain() -> Crew:
    return crew(agent(in_turn(action("take", what="a"), action("take", what="b"), final("done")), take))


def guarded() -> Crew:
    def long(output):  # type: ignore[no-untyped-def]  # CrewAI refuses annotations that are strings
        return (True, output.raw) if len(output.raw) > 5 else (False, "too short")

    of = agent(lambda text, _: final("a long answer" if "too short" in text else "no"))
    return crew(of, task(of, guardrail=long), task(of, "after"))


def structured() -> Crew:
    of = agent(lambda text, results: action("take", what="a") if not results else final('{"x": 3}'), take)
    return crew(of, task(of, output_pydantic=Point), task(of, "after", output_json=Point))


def parallel() -> Crew:
    two = calls(("take", {"what": "a"}), ("roll", {"what": "b"}))
    return crew(agent(in_turn(two, two, "done"), take, Roll(), native=True))


def identical() -> Crew:
    one = calls(("roll", {"what": "a"}))
    return crew(agent(in_turn(one, one, one, "done"), Roll(), native=True))


def foreign() -> Crew:
    """Its model gives the calls of tools as objects of its provider's own, as Azure's does."""
    return of_a_provider(lambda some_id, name, given: N(id=some_id, function=N(name=name, arguments=json.dumps(given))))


def blocks() -> Crew:
    return of_a_provider(lambda some_id, name, given: N(id=some_id, name=name, input=given))


def parts() -> Crew:
    return of_a_provider(lambda _, name, given: N(function_call=N(name=name, args=given)))


def of_a_provider(call: Callable[[str, str, dict[str, Any]], Any]) -> Crew:
    one, two = [call("call1", "take", {"what": "a"})], [call("call2", "Roll", {"what": "b"})]
    return crew(agent(in_turn(one, two, "done"), take, Roll(), native=True))


def beside() -> Crew:
    play = in_turn(action("take", what="a"), final("done"))
    left, right, last = agent(play, take), agent(play, take), agent(play, take)
    tasks = [task(left, "left", async_execution=True), task(right, "right", async_execution=True), task(last, "last")]
    return crew(left, *tasks)


def behind() -> Crew:
    """Its second task runs in a thread, and gets nothing of the first one's output."""

    def play(text: str, results: int) -> str:
        return in_turn(action("take", what=f"{'a note' in text}"), final("a note"))(text, results)

    first, second = agent(lambda *_: final("a note")), agent(play, take)
    return crew(first, task(first, "first"), task(second, "second", async_execution=True), task(first, "last"))


def reviewed() -> Crew:
    of = agent(in_turn(action("take", what="a"), final("draft")), take)
    return crew(of, task(of, "draft", human_input=True), task(of, "after"))


class Refusing(Roll):
    name: str = "refusing"

    def _run(self, what: str) -> str:
        number = log(tool="refusing", what=what)
        if what == "bad":
            raise LookupError(f"no such thing, asked as number {number}")
        return "good"


def refusing() -> Crew:
    bad, good = calls(("refusing", {"what": "bad"})), calls(("refusing", {"what": "good"}))
    return crew(agent(in_turn(bad, bad, good, "done"), Refusing(), native=True))


def limited() -> Crew:
    one = calls(("roll", {"what": "a"}))
    return crew(agent(in_turn(one, one, one, "done"), Roll(max_usage_count=1), native=True))


def cached() -> Crew:
    one, other = calls(("take", {"what": "a"})), calls(("take", {"what": "b"}))
    return crew(agent(in_turn(one, one, other, "done"), take, native=True))


class Toss(Roll):
    """Its result may be cached, and differs each time it runs."""

    name: str = "toss"
    cache_function: Any = staticmethod(lambda *_: True)

    def _run(self, what: str) -> Any:
        return f"tossed {log(tool='toss', what=what)}"


class Held(Toss):
    """Its results cannot be stored: an agent reads them, and later processes get what it read."""

    name: str = "held"

    def _run(self, what: str) -> Any:
        return Locked(super()._run(what))


class Locked:
    def __init__(self, text: str) -> None:
        self.text, self.lock = text, threading.Lock()

    def __str__(self) -> str:
        return self.text


def tossing(*, native: bool = False, name: str = "toss") -> Callable[[str, int], Any]:
    """Toss once in the first task, the same and once more in each later one, and answer with what came of it."""

    def play(text: str, results: int) -> Any:
        wanted = ["a"] if "Do first." in text else ["a", "b"]
        if results < len(wanted):
            what = {"what": wanted[results]}
            return calls((name, what)) if native else action(name, **what)
        found = " ".join(re.findall(r"tossed \d+", text.rpartition("Do ")[2]))
        return found if native else final(found)

    return play


def recalled(tool: BaseTool | None = None, *, native: bool = False, human_input: bool = False) -> Crew:
    """Its later tasks make the call of the first one again, which the crew's cache answers."""
    own = tool or Toss()
    of = agent(tossing(native=native, name=own.name), own, native=native)
    tasks = task(of, "first", human_input=human_input), task(of, "second"), task(of, "third")
    return crew(of, *tasks, cache=True)


def recalled_natively() -> Crew:
    return recalled(native=True)


def recalled_after_a_review() -> Crew:
    return recalled(human_input=True)


def recalled_as_text() -> Crew:
    return recalled(Held())


def recalled_by_each() -> Crew:
    """Each of its agents has a cache of its own."""
    one, other = agent(tossing(), Toss(), cache=True), agent(tossing(), Toss(), cache=True)
    tasks = task(one, "first"), task(other, "second"), task(one, "third"), task(other, "fourth")
    return Crew(agents=[one, other], tasks=list(tasks), before_kickoff_callbacks=[remember])


def recalled_by_delegation() -> Crew:
    """Its manager delegates the same work in each task, and its clerk tosses once."""
    asked = {"task": "help", "context": "c", "coworker": "Clerk"}

    def manage(text: str, results: int) -> str:
        found = " ".join(re.findall(r"tossed \d+", text.rpartition("Do ")[2]))
        return final(found) if results else action("delegate_work_to_coworker", **asked)

    clerk = agent(in_turn(action("toss", what="a"), final("tossed 2")), Toss())
    tasks = task(None, "first"), task(None, "second")
    manager = Player(model="manager", play=manage)
    return crew(clerk, *tasks, process=Process.hierarchical, manager_llm=manager, cache=True)


def retried() -> Crew:
    failed = False

    def play(text: str, results: int) -> str:
        nonlocal failed
        if results == 1 and not failed and not Path(INPUTS["log"]).with_suffix(".failed").exists():
            failed = True
            Path(INPUTS["log"]).with_suffix(".failed").touch()
            raise RuntimeError("overloaded")
        return in_turn(action("take", what="a"), action("take", what="b"), final("done"))(text, results)

    return crew(agent(play, take))


def delegating() -> Crew:
    asked = {"task": "help", "context": "c", "coworker": "Helper"}
    boss = agent(in_turn(action("delegate_work_to_coworker", **asked), final("done")), allow_delegation=True)
    helper = agent(in_turn(action("take", what="a"), final("helped")), take)
    helper.role = "Helper"
    return Crew(agents=[boss, helper], tasks=[task(boss)], before_kickoff_callbacks=[remember])


def skilled() -> Crew:
    """Its model reads a skill's instructions, which CrewAI gives it a tool for, before it takes what they say."""

    def play(text: str, results: int) -> Any:
        if results:
            return calls(("take", {"what": "tea"})) if "Take the tea." in text and results == 1 else "done"
        return calls(("load_skill", {"skill_name": "tea-making"}))

    return crew(agent(play, take, native=True, skills=[Path(__file__).parent / "skills"]))


def hierarchical() -> Crew:
    asked = {"task": "help", "context": "c", "coworker": "Clerk"}
    play = in_turn(action("delegate_work_to_coworker", **asked), final("done"))
    return crew(
        agent(in_turn(action("take", what="a"), final("helped")), take),
        task(None),
        process=Process.hierarchical,
        manager_llm=Player(model="manager", play=play),
    )


def planned() -> Crew:
    plans = json.dumps({"list_of_plans_per_task": [{"task_number": 1, "task": "t", "plan": " as planned"}]})
    of = agent(in_turn(action("take", what="a"), final("done")), take)
    return crew(of, planning=True, planning_llm=Player(model="planner", play=lambda *_: plans))


def fresh() -> Crew:
    """Its prompt has something new in every process."""
    of = agent(in_turn(action("take", what="a"), action("take", what="b"), final("done")), take)
    return crew(of, task(of, text="Do it at {fresh}."))


def rephrasing() -> Crew:
    """In every process its model asks the tool for something else."""

    def play(text: str, results: int) -> str:
        return final("done") if results else action("take", what=INPUTS["fresh"])

    of = agent(play, take)
    return crew(of, task(of, text="Do it at {fresh}."))


class Missing(KeyError):
    def __init__(self, key: str, *, code: int) -> None:
        super().__init__(key)
        self.code = code


class Lacking(Roll):
    name: str = "lacking"

    def _run(self, what: str) -> str:
        log(tool="lacking", what=what)
        if what == "coded":
            raise Missing(what, code=7)
        raise {"key": KeyError, "file": FileNotFoundError}[what](what)


class Catching(Flow):
    """A method that catches what its tool raises, by class."""

    @start()
    def work(self) -> str:
        remember({"log": self.state["log"]})
        found = []
        for what in ("key", "file", "coded"):
            try:
                Lacking().run(what=what)
            except Missing as error:
                found.append(error.code)
            except (KeyError, FileNotFoundError) as error:
                found.append(error.args)
        return f"{found} {[take.run(what=what) for what in 'abcd']}"


class Ask(BaseTool):
    """Has a crew of its own."""

    name: str = "ask"
    description: str = "Ask others."

    def _run(self, what: str) -> str:
        return crew(agent(in_turn(action("take", what=what), final("helped")), take)).kickoff(INPUTS).raw


class Nested(Flow):
    """A method with two crews, whose agents use a tool that starts another one."""

    @start()
    def work(self) -> str:
        remember({"log": self.state["log"]})
        play = in_turn(action("ask", what="a"), action("take", what="b"), final("done"))
        of = agent(play, Ask(), take)
        texts = [crew(of, step_callback=lambda _: heard(step="told")).kickoff(INPUTS).raw for _ in range(2)]
        return " ".join([*texts, take.run(what="c")])


def late(log: str) -> str:
    return "bananas" if Path(log).exists() else "apples"


async def posts(log: str, **options: Any) -> str:
    """Run crews side by side whose second tasks have the same texts; in the first process, the second crew is first."""
    waits, turn = late(log), threading.Event()
    remember({"log": log})

    def wait(inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs["topic"] == waits:
            turn.wait(3)
            time.sleep(0.3)
        return inputs

    def play(text: str, results: int) -> str:
        topic = "apples" if "apples" in text else "bananas"
        if "Do research" in text:
            return final(f"notes on {topic}")
        if results:
            turn.set()
        return in_turn(action("take", what=topic), final(f"post on {topic}"))(text, results)

    of = agent(play, take)
    both = crew(of, task(of, "research", text="Do research on {topic}."), task(of, "post", **options))
    both.before_kickoff_callbacks.append(wait)
    found = await both.kickoff_for_each_async([{"topic": "apples"}, {"topic": "bananas"}])
    return ", ".join(each.raw for each in found)


class Posts(Flow):
    @start()
    async def work(self) -> str:
        return await posts(self.state["log"])


class ReviewedPosts(Flow):
    @start()
    async def work(self) -> str:
        return await posts(self.state["log"], human_input=True)


class Pair(Flow):
    """A method with two agents whose models are both asked before either calls its tool."""

    @start()
    async def work(self) -> str:
        remember({"log": self.state["log"]})
        both = threading.Barrier(2)

        def play(text: str, results: int) -> str:
            if not results:
                both.wait(10)
            topic = "apples" if "apples" in text else "bananas"
            return in_turn(action("take", what=topic), final("done"))(text, results)

        agents = {topic: agent(play, take) for topic in ("apples", "bananas")}
        for topic, each in agents.items():
            each.role = f"Clerk of {topic}"
        await asyncio.gather(*(asyncio.to_thread(each.kickoff, f"Take {topic}.") for topic, each in agents.items()))
        return "both"


class HeardAlone(Flow):
    """A method with an agent that works without a crew, and has a callback for its steps."""

    @start()
    def work(self) -> str:
        remember({"log": self.state["log"]})
        play = in_turn(action("take", what="a"), action("take", what="b"), final("done"))
        return agent(play, take, step_callback=lambda _: heard(step="told")).kickoff("Take both.").raw


class Unheard(Flow):
    """A method with a crew one of whose callbacks fails."""

    @start()
    def work(self) -> str:
        remember({"log": self.state["log"]})

        def fail(_: Any) -> None:
            raise RuntimeError("no one listens")

        async def afail(_: Any) -> None:
            fail(_)

        place, _, kind = self.state["topic"].partition(" ")
        failing = {place: afail if kind else fail}
        if place == "alone":
            play = in_turn(action("take", what="a"), final("done"))
            return agent(play, take, step_callback=fail).kickoff("Take it.").raw
        of = agent(in_turn(action("take", what="a"), final("done")), take, step_callback=failing.get("step"))
        only = task(of, callback=failing.get("task"))
        return crew(of, only, task_callback=failing.get("crew")).kickoff(INPUTS).raw


class Recalled(Flow):
    """A method with two crews, each with a cache of its own."""

    @start()
    def work(self) -> str:
        remember({"log": self.state["log"]})
        return " / ".join(each.kickoff(INPUTS).raw for each in (recalled_after_a_review(), recalled()))


class ReviewedPlan(Flow):
    """A method with a crew whose planner names the tools of its agent, and makes another plan whenever it is asked."""

    @start()
    def work(self) -> str:
        remember({"log": self.state["log"]})

        def plan(*_: Any) -> str:
            one = {"task_number": 1, "task": "t", "plan": f" as planned, {uuid.uuid4()}"}
            return json.dumps({"list_of_plans_per_task": [one, {**one, "task_number": 2}]})

        of = agent(in_turn(action("take", what="a"), final("done")), take)
        planner = Player(model="planner", play=plan)
        tasks = task(of, "one", human_input=True), task(of, "two")
        return crew(of, *tasks, planning=True, planning_llm=planner).kickoff(INPUTS).raw


@tool
async def fetch(what: str) -> str:
    """Fetch something."""
    log(tool="fetch", what=what)
    return f"fetched {what}"


def awaited() -> Crew:
    return crew(agent(in_turn(action("fetch", what="a"), action("fetch", what="b"), final("done")), fetch))


def dated() -> Crew:
    return crew(agent(in_turn(action("take", what="a"), final("done")), take, inject_date=True))


def reasoning() -> Crew:
    """Its agent makes a plan of its own first."""

    def play(text: str, results: int) -> str:
        if "READY" in text:
            return "I take it.\nREADY: I am ready to execute the task."
        return in_turn(action("take", what="a"), final("done"))(text, results)

    return crew(agent(play, take, reasoning=True, max_reasoning_attempts=1))


def overflowing() -> Crew:
    """Its model refuses a chat that is too long for it, once, and CrewAI makes a summary of it."""

    def play(text: str, results: int) -> str:
        if results == 1 and "summar" not in text.lower():
            raise RuntimeError("This model's maximum context length is 8 tokens (context_length_exceeded)")
        if "summar" in text.lower() and "Action:" not in text.rpartition("Observation")[2]:
            return final("done") if "took" in text else "<summary>it took a</summary>"
        return action("take", what="a")

    return crew(agent(play, take, respect_context_window=True))


def described() -> Crew:
    """Its tool is described in other words in every process."""
    wide, one = Roll(description=f"Roll dice of {uuid.uuid4()}."), calls(("roll", {"what": "a"}))
    return crew(agent(in_turn(one, "done"), wide, native=True))


class Store:
    """A memory's store, which holds something else in every process."""

    def search(self, *args: Any, **kwargs: Any) -> list[tuple[MemoryRecord, float]]:
        return [(MemoryRecord(content=INPUTS["fresh"], embedding=[1.0]), 0.99)]

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: []


def remembering() -> Crew:
    play = in_turn(action("take", what="a"), action("take", what="b"), final("done"))
    made = crew(agent(play, take))
    memory = Memory(
        llm=Player(model="memory", play=lambda *_: "{}"),
        storage=Store(),
        embedder=lambda texts: [[1.0] for _ in texts],
        read_only=True,
    )
    made.agents[0].memory = memory
    return made


class Known(Knowledge):
    """Holds something else in every process."""

    def query(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return [{"content": INPUTS["fresh"], "score": 0.99}]


def knowing() -> Crew:
    """Its model first words a query of its knowledge."""
    of = agent(in_turn(action("take", what="a"), action("take", what="b"), final("done")), take)
    of.knowledge = Known.model_construct()
    return crew(of)


class Converting:
    """The client of a provider that turns answers into objects."""

    @property
    def chat(self) -> Any:
        return self

    completions = chat

    def create(self, *args: Any, **kwargs: Any) -> Point:
        log(converts="the answer")
        return Point(x=3)


def instructed() -> Crew:
    """Its answer becomes an object by its provider's own client, after the first guardrail and before the second."""
    InternalInstructor._create_instructor_client = lambda _: Converting()  # type: ignore[method-assign, assignment]

    def accepted(output):  # type: ignore[no-untyped-def]  # CrewAI refuses annotations that are strings
        return True, output.raw

    def checked(output):  # type: ignore[no-untyped-def]
        log(checks="the object")
        return True, output

    of = agent(in_turn(calls(("take", {"what": "a"})), "three"), take, native=True)
    return crew(of, task(of, output_json=Point, guardrails=[accepted, checked]))


class Named(BaseModel):
    full_name: str = Field(alias="fullName")


def named() -> Crew:
    """Its model answers with an object whose fields have other names in JSON."""

    def checked(output):  # type: ignore[no-untyped-def]  # CrewAI refuses annotations that are strings
        log(checks=output.pydantic.full_name)
        return True, output

    of = agent(in_turn(calls(("take", {"what": "a"})), Named(fullName="Ada")), take, native=True)
    return crew(of, task(of, output_pydantic=Named, guardrail=checked))


def paced(*, human_input: bool = False) -> Crew:
    """Its agent may ask twice in a minute; it logs that it would wait."""
    RPMController._wait_for_next_minute = lambda _: log(waits=True)  # type: ignore[method-assign, assignment]
    play = in_turn(action("take", what="a"), action("take", what="b"), final("done"))
    of = agent(play, take, max_rpm=2)
    return crew(of, task(of, human_input=human_input))


def paced_in_rounds() -> Crew:
    return paced(human_input=True)
