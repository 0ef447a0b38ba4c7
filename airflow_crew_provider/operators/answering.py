"""What a person's answer becomes before it is sent. Pure.

Live deployments decide by the text alone, so the text must say what the flag says (observed dialect).
"""

from __future__ import annotations

import ast
import json
from typing import Any

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json

APPROVAL = "Approved."
REVISION_PREFIX = "Please revise: "
# The texts that a service which decides by the text takes as an approval.
APPROVING_WORDS = frozenset(
    ("approved", "approve", "ok", "okay", "yes", "looks good", "lgtm", "looks good to me", "accepted", "accept")
)


def reads_like_approval(text: str) -> bool:
    """Whether a text alone would be taken as an approval; case and final punctuation do not count."""
    return " ".join(text.split()).rstrip(".!,; ").casefold() in APPROVING_WORDS


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


def deadline_policy(on_timeout: Any, response_timeout: Any) -> Any:
    """Check what shall happen when nobody answers; an approval is never a matter of default."""
    if isinstance(on_timeout, dict):
        text = on_timeout.get("revise")
        if set(on_timeout) != {"revise"} or not isinstance(text, str) or not text.strip():
            raise ValueError('on_timeout as a dict is {"revise": "what to change"}')
    elif on_timeout not in ("fail", "approve"):
        raise ValueError(f'on_timeout is "fail", {{"revise": "what to change"}} or "approve", not {on_timeout!r}')
    if on_timeout != "fail" and response_timeout is None:
        raise ValueError("on_timeout needs a response_timeout: without one there is no deadline")
    return on_timeout
