"""Surrounds the tasks of all crews in this process, including those that a Flow's methods start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from typing import Any, NoReturn

from crewai import Agent, Crew, Flow, Task, TaskOutput
from crewai.tools import BaseTool

from crew_service.crewai.internals import Seam
from crew_service.crewai.internals.wrapping import Made, within

NESTED = "no hook is told the crew in which a task runs, or can give the task's stored output"
TASKS = Seam(
    "the tasks of crews that Flows start are not stored",
    {
        "crewai:Crew._execute_tasks": NESTED,
        "crewai:Crew._aexecute_tasks": NESTED,
        "crewai:Task._execute_core": NESTED,
        "crewai:Task._aexecute_core": NESTED,
        "crewai:Task._execute_task_async": "an exception that is not an `Exception` would leave its waiters waiting",
    },
    returns={"Task._execute_core": "TaskOutput", "Task._aexecute_core": "TaskOutput"},
)
FILES = Seam(
    "tasks with an output_file that contains inputs are refused",
    {
        "crewai:Task.interpolate_inputs_and_add_conversation_history": "no hook runs before the crew's first task",
        "crewai:Task._original_output_file": "inputs must not lead out of the folder that the crew declares",
    },
)
CONTINUE = Seam(
    "crews with finished tasks do not continue, so tasks with human_input are refused",
    {"crewai:Crew.checkpoint_kickoff_event_id": "CrewAI skips tasks that have an output only with this field"},
)
ALONE = "kickoff kickoff_async akickoff"  # how an agent runs without a task
RUNS: dict[Any, str] = {
    Crew: "kickoff kickoff_async akickoff kickoff_for_each kickoff_for_each_async akickoff_for_each train test replay",
    Flow: "kickoff kickoff_async akickoff resume resume_async",
    Agent: f"{ALONE} execute_task aexecute_task",
    Task: "execute_sync execute_async aexecute_sync",
}  # documented, so not a seam: what this CrewAI does not have cannot run
with suppress(ImportError):  # deprecated
    from crewai.lite_agent import LiteAgent

    RUNS[LiteAgent] = ALONE
BASE_AGENT = "crewai.agents.agent_builder.base_agent:BaseAgent"
TEXTS = Seam(
    "agents without a crew whose texts contain inputs are refused",
    {
        f"{BASE_AGENT}.interpolate_inputs": "only a crew fills in its agents' texts",
        "crewai.utilities.string_utils:interpolate_only": "so does it with its tasks' texts",
    },
)
ROLES = Seam(
    "CrewAI's own spans are not exported",
    {
        f"{BASE_AGENT}.interpolate_inputs": "a role may contain inputs, which spans must not",
        f"{BASE_AGENT}._original_role": "a role may contain inputs, which spans must not",
    },
)


def agents_of(crew: Crew) -> list[Any]:
    """Return each agent of a crew once, including the manager."""
    agents = [*crew.agents, *(task.agent for task in crew.tasks), crew.manager_agent]
    return list({id(agent): agent for agent in agents if agent}.values())


def role_of(agent: Any) -> str:
    """Return an agent's role, whose text in YAML may end with a line break; an empty string without an agent."""
    return str(getattr(agent, "role", None) or "").strip()


def tools_of(tasks: Iterable[Task], agents: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the tools that are known before an agent works, each with the role of its agent."""
    for task in tasks:
        yield from ((role_of(task.agent), tool) for tool in task.tools or ())
    for agent in agents:
        yield from ((role_of(agent), tool) for tool in getattr(agent, "tools", None) or ())


def crew_of(task: Task) -> Crew | None:
    crew = task.agent.crew if task.agent else None
    return crew if isinstance(crew, Crew) else None


def guardrails_of(task: Task) -> list[Callable[[TaskOutput], tuple[bool, Any]]]:
    single = [task._guardrail] if task._guardrail else []
    return [*task._guardrails, *single]


def give_tool(tool: BaseTool) -> None:
    """Give this tool to every agent, whether it runs for a task or by itself."""

    def with_tool(tools: list[BaseTool] | None) -> list[BaseTool]:
        known = list(tools or [])
        return known if any(isinstance(each, type(tool)) for each in known) else [*known, tool]

    def given(run: Any) -> Callable[..., Any]:
        parameters = inspect.signature(run)

        def bound(*args: Any, **kwargs: Any) -> inspect.BoundArguments:
            call = parameters.bind(*args, **kwargs)
            agent: Agent = call.arguments["self"]
            if "tools" in parameters.parameters:  # those of its task, which replace its own
                call.arguments["tools"] = with_tool(call.arguments.get("tools") or agent.tools)
            else:
                agent.tools = with_tool(agent.tools)
            return call

        def executed(*args: Any, **kwargs: Any) -> Any:
            call = bound(*args, **kwargs)
            return run(*call.args, **call.kwargs)

        async def aexecuted(*args: Any, **kwargs: Any) -> Any:
            call = bound(*args, **kwargs)
            return await run(*call.args, **call.kwargs)

        return aexecuted if inspect.iscoroutinefunction(run) else executed

    for name in RUNS[Agent].split():
        _wrap_run(Agent, name, given)


def before_runs(check: Callable[[Any, str], None]) -> None:
    """Call `check` before a crew, Flow, agent or task runs, with the object and the name of its method."""

    def checking(name: str) -> Callable[..., AbstractContextManager[None]]:
        @contextmanager
        def checked(runs: Any, *_: Any, **__: Any) -> Iterator[None]:
            check(runs, name)
            yield

        return checked

    for kind, names in RUNS.items():
        for name in names.split():
            _wrap_run(kind, name, within(checking(f"{kind.__name__}.{name}")))


def wrap_crews(around: Callable[[Crew], AbstractContextManager[None]]) -> None:
    """Run all tasks of each crew in this process within `around`, after the crew has filled in its texts."""
    for name in ("Crew._execute_tasks", "Crew._aexecute_tasks"):
        TASKS.wrap(name, within(lambda crew, *_, **__: around(crew)))


def wrap_tasks(
    around: Callable[[], AbstractContextManager[None]],
    settled: Callable[[Task], TaskOutput | None],
    answered: Callable[[Task, TaskOutput], NoReturn],
    done: Callable[[Task, TaskOutput], None],
) -> None:
    """Call `settled` before each task in this process, and `done` after each one that ran, both within `around`.

    A task whose answer a person must approve is stopped by `answered`, after all hooks and before its callbacks.
    """

    @contextmanager
    def surrounded(task: Task, agent: Any = None, *_: Any, **__: Any) -> Iterator[Made]:
        task.agent = agent or task.agent
        with around():
            earlier = settled(task)
            with _stopped(task, answered):
                yield (made := Made([] if earlier is None else [earlier]))
            if earlier is None:
                done(task, made.answer[0])

    wrap_each_task(surrounded)


@contextmanager
def _stopped(task: Task, answered: Callable[[Task, TaskOutput], NoReturn]) -> Iterator[None]:
    if not task.human_input:
        yield
        return
    own, task.callback = task.callback, lambda output: answered(task, output)
    try:
        yield
    finally:
        task.callback = own


def filled(text: str, inputs: dict[str, Any]) -> str:
    return str(TEXTS["interpolate_only"](text, inputs))


def before_agents(check: Callable[[Any, list[Any] | None], None]) -> None:
    """Call `check` before an agent works, with its task's tools; with None if it has no task."""

    @contextmanager
    def of_task(
        task: Task, agent: Any = None, context: Any = None, tools: Any = None, *_: Any, **__: Any
    ) -> Iterator[None]:
        check(agent or task.agent, tools or [])
        yield

    @contextmanager
    def alone(agent: Any, *_: Any, **__: Any) -> Iterator[None]:
        check(agent, None)
        yield

    wrap_each_task(of_task)
    _wrap_each_agent_alone(alone)


def watch_failures(left: Callable[[Exception], None]) -> None:
    """Report each exception that ends a task or an agent without one, immediately and in its own context."""

    @contextmanager
    def watched(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            left(error)
            raise

    wrap_each_task(watched)
    _wrap_each_agent_alone(watched)


def wrap_agents(around: Callable[[Agent], AbstractContextManager[None]]) -> None:
    """Let each agent in this process work within `around`, whether it runs for a task or by itself."""
    for name in RUNS[Agent].split():
        _wrap_run(Agent, name, within(lambda agent, *_, **__: around(agent)))


def _wrap_each_agent_alone(around: Callable[..., AbstractContextManager[None]]) -> None:
    for name in ALONE.split():
        _wrap_run(Agent, name, within(around))


def _wrap_run(kind: type, name: str, wrapped: Callable[[Any], Callable[..., Any]]) -> None:
    """Wrap a method of `RUNS`, if this CrewAI has it."""
    if run := getattr(kind, name, None):
        setattr(kind, name, wraps(run)(wrapped(run)))


def wrap_each_task(around: Callable[..., AbstractContextManager[Made | None]]) -> None:
    """Run each task in this process within `around`, which is given what CrewAI gives the task."""
    for name in ("Task._execute_core", "Task._aexecute_core"):
        TASKS.wrap(name, within(around))


def let_interruptions_through() -> None:
    """Pass any exception that ended an `async_execution` task to its waiters; CrewAI passes on only an `Exception`."""

    def wrapped(execute: Callable[..., None]) -> Callable[..., None]:
        def executed(*args: Any, **kwargs: Any) -> None:
            try:
                execute(*args, **kwargs)
            except BaseException as error:
                for future in (each for each in (*args, *kwargs.values()) if isinstance(each, Future)):
                    future.set_exception(error)

        return executed

    TASKS.wrap("Task._execute_task_async", wrapped)


def watch_files(check: Callable[[str, str], None]) -> None:
    """Check each `output_file`, as declared and with inputs filled in, before any task of the crew runs."""

    def wrapped(interpolate: Callable[..., None]) -> Callable[..., None]:
        def interpolated(task: Task, *args: Any, **kwargs: Any) -> None:
            interpolate(task, *args, **kwargs)
            if task.output_file and task._original_output_file:
                check(task._original_output_file, task.output_file)

        return interpolated

    FILES.wrap("Task.interpolate_inputs_and_add_conversation_history", wrapped)


def watch_roles(report: Callable[[str, str], None]) -> None:
    """Report each role with its inputs filled in, together with the declared role."""

    def wrapped(interpolate: Callable[..., None]) -> Callable[..., None]:
        def interpolated(agent: Any, *args: Any, **kwargs: Any) -> None:
            interpolate(agent, *args, **kwargs)
            report(agent.role, agent._original_role or agent.role)

        return interpolated

    ROLES.wrap("BaseAgent.interpolate_inputs", wrapped)
