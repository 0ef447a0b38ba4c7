"""A tool call's arguments as people see and change them: secrets are masked, and unchanged masks keep their values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crew_service.engine.drafts import json_object_in
from crew_service.engine.printed import HIDDEN, Printed
from crew_service.storage.json_values import tidy


class BadArguments(ValueError):
    """The arguments are not accepted; the message completes a sentence about `edited_output`."""


def masked(value: Any, printed: Printed) -> Any:
    """Return a JSON value with each secret masked in place."""
    text = json.dumps(value).replace("\x7f", "\\u007f")
    visible = printed.masked(text)
    if visible == text:
        return value
    if isinstance(value, dict):
        arguments: dict[str, Any] = {}
        for name, each in value.items():
            shown_name = masked(name, printed)
            while shown_name in arguments:
                shown_name += "*"
            arguments[shown_name] = masked(each, printed)
        return arguments
    if isinstance(value, list):
        return [masked(each, printed) for each in value]
    try:
        return json.loads(visible) if isinstance(value, str) else HIDDEN
    except ValueError:
        return HIDDEN


def changed(text: str, visible: Mapping[str, Any] | None, original: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parse arguments changed by a person, who saw those in `visible`.

    :raises BadArguments: if they are not a JSON object, or would send a mask instead of a value
    """
    try:
        arguments = json_object_in(text)
        if arguments is None:
            raise BadArguments("the arguments of a tool must be a JSON object")
        unmasked: dict[str, Any] = _unmasked(tidy(arguments), visible, original)
        json.dumps(unmasked, indent=2)  # also done later, to show the call if its outcome is unknown
        return unmasked
    except RecursionError:
        raise BadArguments("its arguments are nested too deeply") from None


def _unmasked(changed_value: Any, visible: Any, original: Any) -> Any:
    if isinstance(changed_value, dict):
        known = dict(zip(visible, original.items(), strict=True)) if isinstance(visible, dict) else {}
        fields = {}
        for name, each in changed_value.items():
            real, value = known.get(name, (_without_mask(name), None))
            fields[real] = _unmasked(each, visible[name] if name in known else None, value)
        return fields
    if isinstance(changed_value, list):
        pairs = list(zip(visible, original, strict=True)) if isinstance(visible, list) else []
        rest = [(None, None)] * max(0, len(changed_value) - len(pairs))
        return [_unmasked(each, *pair) for each, pair in zip(changed_value, [*pairs, *rest], strict=False)]
    if isinstance(changed_value, str):
        return original if changed_value == visible else _without_mask(changed_value)
    return changed_value


def _without_mask(text: str) -> str:
    if HIDDEN in text:
        raise BadArguments(f"{HIDDEN} can stand for a secret only where the question shows it")
    return text
