"""From TARGET to a fresh crew: imports the module and makes the crew that NAME stands for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from crewai import Crew, Flow

from .describe import Refused


def build(target: str) -> Crew:
    """Give the crew of TARGET, made now. A process does this once, so a crew of a module is fresh too."""
    place, _, name = target.rpartition(":")
    module = _module(place)
    try:
        named = getattr(module, name)
    except AttributeError:
        raise Refused(f"{place} has no {name!r}.") from None
    crew = _made(named)
    if not isinstance(crew, Crew):
        raise Refused(f"it is {_kind(crew)}, not a Crew, a CrewBase class or a function that returns a crew.")
    return crew


def _module(place: str) -> ModuleType:
    try:
        return _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except FileNotFoundError:
        raise Refused(f"there is no file {place}.") from None
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise Refused(f"there is no module {error.name!r} here.") from None
        raise


def _file(path: Path) -> ModuleType:
    """Import a file under a name of its own; what lies next to it can be imported, as with `python file.py`."""
    path = path.resolve(strict=True)
    spec = importlib.util.spec_from_file_location(f"crew_of_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _made(named: Any) -> Any:
    if isinstance(named, type) and issubclass(named, Flow):
        raise Refused("it is a Flow; the service runs crews.")
    if getattr(named, "is_crew_class", False):
        return (named() if isinstance(named, type) else named).crew()
    return named() if callable(named) and not isinstance(named, Crew) else named


def _kind(thing: Any) -> str:
    return "a Flow" if isinstance(thing, Flow) else f"of type {type(thing).__name__}"
