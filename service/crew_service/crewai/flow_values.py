"""Converts what crews and Flows return to text for display, and methods' results to and from their stored form."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from crewai import CrewOutput, TaskOutput
from crewai.flow.human_feedback import HumanFeedbackResult

from crew_service.crewai import codec, points
from crew_service.engine.drafts import json_object_in

LONGEST_RESULT = 11 * 1024 * 1024  # characters of an encoded result
Stored = dict[str, Any]


def text(value: Any) -> str:
    """Return readable text: strings unchanged, a crew's answer as its text, everything else as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case HumanFeedbackResult():
            return text(value.output)
        case _ if _is_answer(value):
            return text(value.raw)
        case _:
            return json.dumps(codec.shown(value), ensure_ascii=False)


def json_object(value: Any) -> dict[str, Any] | None:
    """Return the JSON object that a value or string represents; None if it does not represent one."""
    if isinstance(value, HumanFeedbackResult):
        return json_object(value.output)
    if _is_answer(value):
        structured = getattr(value, "json_dict", None) or value.pydantic
        return json_object(structured if structured is not None else value.raw)
    if isinstance(value, str):
        return json_object_in(value)
    shown = codec.shown(value)
    return shown if isinstance(shown, dict) else None


def _is_answer(value: Any) -> bool:
    """Whether a value is the answer of a crew, a task or an agent, which has its text in `raw`."""
    return isinstance(value, CrewOutput | TaskOutput) or type(value).__name__ == "LiteAgentOutput"


def stored(value: Any, packages: Container[str], name: str) -> Stored:
    """Encode the result of the method with this name for `restored`; if that is impossible, `lost` names its type."""
    try:
        text = codec.encoded(value, packages=packages)
    except codec.NotStorable as error:
        return {
            points.LOST: type(value).__name__,
            "problem": problem(error, f"the return value of its method {name!r}"),
        }
    if len(text) > LONGEST_RESULT:
        reason = f"the return value of its method {name!r} takes {len(text) >> 20} MiB, more than are kept"
        return {points.LOST: type(value).__name__, "problem": reason}
    return {"kept": text}


def restored(record: Stored) -> Any:
    """Return a method's result.

    :raises Exception: of any kind, if its class has changed or is gone
    """
    if "kept" in record:
        return codec.decoded(record["kept"])
    return codec.decoded_of_0_2(record)


def problem(error: codec.NotStorable, whole: str) -> str:
    """Return which part of a value is not kept, and what would be, as the end of a sentence."""
    part = f"{error.place!r} in {whole}" if error.place else whole
    kept = error.kept
    addition = f"; only the text {kept!r} would be kept" if kept else ""
    return f"{part} ({error.kind}) {error.reason or 'cannot be stored'}{addition}"
