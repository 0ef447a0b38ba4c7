"""Finds the values in a kickoff's inputs that a Flow's state would turn into files.

CrewAI would read a path or fetch an address there with the access of the crew's process, so a caller must not name
either. Only text is given to fields without a file type, whatever it says.
"""

from __future__ import annotations

import json
from typing import Any

FILE = {"file": True}
INPUTS = ""  # the place of the inputs themselves
REFUSED = (
    "The input {name!r} has a file type. A path or an address in it would be read with the crew's own access, so "
    "callers cannot give one; omit it, or use a field for text."
)


class FileInputs:
    """Where a crew's inputs hold files, as plain JSON: its own process finds the places, the service applies them.

    :param places: by name: each `{"file": true}`, or where a value of that place holds files: `names` and `each`
        contain the places of an object's fields and of all items, `refs` the names of places with the same value,
        and `json` the place of the value that a string contains
    """

    def __init__(self, places: dict[str, Any]) -> None:
        self._places = places

    def problem(self, inputs: dict[str, Any]) -> str | None:
        """Return why the inputs cannot be taken, as a sentence that names the first file in them; None if they can."""
        name = self._first(inputs, self._places.get(INPUTS, {}), (), frozenset())
        return None if name is None else REFUSED.format(name=name)

    def _first(self, value: Any, place: dict[str, Any], path: tuple[str, ...], seen: frozenset[str]) -> str | None:
        if value is None:
            return None
        if place.get("file"):
            return ".".join(path)
        found: list[str | None] = [
            self._first(value, self._places.get(ref, FILE), path, seen | {ref})
            for ref in place.get("refs", ())
            if ref not in seen
        ]
        if "json" in place and isinstance(value, str):
            found.append(self._first(_decoded(value), place["json"], path, frozenset()))
        for name, item in _items(value):
            for inner in (place.get("names", {}).get(name), place.get("each")):
                found.append(self._first(item, inner, (*path, name), frozenset()) if inner else None)
        return next((each for each in found if each is not None), None)


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return [(str(place), item) for place, item in enumerate(value)] if isinstance(value, list) else []


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # the state refuses it
