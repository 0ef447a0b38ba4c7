"""Crews of many kinds; the input `log` is the file in which the model and the callbacks leave their marks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from crewai import Agent, BaseLLM, Crew, Flow, Process, Task
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.events import TaskCompletedEvent, crewai_event_bus
from crewai.hooks import InterceptionPoint, clear_all_hooks, on
from crewai.memory.unified_memory import Memory
from crewai.project import CrewBase, crew
from crewai.tasks.conditional_task import ConditionalTask
from crewai.tasks.task_output import TaskOutput
from crewai.tools import tool
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator
from scribe import INPUTS, Adder, Scribe, remember, write


def agent(role: str = "Writer", **options: Any) -> Agent:
    return Agent(role=role, goal="g", backstory="b", **{"llm": Scribe(model="scribe"), **options})


def task(name: str | None, of: BaseAgent | None, *, kind: type[Task] = Task, **options: Any) -> Task:
    text = f"Do {name} on {{topic}}. Log: {{log}} ."
    return kind(name=name, description=text, expected_output="text", agent=of, **options)


def two_gates() -> Crew:
    writer, editor = agent("Writer of {topic}"), agent("Editor")
    outline = task("outline", writer, human_input=True)
    draft = task("draft", writer, human_input=True, context=[outline])
    return Crew(agents=[writer, editor], tasks=[outline, draft, task("final", editor)])


def last_gate() -> Crew:
    writer = agent()
    return Crew(agents=[writer], tasks=[task("draft", writer), task("final", writer, human_input=True)])


class Point(BaseModel):
    x: int
    why: str


class PointCrew:
    @staticmethod
    def tasks(of: Agent) -> list[Task]:
        return [
            task("place", of, output_pydantic=Point, human_input=True),
            task("sure", of, kind=ConditionalTask, condition=lambda output: output.pydantic.x == 3),
            task("answer", of, output_json=Point),
        ]


def wordy_models() -> Crew:
    return models(place='Here you are: {"x": 3, "why": "there"}')


def models(place: str = '{"x": 3, "why": "there"}') -> Crew:
    answers = {"place": place, "answer": '{"x": 4, "why": "here"}'}
    of = agent(llm=Scribe(model="scribe", answers=answers))
    return Crew(agents=[of], tasks=PointCrew.tasks(of))


class Named(BaseModel):
    full_name: str = Field(alias="fullName")


class Tagged(BaseModel):
    tags: list[str]

    @field_validator("tags", mode="before")
    @classmethod
    def split(cls, given: str) -> list[str]:
        return given.split()


class Doubled(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.x


def named() -> Crew:
    return of_one_model(Named, '{"fullName": "Ada"}')


def tagged() -> Crew:
    return of_one_model(Tagged, '{"tags": "a b"}')


def doubled() -> Crew:
    return of_one_model(Doubled, '{"x": 1}')


def of_one_model(kind: type[BaseModel], answer: str) -> Crew:
    """Its second task runs only if it gets the object that CrewAI made of the first one's answer."""
    of = agent(llm=Scribe(model="scribe", answers={"made": answer}))
    wanted = kind.model_validate_json(answer)
    made = task("made", of, output_pydantic=kind, human_input=True)
    sure = task("sure", of, kind=ConditionalTask, condition=lambda output: output.pydantic == wanted)
    return Crew(agents=[of], tasks=[made, sure, task("end", of, human_input=True)])


@tool
def flaky() -> Any:
    """Fail."""
    from crewai.tools.tool_failure import ToolFailure

    return ToolFailure(message="no")


class Failing(Scribe):
    """Uses its tool once."""

    def supports_function_calling(self) -> bool:
        return True

    def call(self, messages: Any, *args: Any, from_task: Any = None, **kwargs: Any) -> Any:
        if any(turn["role"] == "tool" for turn in messages):
            return "done"
        return [{"id": "call0", "type": "function", "function": {"name": "flaky", "arguments": "{}"}}]


def with_a_failed_tool() -> Crew:
    def after(result: Any) -> Any:
        outputs = result.tasks_output
        result.raw = str([output.has_tool_failures for output in outputs])
        return result

    of, other = agent(llm=Failing(model="failing"), tools=[flaky]), agent()
    tasks = [task("draft", of, human_input=True), task("final", other)]
    return Crew(agents=[of, other], tasks=tasks, after_kickoff_callbacks=[after])


def with_callbacks() -> Crew:
    of, logs = agent(), {}

    def remember(inputs: dict[str, Any]) -> dict[str, Any]:
        logs["log"] = inputs["log"]
        os.chdir(Path(inputs["log"]).parent)  # inputs do not lead its file out of the working directory
        return {**inputs, "topic": inputs["topic"].upper()}

    def of_task(output: TaskOutput) -> None:
        write(logs["log"], {"task callback": output.raw})

    async def of_crew(output: TaskOutput) -> None:
        write(logs["log"], {"crew callback": output.raw})

    def after(output: Any) -> Any:
        output.raw = f"<{output.raw}>"
        return output

    return Crew(
        agents=[of],
        tasks=[task("draft", of, human_input=True, callback=of_task, output_file="{log}.txt"), task("final", of)],
        task_callback=of_crew,
        before_kickoff_callbacks=[remember],
        after_kickoff_callbacks=[after],
    )


def asynchronous() -> Crew:
    of, other = agent(), agent("Other")
    return Crew(
        agents=[of, other],
        tasks=[
            task("left", of, async_execution=True),
            task("right", other, async_execution=True),
            task("joined", of, human_input=True),
            task("tail", other, async_execution=True),
        ],
    )


def conditional() -> Crew:
    of = agent()
    never = {"kind": ConditionalTask, "condition": lambda _: False}
    return Crew(
        agents=[of],
        tasks=[
            task("draft", of),
            task("extra", of, **never),
            task("gate", of, human_input=True),
            task("end", of, **never),
        ],
    )


def hierarchical() -> Crew:
    return Crew(
        agents=[agent()],
        tasks=[task("draft", None, human_input=True), task("final", None)],
        process=Process.hierarchical,
        manager_llm=Scribe(model="scribe"),
    )


def guarded() -> Crew:
    def tidy(output):  # CrewAI refuses annotations that are strings
        return True, output.raw.upper()

    of = agent()
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True, guardrail=tidy), task("final", of)])


def planned() -> Crew:
    plans = [{"task_number": number, "task": "t", "plan": f" PLAN{number}"} for number in (1, 2)]
    planner = Scribe(model="scribe", otherwise=json.dumps({"list_of_plans_per_task": plans}))
    of = agent()
    tasks = [task("draft", of, human_input=True), task("final", of)]
    return Crew(agents=[of], tasks=tasks, planning=True, planning_llm=planner)


def reasoning() -> Crew:
    of = agent(planning=True)
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True), task("final", of)])


def length(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0, 2.0] for text in texts]


def with_memory() -> Crew:
    of = agent()
    memory = Memory(embedder=length, llm=Scribe(model="scribe"))
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True), task("final", of)], memory=memory)


def watched_with_memory() -> Crew:
    """Its listeners and callbacks tell what they hear of the end of a task."""
    crew = with_memory()
    place: list[str] = []
    crew.before_kickoff_callbacks = [lambda inputs: place.append(inputs["log"]) or inputs]

    @crewai_event_bus.on(TaskCompletedEvent)
    def ended(source: Any, event: TaskCompletedEvent) -> None:
        write(place[0], {"ended": event.output.raw})

    return crew


def remembering() -> Crew:
    """Return a crew that remembers a secret, and whose prompts contain what it recalls."""
    of = agent(llm=Scribe(model="scribe", otherwise="Confidential, of the first."))
    memory = Memory(embedder=length, llm=Scribe(model="scribe"))
    return Crew(agents=[of], tasks=[task("final", of)], memory=memory)


def with_a_replaced_output() -> Crew:
    def after(output: Any) -> Any:
        output.raw = {"total": 3}
        return output

    return of_hooks(after)


class Note(BaseModel):
    raw: str
    x: int


async def later(output: Any) -> Any:
    return [output.raw, 3]


def of_hooks(*after: Any) -> Crew:
    of = agent()
    return Crew(agents=[of], tasks=[task("draft", of)], after_kickoff_callbacks=[*after])


hook_gives_nothing = partial(of_hooks, lambda _: None)
hook_gives_nothing_after_something = partial(of_hooks, lambda output: {"was": output.raw}, lambda _: None)
hook_gives_something_after_nothing = partial(of_hooks, lambda _: None, lambda output: output.raw.upper())
hook_gives_a_model = partial(of_hooks, lambda _: Point(x=3, why="there"))
hook_gives_a_model_with_a_field_raw = partial(of_hooks, lambda _: Note(raw="r", x=3))
hook_gives_a_list = partial(of_hooks, lambda output: [output.raw, Point(x=3, why="ünten")])
hook_gives_a_number = partial(of_hooks, lambda _: 3)
hook_gives_a_list_later = partial(of_hooks, later)


def watched() -> Crew:
    tried: list[str] = []

    def refuse(*address: Any, **_: Any) -> Any:
        tried.append(str(address))
        raise OSError("no network here")

    socket.getaddrinfo = refuse
    socket.socket.connect = refuse

    def after(output: Any) -> Any:
        output.raw = f"tried {tried}"
        return output

    of = agent(verbose=True)
    return Crew(agents=[of], tasks=[task("draft", of)], verbose=True, after_kickoff_callbacks=[after])


def without_hooks() -> Crew:
    def clear(inputs: dict[str, Any]) -> dict[str, Any]:
        clear_all_hooks()
        return inputs

    of = agent()
    tasks = [task("draft", of, human_input=True), task("final", of)]
    return Crew(agents=[of], tasks=tasks, before_kickoff_callbacks=[clear])


def with_another_callback() -> Crew:
    of = agent()
    draft, final = task("draft", of, human_input=True), task("final", of)

    def replace(inputs: dict[str, Any]) -> dict[str, Any]:
        for each in (draft, final):
            each.callback = lambda output: write(inputs["log"], {"task callback": output.raw})
        crew.task_callback = lambda output: write(inputs["log"], {"crew callback": output.raw})
        return inputs

    crew = Crew(agents=[of], tasks=[draft, final], before_kickoff_callbacks=[replace])
    return crew


def redact(step: Any) -> None:
    if step.kind == "task":
        step.payload = step.payload.model_copy(update={"raw": step.payload.raw.replace("secret", "***")})


def redacted() -> Crew:
    """Its hook is registered by the kickoff, so after all others."""

    def begin(_: Any) -> None:
        on(InterceptionPoint.POST_STEP)(redact)

    of = agent(llm=Scribe(model="scribe", answers={"draft": "the secret plan"}))
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True)], before_kickoff_callbacks=[begin])


@CrewBase
class RedactingCrew:
    agents_config = tasks_config = "none.yaml"

    @on(InterceptionPoint.POST_STEP)
    def redact(self, step: Any) -> None:
        redact(step)

    @crew
    def crew(self) -> Crew:
        of = agent(llm=Scribe(model="scribe", answers={"draft": "the secret plan"}))
        return Crew(agents=[of], tasks=[task("draft", of, human_input=True)])


def nameless() -> Crew:
    of = agent()
    return Crew(agents=[of], tasks=[task(None, of), task("same", of), task("same", of)])


def json_braces() -> Crew:
    of = agent()
    return Crew(agents=[of], tasks=[Task(description='Give {"a": 1} on {topic}', expected_output="t", agent=of)])


instance = two_gates()


def waits_and_runs_beside() -> Crew:
    of = agent()
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True, async_execution=True)])


def with_checkpoints() -> Crew:
    of = agent()
    return Crew(agents=[of], tasks=[task("draft", of)], checkpoint=True)


class Stranger(BaseAgent):
    """An agent of another framework."""

    def execute_task(self, task: Any, context: Any = None, tools: Any = None) -> str:
        return "stranger"

    async def aexecute_task(self, task: Any, context: Any = None, tools: Any = None) -> str:
        return "stranger"

    def create_agent_executor(self, tools: Any = None) -> None: ...
    def get_delegation_tools(self, agents: Any) -> list[Any]:
        return []

    def get_platform_tools(self, apps: Any) -> list[Any]:
        return []

    def get_mcp_tools(self, mcps: Any) -> list[Any]:
        return []


def of_a_stranger() -> Crew:
    of = Stranger(role="Stranger", goal="g", backstory="b", llm=Scribe(model="scribe"))
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True)])


def names_that_collide() -> Crew:
    of = agent()
    return Crew(agents=[of], tasks=[task(name, of) for name in ("x", "x_3", "x")])


def into_a_file() -> Crew:
    """Its working directory is that of its log; an input names the file."""
    of = agent()
    return Crew(
        agents=[of],
        tasks=[task("draft", of), task("final", of, output_file="reports/{topic}.txt")],
        before_kickoff_callbacks=[lambda inputs: os.chdir(Path(inputs["log"]).parent) or inputs],
    )


def demanding() -> Crew:
    """Two models, and a guardrail that fails at some answers."""

    def brief(output):  # type: ignore[no-untyped-def]
        if "boom" in output.raw:
            raise RuntimeError("out of order")
        return (True, output.raw) if len(output.raw) < 60 else (False, "it is too long")

    answer = '{"x": 3, "why": "there"}'
    of = agent(llm=Scribe(model="scribe", answers={"place": answer, "answer": answer}))
    place = task("place", of, output_pydantic=Point, human_input=True, guardrail=brief)
    return Crew(agents=[of], tasks=[place, task("answer", of, output_json=Point, human_input=True)])


@tool
def pay(what: str) -> str:
    """Pay something."""
    write(INPUTS["log"], {"paid": what})
    return "paid"


def charging() -> Crew:
    """Its guardrail pays, and passes whatever comes of it."""

    def charge(output):  # type: ignore[no-untyped-def]
        with contextlib.suppress(BaseException):
            pay.run(what=output.raw)
        return (True, output.raw)

    of = agent(llm=Scribe(model="scribe"), tools=[pay])
    tasks = [task("draft", of, human_input=True, guardrail=charge)]
    return Crew(agents=[of], tasks=tasks, before_kickoff_callbacks=[remember])


def judged() -> Crew:
    """Its guardrail asks a model."""
    judge = Scribe(model="judge", otherwise="fine")

    def judged_by_model(output):  # type: ignore[no-untyped-def]
        verdict = judge.call([{"role": "user", "content": "Is it good?"}])
        return (verdict == "fine" and "bad" not in output.raw, output.raw)

    of = agent(llm=Scribe(model="scribe"))
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True, guardrail=judged_by_model)])


def pondering() -> Crew:
    """Its guardrail takes longer than anybody waits when it looks at an answer that was edited."""

    def ponder(output):  # type: ignore[no-untyped-def]
        if "edited" in output.raw:
            time.sleep(40)
        return (True, output.raw)

    of = agent(llm=Scribe(model="scribe"))
    return Crew(agents=[of], tasks=[task("draft", of, human_input=True, guardrail=ponder)])


class SomeFlow(Flow):
    pass


def SomeFlow_instance() -> Any:
    return SomeFlow()


def nothing() -> None: ...


def broken() -> Crew:
    raise ValueError("no key\nin the environment")


def leaves() -> Crew:
    os._exit(3)


def nested() -> Crew:
    of = agent()
    inner = Crew(agents=[agent("Inner")], tasks=[task("inner", agent("Inner"), human_input=True)])

    def run_inner(output: TaskOutput) -> None:
        inner.kickoff({"topic": "x", "log": os.devnull})

    return Crew(agents=[of], tasks=[task("outer", of, callback=run_inner)])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def with_a_tool() -> Crew:
    logs: dict[str, str] = {}

    def on_step(step: Any) -> None:
        if getattr(step, "tool", None):
            write(logs["log"], {"step": step.tool})

    of = agent(llm=Adder(model="adder"), tools=[add])
    return Crew(
        agents=[of],
        tasks=[task("sum", of)],
        step_callback=on_step,
        before_kickoff_callbacks=[lambda inputs: logs.update(inputs) or inputs],
    )


number = 3


def hooked() -> Crew:
    """Its hook fills what its task asks for."""

    def fill(inputs: dict[str, Any] | None) -> dict[str, Any]:
        return {**(inputs or {}), "today": "Monday"}

    of = agent()
    only = Task(name="today", description="Do {topic} on {today}. Log: {log} .", expected_output="text", agent=of)
    return Crew(agents=[of], tasks=[only], before_kickoff_callbacks=[fill])


def intercepted() -> Crew:
    """Hooks at every point: one of them fills what its task asks for, one changes the answer."""
    given: dict[str, Any] = {}

    def heard(point: InterceptionPoint) -> None:
        @on(point)
        def hear(context: Any) -> None:
            if getattr(context, "flow", None):
                return
            if point == InterceptionPoint.INPUT:
                context.payload["today"] = "Monday"
                given.update(context.payload)
            if point == InterceptionPoint.OUTPUT:
                context.payload.raw += " Checked."
            if given:
                write(given["log"], {"heard": point.value})

    for point in InterceptionPoint:
        heard(point)
    of = agent(llm=Adder(model="adder"), tools=[add])
    only = Task(name="sum", description="Add on {today} for {topic}.", expected_output="a number", agent=of)
    return Crew(agents=[of], tasks=[only])


class Recounting(Scribe):
    """A model that begins its counters anew with each call, and lets CrewAI count on in them."""

    def call(self, *given: Any, **more: Any) -> Any:
        self._token_usage = {**dict.fromkeys(self._token_usage, 0), "total_tokens": 7, "prompt_tokens": 7}
        return super().call(*given, **more)


class Replacing(BaseLLM):
    """A model that counts by itself, each call in new counters: 7 tokens and then 5."""

    def call(self, *given: Any, **more: Any) -> str:
        used = 5 if self._token_usage["total_tokens"] else 7
        self._token_usage = {**self._token_usage, "total_tokens": used, "prompt_tokens": used}
        return "An answer."


def recounting() -> Crew:
    return _of_two_tasks(Recounting(model="scribe"))


def replacing() -> Crew:
    return _of_two_tasks(Replacing(model="replacing"))


def _of_two_tasks(model: BaseLLM) -> Crew:
    of = agent(llm=model)
    return Crew(agents=[of], tasks=[task("one", of), task("two", of)])
