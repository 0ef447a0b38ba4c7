"""Turns TARGET into a fresh crew, Flow or agent, in the process that runs it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import crewai
from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow
from crewai.project import load_crew

import crew_service
from crew_service.crewai import project
from crew_service.crewai.agent_run import AgentSource
from crew_service.crewai.errors import Fatal, Interrupted, UnsupportedCrew
from crew_service.crewai.flow_source import FlowSource
from crew_service.crewai.internals import crew_tasks
from crew_service.crewai.internals.declared import DECLARED, without_comments
from crew_service.crewai.internals.wrapping import holding


class JsonCrew:
    """A crew described in JSON, in the format that `crewai create crew` writes, with the default inputs from its file.

    :param path: crew.jsonc, with a folder of agents next to it
    """

    def __init__(self, path: Path) -> None:
        loaded: tuple[Crew, dict[str, Any] | None] = load_crew(path)
        self.crew = loaded[0]
        self.defaults: dict[str, Any] = dict(loaded[1] or {})


Served = Crew | FlowSource | JsonCrew | AgentSource
WANTED_BACK = "a Crew, a Flow or an Agent"
WANTED = "a Crew, a CrewBase class, a Flow, an Agent, or a function that returns one of them"


def agents_of(served: Served) -> list[Any]:
    """Return the agents that are known before anything runs."""
    if isinstance(served, AgentSource):
        return [served.agent]
    return [] if isinstance(served, FlowSource) else crew_tasks.agents_of(_crew_of(served))


def tasks_of(served: Served) -> list[Task]:
    """Return the tasks that are known before anything runs, as CrewAI has them."""
    return [] if isinstance(served, FlowSource | AgentSource) else _crew_of(served).tasks


def _crew_of(served: Crew | JsonCrew) -> Crew:
    return served.crew if isinstance(served, JsonCrew) else served


def build(target: str) -> Served:
    """Create what TARGET names. A process does so only once, so a module-level crew is also fresh."""
    with _NO_RUNS:
        return _built(target)


def end() -> None:
    """Refuse to run anything from now on: the exit handlers that the target has registered follow."""
    _NO_RUNS.end()


def _built(target: str) -> Served:
    return _of_path(Path(target)) if project.is_path(target) else _named(target)


class _NoRuns:
    """Refuses to run a crew, Flow, agent or task outside the execution, even if the target's code catches that.

    That is while the target is loaded, later in a thread that it has started by then, in what such a thread starts or
    gives to a pool, and in its exit handlers.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._is_loaded = self._is_over = False
        self._threads: set[threading.Thread] = set()

    def __enter__(self) -> None:
        self._threads = set(threading.enumerate())
        crew_tasks.before_runs(self._check)

    def __exit__(self, *_: object) -> None:
        self._threads = set(threading.enumerate()) - self._threads
        if self._threads:
            self._follow_work()
        self._is_loaded = True
        EXECUTION.set(True)
        if self._reason:
            raise UnsupportedCrew(self._reason) from None

    def end(self) -> None:
        self._is_over = True

    def _follow_work(self) -> None:
        """Let work belong to whoever starts its thread or gives it to a pool: the execution, or a scheduler."""
        start = threading.Thread.start
        submit: Any = ThreadPoolExecutor.submit

        @wraps(start)
        def started(thread: threading.Thread) -> None:
            if self._is_outside():
                thread.run = holding(EXECUTION, False)(thread.run)  # type: ignore[method-assign]
            start(thread)

        @wraps(submit)
        def submitted(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            return submit(pool, holding(EXECUTION, not self._is_outside())(work), *args, **kwargs)

        threading.Thread.start = started  # type: ignore[assignment, method-assign]
        ThreadPoolExecutor.submit = submitted  # type: ignore[assignment, method-assign]

    def _is_outside(self) -> bool:
        follows = EXECUTION.get()
        return threading.current_thread() in self._threads if follows is None else not follows

    def _check(self, runs: Any, method: str) -> None:
        if self._is_over:
            raise Interrupted(self._refusal(method, "when its process exits, after the execution"))
        if self._is_loaded:
            if self._is_outside():
                raise Fatal(self._refusal(method, "in a thread that was started while the crew was loaded"))
            return
        callers = [each for each in _frames() if _package(each) not in sys.stdlib_module_names]
        origins = {type(runs).__module__.partition(".")[0], *map(_package, callers[:1])}
        if isinstance(runs, Flow) and origins == {"crewai"}:
            return  # one of CrewAI's own, such as its memory's
        self._reason = self._reason or self._refusal(method, "while the crew is loaded, before any execution")
        raise Interrupted(self._reason)

    @staticmethod
    def _refusal(method: str, when: str) -> str:
        callers = (each for each in _frames() if _package(each) not in sys.stdlib_module_names)
        own = next((each for each in callers if _package(each) != "crewai"), None)
        place = f"{own.f_code.co_filename}, line {own.f_lineno}," if own else "a thread"
        return (
            f"{place} calls {method} {when}; put it under "
            '`if __name__ == "__main__"` or, if the crew needs the answer, into a before_kickoff hook or Flow method.'
        )


EXECUTION: ContextVar[bool | None] = ContextVar("whether this follows from what the service runs", default=None)
_NO_RUNS = _NoRuns()  # a process loads one target


def why_not(error: BaseException, target: str) -> str:
    """Return why a target cannot be loaded: the exception, and where the target's own code raised it."""
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    own = [each for each in traceback.extract_tb(error.__traceback__) if is_own(each.filename)]
    if own and not isinstance(error, SyntaxError):  # whose text says where it is
        place = f"{Path(own[-1].filename).name}, line {own[-1].lineno}"
        reason += f" ({place})" if text else f" ({place}: {own[-1].line})"
    if not isinstance(error, ModuleNotFoundError) or not error.name or find_spec(error.name.partition(".")[0]):
        return reason
    needed, name = project.requirements(target), error.name.partition(".")[0]
    if needed and any(path for place in ("*", "src/*") for path in needed.parent.glob(f"{place}/{name}")):
        return f"{reason}, which is in the project, but not on its import path."
    install = f"install the project's requirements: uv pip install -r {needed}" if needed else "install it"
    return f"{reason}; {install}, in the environment of this service."


def is_own(file: str) -> bool:
    """Whether a file is the target's, not a library's or this service's."""
    path = Path(file)
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    folders = (Path(crew_service.__file__).parent, *map(Path, libraries))
    return path.is_file() and not any(path.is_relative_to(folder) for folder in folders)


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the target's code and its libraries that run now, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame and _package(frame) in ("crew_service", "contextlib"):
        frame = frame.f_back
    while frame and _package(frame) not in ("crew_service", "__main__"):
        yield frame
        frame = frame.f_back


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _of_path(path: Path) -> Served:
    if not path.exists():
        raise UnsupportedCrew(f"there is no file {path}.")
    path = path.resolve()
    if path.is_dir():
        return _of_project(project.of_folder(path))
    (project.around(path) or project.Project(path.parent)).enter()
    return _declared(path)


def _of_project(crew_project: project.Project) -> Served:
    crew_project.enter()
    if declaration := crew_project.declaration():
        return _declared(declaration, crew_project.kind)
    kind, place = crew_project.module()
    return _made(_only(importlib.import_module(place), kind))


def _declared(path: Path, kind: str | None = None) -> Served:
    if path.suffix not in project.JSON:
        if kind == "agent":
            raise UnsupportedCrew(
                f"{path.name} describes an agent, which CrewAI {crewai.__version__} reads from JSON only."
            )
        return FlowSource.declared(path)
    try:
        content = json.loads(without_comments(path.read_text(encoding="utf-8")))
    except ValueError as error:
        if not DECLARED.missing:
            raise UnsupportedCrew(f"{path.name} is not valid JSON: {error}.") from None
        content = None  # it may have comments
    if not (kind == "agent" or project.is_agent(content)):
        return JsonCrew(path)
    if DECLARED.missing:
        raise UnsupportedCrew(f"{path.name} describes an agent, which cannot be read: {DECLARED.reason}.")
    return AgentSource.declared(content, path)


def _only(module: ModuleType, kind: str) -> Any:
    """Return the class, crew or agent that a project's module defines; there must be only one."""
    own: list[Any] = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    flows: list[Any] = [value for value in own if isinstance(value, type) and issubclass(value, Flow)]
    crews: list[Any] = [value for value in own if isinstance(value, type) and _is_crew_class(value)]
    crews = crews or [value for value in vars(module).values() if isinstance(value, Crew)]
    agents = [value for value in vars(module).values() if isinstance(value, Agent)]
    candidates = {"flow": flows, "crew": crews, "agent": agents}[kind]
    candidates = [
        value for value in candidates if not any(value in getattr(other, "__bases__", ()) for other in candidates)
    ]
    if len(candidates) == 1:
        return candidates[0]
    what = {"flow": "Flow class", "crew": "CrewBase class", "agent": "Agent"}[kind]
    names = ", ".join(sorted(getattr(value, "__name__", type(value).__name__) for value in candidates)) or "none"
    raise UnsupportedCrew(
        f"{module.__name__} should have one {what}, but has {len(candidates)} ({names}); "
        f"specify which one to serve, as in {module.__name__}:NAME."
    )


def _named(target: str) -> Served:
    place, _, name = target.rpartition(":")
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise UnsupportedCrew(f"there is no file {place}.")
    path = Path(place).resolve()
    if crew_project := project.around(path if is_file else Path()):
        crew_project.enter()
    module = _file(path) if is_file else _module(place)
    try:
        return _made(getattr(module, name))
    except AttributeError as error:
        if error.obj is module and error.name == name:
            raise UnsupportedCrew(f"{place} has no {name!r}{_instead(module)}.") from None
        raise


def _instead(module: ModuleType) -> str:
    """Return a hint that lists the names in the module that could be served; empty if there are none."""
    fits = [
        name
        for name, value in vars(module).items()
        if isinstance(value, Crew | Agent)
        or (isinstance(value, type) and issubclass(value, Flow) and value is not Flow)
        or _is_crew_class(value)
    ]
    return f"; it has {', '.join(sorted(fits))}" if fits else ""


def _module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise UnsupportedCrew(f"there is no module {error.name!r} here.") from None
        raise


def _file(path: Path) -> ModuleType:
    """Import a file as a module named after it, and make the files next to it importable, as `python file.py` does."""
    spec = importlib.util.spec_from_file_location(f"crew_of_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _is_crew_class(value: Any) -> bool:
    """Whether it is a class with `@CrewBase`, which gives it a metaclass, or an instance of one."""
    kind = value if isinstance(value, type) else type(value)
    is_crewais = type(kind).__module__.partition(".")[0] == "crewai" and not issubclass(kind, Flow)
    return is_crewais and callable(getattr(kind, "crew", None))


def _made(named: Any) -> Served:
    if isinstance(named, type) and issubclass(named, Flow):
        return FlowSource.of_class(named)
    if _is_crew_class(named):
        named = (named() if isinstance(named, type) else named).crew()
    elif callable(named) and not isinstance(named, Crew | Flow):
        named = named()
    if inspect.iscoroutine(named):
        named.close()
        raise UnsupportedCrew(f"{named.__name__} is an `async def`, but the function must return {WANTED_BACK}.")
    if isinstance(named, Flow):
        return FlowSource.of_instance(named)
    if isinstance(named, Agent):
        return AgentSource.of_instance(named)
    if not isinstance(named, Crew):
        raise UnsupportedCrew(f"it is of type {type(named).__name__}, not {WANTED}.")
    return named
