"""The text that is sent for a person's answer, and the one rule of what reads as an approval. Pure.

Live deployments decide by the text alone, so the text must say what the flag says (observed dialect). The crew
service decides by the same rule.
"""

from __future__ import annotations

import ast
import json
import unicodedata
from typing import Any

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json

APPROVAL = "Approved."
REVISION_PREFIX = "Please revise: "
MOST_MARKS = 30  # as in Unicode's stream-safe text format
# The whole texts that a service which decides by the text takes as an approval.
APPROVING_WORDS = frozenset(
    ("approved", "approve", "ok", "okay", "yes", "looks good", "looks good to me", "lgtm", "accept", "accepted")
)


def reads_like_approval(text: str) -> bool:
    """Return whether the text alone is an approval: one of the words, whatever its case, form and decoration."""
    if _heaps_marks(text):
        return False
    # Folding can bring up characters that are normalized in turn.
    plain = _normal(_normal(text).casefold())
    return " ".join(_trimmed(plain).split()) in APPROVING_WORDS


def outcome_meant(is_approve: bool, outcomes: list[str]) -> str | None:
    """Return the one outcome of a Flow that an approval or a rejection can mean; None where it is not clear."""
    approving = [outcome for outcome in outcomes if reads_like_approval(outcome.replace("_", " "))]
    others = [outcome for outcome in outcomes if outcome not in approving]
    if len(approving) != 1 or (not is_approve and len(others) != 1):
        return None
    return approving[0] if is_approve else others[0]


def approval_meant(outcome: str, outcomes: list[str]) -> bool | None:
    """Return whether a chosen outcome approves; None unless the outcomes are an approving and a revising one."""
    if len(outcomes) != 2 or outcome_meant(True, outcomes) is None:
        return None
    return outcome == outcome_meant(True, outcomes)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _heaps_marks(text: str) -> bool:
    """Whether more combining marks follow each other than text of any language has; to sort them takes time squared."""
    run = 0
    for character in text:
        # Some characters are no marks and are normalized to nothing else.
        is_mark = not character.isascii() and unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
        run = run + 1 if is_mark else 0
        if run > MOST_MARKS:
            return True
    return False


def _trimmed(text: str) -> str:
    """Remove everything but letters and digits from both ends, in linear time."""
    places = range(len(text))
    first = next((at for at in places if text[at].isalnum()), len(text))
    last = next((at for at in reversed(places) if text[at].isalnum()), -1)
    return text[first : last + 1]


def feedback_to_send(is_approve: bool, feedback: str) -> str:
    """Return the text to send; a rejection without one is refused."""
    if is_approve:
        return feedback if feedback.strip() else APPROVAL
    if not feedback.strip():
        raise CrewInvalidInput("A rejection needs human_feedback that says what to change; nothing was sent")
    return REVISION_PREFIX + feedback if reads_like_approval(feedback) else feedback


def strict_bool(value: Any) -> bool:
    """Read a bool or the words true and false, as templates give them; anything else is refused."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word is True or word == "true":
        return True
    if word is False or word == "false":
        return False
    raise CrewInvalidInput(f"is_approve is {value!r}, neither true nor false; nothing was sent")


def record_of(value: Any, name: str) -> Json:
    """Return a record that came as XCom, or as the text that a template made of it."""
    if isinstance(value, str):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(value)
                break
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    if not isinstance(value, dict):
        raise CrewInvalidInput(f"{name} is not a record but {type(value).__name__}; nothing was sent")
    return value


def record_or_none(value: Any) -> Json | None:
    """Return a record where there is one."""
    try:
        return record_of(value, "the record")
    except CrewInvalidInput:
        return None
