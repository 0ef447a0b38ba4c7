"""The input of an agent that is served without a crew: what it is told, as a string or as a conversation.

CrewAI also takes files and tool calls in a message, which would be read or continued with the access of the crew's
process, so a caller may give neither.
"""

from __future__ import annotations

from typing import Any

AGENT = "agent"  # the only task of such an agent
MESSAGES = "messages"
ROLES = ("user", "assistant", "system")
WANTED = f"it must be a string, or a list of objects with exactly role ({', '.join(ROLES)}) and content (a string)"
MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": list(ROLES)}, "content": {"type": "string"}},
    "required": ["role", "content"],
    "additionalProperties": False,
}
SCHEMA = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": MESSAGE}]}


def problem(inputs: dict[str, Any]) -> str | None:
    """Return why the messages in these inputs cannot be taken, as a sentence; None if they can or there are none."""
    if MESSAGES not in inputs:
        return None
    messages = inputs[MESSAGES]
    if not messages or not isinstance(messages, str | list):
        return f"The input {MESSAGES!r} cannot be used: {WANTED}, and not empty."
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        if reason := _problem(message):
            return f"The input '{MESSAGES}[{place}]' cannot be used, because {reason}: {WANTED}."
    return None


def _problem(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "it is not an object"
    if other := sorted(message.keys() ^ {"role", "content"}):
        return f"it has {other[0]!r}" if other[0] in message else f"it has no {other[0]!r}"
    if message["role"] not in ROLES:
        return f"its role is {message['role']!r}"
    return None if isinstance(message["content"], str) else "its content is not a string"
