"""All uses of CrewAI beyond its public API; modules outside this package use only the public API.

CrewAI releases twice a week and may rename what it does not document. Each module here declares the undocumented names
that it uses in a `Seam`: what they are for, and why nothing documented is enough. They are looked up when they are
needed, never on import. A missing name is a value, `Seam.missing`, and costs only what the seam is for: crews and Flows
that do not need it run by CrewAI's public API, and those that do are refused when the service starts. So is a function
that declares another type for what it returns, if the service takes that apart.

`make crewai-matrix` tests OLDEST to NEWEST; later versions are accepted, because a missing name stops nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, wraps
from importlib import import_module
from importlib.metadata import version
from typing import Any, ClassVar

OLDEST = "1.15.3"  # the first version with hooks around each task
NEWEST = "1.15.30"
NO_JOURNAL = "no journal is kept, so executions whose process is killed fail"
DECLARED = ("__private_attributes__", "model_fields", "__annotations__")  # where a class lists what instances have


class Seam:
    """A purpose for which the service uses names that CrewAI does not document.

    :param off: what is off while one of them is missing, as a clause
    :param names: `module:NAME` or `module:CLASS.NAME`, each with the reason why it is needed
    :param returns: the types that functions among them are known to return, without their parameters
    """

    all: ClassVar[list[Seam]] = []

    def __init__(self, off: str, names: dict[str, str], returns: dict[str, str] | None = None) -> None:
        self.off, self.names, self.returns = off, names, returns or {}
        self.all.append(self)

    def __getitem__(self, name: str) -> Any:
        """Return what a name in the table stands for; of a method, give the class, too."""
        return _found(self._path(name))

    def wrap(self, name: str, wrapped: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace a method in this process, given as `CLASS.NAME`."""
        owner, _, method = self._path(name).rpartition(".")
        kind = _found(owner)
        original = getattr(kind, method)
        setattr(kind, method, wraps(original)(wrapped(original)))

    @cached_property
    def missing(self) -> str | None:
        """Return the first thing that this CrewAI does not have; None if it has them all."""
        lost = next((path for path in self.names if not _exists(path)), None)
        if lost:
            return lost
        returned = {name: _returned(_found(self._path(name))) for name in self.returns}
        changed = (name for name, kind in self.returns.items() if returned[name] not in (None, kind))
        return next((f"{self._path(name)} that returns {self.returns[name]}" for name in changed), None)

    @classmethod
    def told(cls) -> list[str]:
        """List what is off, each as a sentence without its first capital and its full stop."""
        return [f"{seam.off}: {seam.reason}" for seam in cls.all if seam.missing]

    @property
    def reason(self) -> str:
        """Return why it is off, as a clause."""
        return f"CrewAI {version('crewai')} has no {self.missing}; the newest version tested is {NEWEST}"

    def _path(self, name: str) -> str:
        return next(path for path in self.names if path.endswith(f":{name}"))


def first_missing(*seams: Seam) -> Seam | None:
    return next((seam for seam in seams if seam.missing), None)


def _found(path: str) -> Any:
    place, _, name = path.partition(":")
    value: Any = import_module(place)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _exists(path: str) -> bool:
    try:
        _found(path)
    except ImportError:
        return False
    except AttributeError:
        owner, _, name = path.rpartition(".")
        kinds = getattr(_found(owner), "__mro__", ()) if ":" in owner and _exists(owner) else ()
        return any(name in (getattr(kind, listed, None) or ()) for kind in kinds for listed in DECLARED)
    return True


def _returned(function: Any) -> str | None:
    """Return the type that a function declares to return, without its parameters; None if it declares none."""
    declared = getattr(function, "__annotations__", {}).get("return")
    named = declared if isinstance(declared, str | None) else getattr(declared, "__name__", str(declared))
    match = re.match(r"[\w.]+", named or "")
    return match[0].rpartition(".")[2] if match else None
