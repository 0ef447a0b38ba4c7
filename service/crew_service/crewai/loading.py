"""Turns TARGET into a fresh crew or Flow, in the process that runs it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from crewai import Crew
from crewai.flow.flow import Flow
from crewai.project import load_crew

from crew_service.crewai import project
from crew_service.crewai.errors import UnsupportedCrew
from crew_service.crewai.flow_source import FlowSource


class JsonCrew:
    """A crew described in JSON, in the format that `crewai create crew` writes, with the default inputs from its file.

    :param path: crew.jsonc, with a folder of agents next to it
    """

    def __init__(self, path: Path) -> None:
        loaded: tuple[Crew, dict[str, Any] | None] = load_crew(path)
        self.crew = loaded[0]
        self.defaults: dict[str, Any] = dict(loaded[1] or {})


Served = Crew | FlowSource | JsonCrew
WANTED = "a Crew, a CrewBase class, a Flow, or a function that returns one of them"


def build(target: str) -> Served:
    """Create the crew or Flow that TARGET names. A process does so only once, so a module-level crew is also fresh."""
    return _of_path(Path(target)) if project.is_path(target) else _named(target)


def _of_path(path: Path) -> Served:
    if not path.exists():
        raise UnsupportedCrew(f"there is no file {path}.")
    path = path.resolve()
    if path.is_dir():
        return _of_project(project.of_folder(path))
    (project.around(path) or project.Project(path.parent)).enter()
    return _declared(path)


def _of_project(found: project.Project) -> Served:
    found.enter()
    declaration = found.declaration()
    if declaration:
        return _declared(declaration)
    kind, place = found.module()
    return _made(_only(importlib.import_module(place), kind))


def _declared(path: Path) -> Served:
    return JsonCrew(path) if path.suffix in (".json", ".jsonc") else FlowSource.declared(path)


def _only(module: ModuleType, kind: str) -> Any:
    """Return the class or crew that a project's module defines; there must be only one."""
    own: list[Any] = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    flows: list[Any] = [value for value in own if isinstance(value, type) and issubclass(value, Flow)]
    crews: list[Any] = [value for value in own if isinstance(value, type) and getattr(value, "is_crew_class", False)]
    crews = crews or [value for value in vars(module).values() if isinstance(value, Crew)]
    found = flows if kind == "flow" else crews
    found = [value for value in found if not any(value in getattr(other, "__bases__", ()) for other in found)]
    if len(found) == 1:
        return found[0]
    what = "Flow class" if kind == "flow" else "CrewBase class"
    names = ", ".join(sorted(getattr(value, "__name__", "a Crew") for value in found)) or "none"
    raise UnsupportedCrew(
        f"{module.__name__} should have one {what}, but has {len(found)} ({names}); "
        f"specify which one to serve, as in {module.__name__}:NAME."
    )


def _named(target: str) -> Served:
    place, _, name = target.rpartition(":")
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise UnsupportedCrew(f"there is no file {place}.")
    path = Path(place).resolve()
    if found := project.around(path if is_file else Path()):
        found.enter()
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
        if isinstance(value, Crew)
        or (isinstance(value, type) and issubclass(value, Flow) and value is not Flow)
        or getattr(value, "is_crew_class", False)
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


def _made(named: Any) -> Served:
    if isinstance(named, type) and issubclass(named, Flow):
        return FlowSource.of_class(named)
    if getattr(named, "is_crew_class", False):
        named = (named() if isinstance(named, type) else named).crew()
    elif callable(named) and not isinstance(named, Crew | Flow):
        named = named()
    if isinstance(named, Flow):
        return FlowSource.of_instance(named)
    if not isinstance(named, Crew):
        raise UnsupportedCrew(f"it is of type {type(named).__name__}, not {WANTED}.")
    return named
