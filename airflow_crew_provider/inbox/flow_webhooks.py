"""The signed webhook for a Flow's question: its signature, its two shapes, and its stored form.

The callback address contains a token, so it is secret and is stored separately.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox.messages import draft_text, id_in, pending_execution
from airflow_crew_provider.models import Execution, Json

FRESH = 300  # seconds for which a signature is valid
STANDARD = "whsec_"  # Standard Webhooks secrets begin with this (https://www.standardwebhooks.com)
EVENTS = ("new_request", "escalation", "")
OPEN = ("pending", "")
LONGEST_URL = 4096
MOST_OUTCOMES, LONGEST_OUTCOME = 100, 1000


def is_recent(headers: Mapping[str, str], *, now: float) -> bool:
    """Return whether a webhook has a signature, valid or not, from the last five minutes; its body is not needed.

    Header names must be in lower case.
    """
    carried = [_first(headers, timestamps) for _, names, timestamps in SIGNATURES if _first(headers, names)]
    return bool(carried) and all(_is_fresh(timestamp, now) for timestamp in carried)


def is_signed(secret: str, headers: Mapping[str, str], raw: bytes, *, now: float) -> bool:
    """Return whether a webhook was signed with the secret in the last five minutes.

    It may have CrewAI's signature, a Standard Webhooks signature, or both; each one present must be valid. Header names
    must be in lower case.
    """
    carried = [holds for holds, names, _ in SIGNATURES if _first(headers, names)]
    return is_recent(headers, now=now) and all(holds(secret, headers, raw) for holds in carried)


CREWAI_SIGNATURES = ("x-crewai-signature", "x-signature")
CREWAI_TIMESTAMPS = ("x-crewai-timestamp", "x-timestamp")


def _holds_as_crewai_signs(secret: str, headers: Mapping[str, str], raw: bytes) -> bool:
    timestamp = _bytes(_first(headers, CREWAI_TIMESTAMPS))
    signed = hmac.new(secret.encode(), timestamp + b"." + raw, hashlib.sha256)
    return hmac.compare_digest(f"sha256={signed.hexdigest()}".encode(), _bytes(_first(headers, CREWAI_SIGNATURES)))


def _holds_by_the_standard(secret: str, headers: Mapping[str, str], raw: bytes) -> bool:
    """Return whether any of the signatures (several during a rotation) is valid; False for a non-standard secret."""
    key = _standard_key(secret)
    if key is None:
        return False
    id_, timestamp = (_bytes(headers.get(name) or "") for name in ("webhook-id", "webhook-timestamp"))
    signed = b64encode(hmac.digest(key, b".".join((id_, timestamp, raw)), "sha256"))
    same = [hmac.compare_digest(b"v1," + signed, _bytes(each)) for each in headers["webhook-signature"].split()]
    return any(same)


SIGNATURES = (
    (_holds_as_crewai_signs, CREWAI_SIGNATURES, CREWAI_TIMESTAMPS),
    (_holds_by_the_standard, ("webhook-signature",), ("webhook-timestamp",)),
)


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((text for name in names if (text := headers.get(name))), "")


def _standard_key(secret: str) -> bytes | None:
    encoded = secret.removeprefix(STANDARD)
    try:
        key = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        return None
    return key or None if encoded != secret else None


def _is_fresh(timestamp: str, now: float) -> bool:
    in_time = timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 16
    return in_time and abs(now - int(timestamp)) <= FRESH


def _bytes(header: str) -> bytes:
    return header.encode("latin-1", "replace")


@dataclass(frozen=True)
class FlowQuestion:
    """A Flow's question; any of ``ids`` may identify its execution."""

    id: str
    method: str
    question: str
    output: str
    outcomes: list[str]
    ids: list[str]
    flow_id: str | None

    def as_execution(self, kickoff_id: str) -> Execution:
        """Return the execution as a poll would if the status showed the question."""
        fields: Json = {"question": self.question, "outcomes": list(self.outcomes), "flow_id": self.flow_id}
        return pending_execution(kickoff_id, self.id, self.output, **fields)

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class AnswerAddress:
    """The address for answering a question: its callback, which is secret, or else the Flow's id."""

    callback_url: str | None = field(default=None, repr=False)
    response_token: str | None = field(default=None, repr=False)
    flow_id: str | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The strings to mask: the URL, its parts, and the token."""
        parts = urlsplit(self.callback_url or "")
        values = [value for _, value in parse_qsl(parts.query)]
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        secrets = (self.callback_url, path, parts.query, self.response_token, *values)
        return tuple(each for each in secrets if each and len(each) >= 8)

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)


def read(body: Any) -> tuple[FlowQuestion, AnswerAddress] | None:
    """Read a webhook in either shape; return None if it asks nothing, e.g. because its request was already answered.

    :raises CrewProtocolError: a required field is missing, or a field is invalid
    """
    if not isinstance(body, dict):
        raise CrewProtocolError("The webhook is not an object")
    fields = _flat(body)
    if _text(fields, "event_type") not in EVENTS or _text(fields, "status") not in OPEN:
        return None
    id_, flow_id = _id(fields, "id"), _id(fields, "flow_id")
    ids = [each for each in (_id(fields, name) for name in ("kickoff_id", "flow_id", "flow_execution_id")) if each]
    if id_ is None or not ids:
        raise CrewProtocolError("The webhook lacks id, or both flow_id and flow_execution_id")
    text = draft_text(fields.get("output"))
    question = FlowQuestion(
        id_, _text(fields, "method_name"), _text(fields, "message"), text, _outcomes(fields), ids, flow_id
    )
    callback = _text(fields, "callback_url")[:LONGEST_URL] or None
    return question, AnswerAddress(callback, _text(fields, "response_token") or None, flow_id)


def _flat(body: Json) -> Json:
    """Merge the fields of either shape into one object; the request's fields take precedence."""
    named: Json = {}
    event = body.get("event")
    if isinstance(event, dict):
        named = {**event, "event_type": event.get("event_type") or event.get("type") or event.get("name")}
    elif isinstance(event, str):
        named = {"event_type": event}
    request = body.get("request")
    return {**named, **body, **(request if isinstance(request, dict) else {})}


def _outcomes(fields: Json) -> list[str]:
    outcomes = fields.get("emit")
    if outcomes is None:
        return []
    known = isinstance(outcomes, list) and all(isinstance(each, str) and each.strip() for each in outcomes)
    if not known or len(outcomes) > MOST_OUTCOMES or any(len(each) > LONGEST_OUTCOME for each in outcomes):
        raise CrewProtocolError("The webhook's emit is not a list of words")
    return list(outcomes)


def _text(fields: Json, name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CrewProtocolError(f"The webhook's {name} must be a string")
    return value


def _id(fields: Json, name: str) -> str | None:
    """Return an id, which may also be a number here."""
    value = fields.get(name)
    return id_in({name: str(value)} if type(value) is int else fields, name)
