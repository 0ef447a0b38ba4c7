"""Finds the values in a kickoff's inputs that a Flow's state would turn into files.

CrewAI would read a path or fetch an address there with the access of the crew's process, so a caller must not name
either: only uploaded files are taken, by their addresses. The stored inputs refer to a file by its hash. Only text is
given to fields without a file type, whatever it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

FILE = {"file": True}
INPUTS = ""  # the place of the inputs themselves
SOURCE = "source"  # the key under which CrewAI takes a file's content
HASH = "sha256:"
REFUSED = (
    "The input {name!r} has a file type. A path or an address in it would be read with the crew's own access, so it "
    "takes only the address of a file that you have uploaded with POST /files and that no execution has used."
)
Path = tuple[str | int, ...]


class GivenFile(NamedTuple):
    """A value that would become a file.

    :param address: None if the value does not have the form of one
    :param kinds: what the place takes: see `file_types`
    """

    path: Path
    address: str | None
    kinds: frozenset[Any] = frozenset()

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path))


def source_of(sha256: str) -> dict[str, str]:
    """Return the value by which stored inputs refer to a file."""
    return {SOURCE: HASH + sha256}


def hash_in(value: Any) -> str | None:
    """Return the hash in a value that stored inputs have for a file; None if it is another one."""
    source = value.get(SOURCE) if isinstance(value, dict) and len(value) == 1 else None
    return source.removeprefix(HASH) if isinstance(source, str) and source.startswith(HASH) else None


class FileInputs:
    """Where a crew's inputs hold files, as plain JSON: its own process finds the places, the service applies them.

    :param places: by name: each `{"file": true}`, or where a value of that place holds files: `names` and `each`
        contain the places of an object's fields and of all items, `refs` the names of places with the same value,
        and `json` the place of the value that a string contains
    :param names: the inputs that take files; if there are none, files may have any name
    :param problem: why the crew takes no files, as a sentence; None if it does
    """

    def __init__(self, places: dict[str, Any], *, names: tuple[str, ...] = (), problem: str | None = None) -> None:
        self._places = places
        self.problem = problem
        fields = [place for place in self._places_of(INPUTS) if "names" in place]
        own = (name for place in fields for name, each in place["names"].items() if each.get("file"))
        self.names = names or tuple(own)

    @property
    def are_in_inputs(self) -> bool:
        """Return whether the crew takes its files as values of its inputs."""
        return bool(self._places)

    def given(self, inputs: dict[str, Any]) -> list[GivenFile]:
        files = self._found(inputs, self._places.get(INPUTS, {}), (), frozenset())
        return list({each.path: each for each in files}.values())

    def _places_of(self, name: str, visited: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
        place = self._places.get(name, {})
        yield place
        for ref in place.get("refs", ()):
            if ref not in visited:
                yield from self._places_of(ref, visited | {ref})

    def _found(self, value: Any, place: dict[str, Any], path: Path, visited: frozenset[str]) -> Iterator[GivenFile]:
        if value is None:
            return
        if place.get("file"):
            kinds = (
                each.get("file") for each in (place, *(self._places.get(ref, {}) for ref in place.get("refs", ())))
            )
            yield GivenFile(path, _address(value), frozenset(kinds))
            return
        for ref in place.get("refs", ()):
            if ref not in visited:
                yield from self._found(value, self._places.get(ref, FILE), path, visited | {ref})
        if "json" in place and isinstance(value, str):  # text has no place for a file's content
            for each in self._found(_decoded(value), place["json"], path, frozenset()):
                yield GivenFile(each.path, None)
        for name, item in _items(value):
            for inner in (place.get("names", {}).get(str(name)), place.get("each")):
                if inner:
                    yield from self._found(item, inner, (*path, name), frozenset())


def replaced(inputs: Any, values: Mapping[Path, Any]) -> Any:
    """Return the inputs with other values at these paths."""

    def at(path: Path, value: Any) -> Any:
        if path in values:
            return values[path]
        if isinstance(value, dict):
            return {name: at((*path, name), each) for name, each in value.items()}
        return [at((*path, place), each) for place, each in enumerate(value)] if isinstance(value, list) else value

    return at((), inputs) if values else inputs


def _address(value: Any) -> str | None:
    if isinstance(value, dict) and len(value) == 1:
        value = value.get(SOURCE)
    return value if isinstance(value, str) else None


def _items(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # the state refuses it
