"""A draft: the JSON object in its text, its hash, and its valid replacements. Pure functions.

The provider implements the same rules; the tests run one corpus through both.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

_FENCE = "```"
_FENCE_BEGINS = re.compile(r"```[\w-]*[ \t]*\r?\n")
# NUL and unpaired surrogates: legal in JSON, but refused by databases and by UTF-8.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# PostgreSQL returns floats in this range as whole numbers.
_WHOLE_FROM, _LARGEST = 1e16, 2**64 - 1


@dataclass(frozen=True)
class EditedOutput:
    """Text that replaces a task's draft as its output.

    :param output_sha256: the hash of the original draft; edits of any other draft are refused
    """

    text: str
    output_sha256: str


def edit_problem(draft: str, edited: str) -> str | None:
    """Return why text cannot replace a draft, as the end of a sentence; None if it can."""
    if not edited.strip():
        return "the edited draft is empty"
    if json_object_in(draft) is not None and json_object_in(edited) is None:
        return "the draft is a JSON object, but the edited one is not"
    return None


def draft_sha256(text: str) -> str:
    """Hash a draft's UTF-8 text after replacing characters that UTF-8 or databases refuse."""
    return hashlib.sha256(_UNSTORABLE.sub("\ufffd", text).encode()).hexdigest()


def object_sha256(text: str) -> str | None:
    """Hash a draft's object in canonical form, with sorted keys and no spaces; None for any other draft.

    Answers from release 0.1 forms identify such a draft by this hash.
    """
    value = json_object_in(text)
    try:
        form = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:  # possible even for an object that was parsed
        return None
    return None if value is None else draft_sha256(form)


def hashes_of(text: str) -> dict[str, str | None]:
    """Return the fields that a question stores about its draft."""
    return {"output_sha256": draft_sha256(text), "object_sha256": object_sha256(text)}


def json_object_in(text: str | None) -> dict[str, Any] | None:
    """Return the JSON object that makes up a whole text, ignoring a code fence; None if it is anything else."""
    if text is None or not _without_fence(text).startswith("{"):
        return None
    try:
        value = json.loads(_without_fence(text), parse_constant=_refuse_constant, parse_float=_finite)
        return _storable(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _without_fence(text: str) -> str:
    plain = text.strip()
    begins = _FENCE_BEGINS.match(plain) if plain.endswith(_FENCE) else None
    return plain if begins is None else plain[begins.end() : -len(_FENCE)].strip()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> int | float | None:
    """Parse a JSON number as databases return it: -0.0 as 0.0, a large whole number as an int."""
    number = float(text) + 0.0
    if _WHOLE_FROM <= abs(number) <= _LARGEST:
        return int(number)
    return number if math.isfinite(number) else None


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return value
