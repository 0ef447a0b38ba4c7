"""A tool call's arguments as people see and change them: secrets are masked, and unchanged masks keep their values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crew_service.engine.printed import HIDDEN, Printed
from crew_service.storage.json_values import tidy


class BadArguments(ValueError):
    """The arguments are not accepted; the message completes a sentence about `edited_output`."""


def masked(value: Any, printed: Printed) -> Any:
    """Return a JSON value with each secret masked in place."""
    text = json.dumps(value).replace("\x7f", "\\u007f")
    shown = printed.masked(text)
    if shown == text:
        return value
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for name, each in value.items():
            shown_name = masked(name, printed)
            while shown_name in found:
                shown_name += "*"
            found[shown_name] = masked(each, printed)
        return found
    if isinstance(value, list):
        return [masked(each, printed) for each in value]
    try:
        return json.loads(shown) if isinstance(value, str) else HIDDEN
    except ValueError:
        return HIDDEN


def changed(text: str, shown: Mapping[str, Any] | None, original: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parse arguments changed by a person, who saw those in `shown`.

    :raises BadArguments: if they are not a JSON object, or would send a mask instead of a value
    """
    try:
        try:
            given = json.loads(text)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise BadArguments("the arguments of a tool must be a JSON object")
        found: dict[str, Any] = _unmasked(tidy(given), shown, original)
        json.dumps(found, indent=2)  # also done later, to show the call if its outcome is unknown
        return found
    except RecursionError:
        raise BadArguments("its arguments are nested too deeply") from None


def _unmasked(given: Any, shown: Any, original: Any) -> Any:
    if isinstance(given, dict):
        known = dict(zip(shown, original.items(), strict=True)) if isinstance(shown, dict) else {}
        found = {}
        for name, each in given.items():
            real, value = known.get(name, (_without_mask(name), None))
            found[real] = _unmasked(each, shown[name] if name in known else None, value)
        return found
    if isinstance(given, list):
        pairs = list(zip(shown, original, strict=True)) if isinstance(shown, list) else []
        rest = [(None, None)] * max(0, len(given) - len(pairs))
        return [_unmasked(each, *pair) for each, pair in zip(given, [*pairs, *rest], strict=False)]
    if isinstance(given, str):
        return original if given == shown else _without_mask(given)
    return given


def _without_mask(text: str) -> str:
    if HIDDEN in text:
        raise BadArguments(f"{HIDDEN} can stand for a secret only where the question shows it")
    return text
