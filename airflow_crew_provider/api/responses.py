"""The content of an HTTP response in any known shape: JSON, an error's text, a Retry-After header."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html import escape, unescape
from typing import Any
from urllib.parse import quote, quote_plus

from airflow_crew_provider.api.values import FLOATS_BELOW, LARGEST, UNSEEN
from airflow_crew_provider.exceptions import CrewProtocolError, CrewWebPage
from airflow_crew_provider.models import UNSTORABLE


class BodyTooLarge(Exception):
    """A body is larger than its reader accepts."""


class CappedBody:
    """The pieces of a body read so far.

    :param limit: the maximum number of bytes to keep
    :param drained: how many more bytes to read and discard, because a peer does not read a response while sending
    """

    def __init__(self, limit: int, drained: int = 0) -> None:
        self._limit, self._drained = limit, drained
        self._kept, self._size = bytearray(), 0

    def add(self, piece: bytes) -> None:
        """Add the next piece; raise as soon as further reading is pointless."""
        self._size += len(piece)
        if self._size <= self._limit:
            self._kept += piece
        elif self._size > self._limit + self._drained:
            raise BodyTooLarge

    def content(self) -> bytes:
        """Return the whole body; raise if it was too large."""
        if self._size > self._limit:
            raise BodyTooLarge
        return bytes(self._kept)


def collect(pieces: Iterable[bytes], limit: int) -> bytes:
    """Read a body to its end."""
    body = CappedBody(limit)
    for piece in pieces:
        body.add(piece)
    return body.content()


async def acollect(pieces: AsyncIterable[bytes], limit: int, drained: int = 0) -> bytes:
    """Do what `collect` does, for an asynchronous iterable."""
    body = CappedBody(limit, drained)
    async for piece in pieces:
        body.add(piece)
    return body.content()


Mask = Callable[[str], str]

LONGEST_DETAIL = 500
# The search for the end of a script stops at the next script; otherwise, many unclosed ones would take seconds.
# `unescape` raises an error for a character reference with thousands of digits, so long ones are removed first.
_MARKUP = re.compile(r"<(style|script)(?:(?!<\1).)*?</\1>|<[^<>]+>|&#[0-9]{9,};?", flags=re.DOTALL | re.IGNORECASE)
_MAY_BE_UNSTORABLE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


@dataclass(frozen=True)
class HttpResponse:
    """An HTTP response; ``headers`` are looked up by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    parsed: Any = None
    """The JSON of the body, if it was parsed as part of one response to many polls."""
    usage: Any = None
    """In that case, the equivalent of the usage header."""


def unmasked(text: str) -> str:
    """Return the text unchanged, for strings that cannot contain a secret."""
    return text


# Characters; Airflow masks no shorter secret either, because masking a letter would garble every message.
SHORTEST_SECRET = 5
# Control and formatting characters, as they are or as JSON: many programs remove them, and nobody sees them.
_HIDDEN = re.compile(f"[{UNSEEN}]|\\\\u(?:00[01][0-9a-f]|007f|00[89][0-9a-f]|00ad|20[0-6][0-9a-f]|feff)")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_SPACES = re.compile(r"(?:\s|\\[nrt])+")
CLEANINGS = ((_SPACES, " "), (_HIDDEN, ""), (re.compile(f"(?:{_HIDDEN.pattern}|{_SPACES.pattern})+"), " "))


def masker(secrets: list[str]) -> Mask:
    """Return a function that replaces secrets, including their URL-quoted, JSON-quoted and HTML-quoted forms.

    If removing invisible characters or joining lines would put a secret together, that is done before it is replaced.
    """
    forms = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
    longest_first = sorted(forms, key=len, reverse=True)
    has_space = any(" " in form for form in forms)

    def replaced(text: str) -> str:
        for form in longest_first:
            text = text.replace(form, "***")
        return text

    def mask(text: str) -> str:
        text = replaced(text)
        if has_space or _HIDDEN.search(text):
            for characters, instead in CLEANINGS:
                cleaned = characters.sub(instead, text)
                text = masked if (masked := replaced(cleaned)) != cleaned else text
        return text

    return mask


def in_one_line(text: str, mask: Mask) -> str:
    """Return text on one line, masked after it was cleaned, and to be cut only after that."""
    return mask(" ".join(text.split()))


def _forms(secret: str) -> list[str]:
    quoted = [quote(secret), quote(secret, safe=""), quote_plus(secret)]
    in_lower_case = [re.sub("%..", lambda match: match[0].lower(), form) for form in quoted]
    return [secret, json.dumps(secret)[1:-1], escape(secret), *quoted, *in_lower_case]


def json_of(answer: HttpResponse, what: str, mask: Mask = unmasked) -> Any:
    """Read the body as JSON; values that JSON cannot express (NaN, infinities) become None.

    :raises CrewWebPage: it is something else, so it is not the API's
    """
    if answer.parsed is not None:
        return answer.parsed
    if not answer.body.strip():
        raise CrewProtocolError(f"{what} returned {answer.status} with an empty body")
    try:
        text = answer.body.decode("utf-8-sig", "replace")
        value = _decoder.decode(text)
        return storable(value) if _MAY_BE_UNSTORABLE.search(text) else value
    except (ValueError, RecursionError):
        beginning = words(answer, mask)[:200]
    raise CrewWebPage(f"{what} returned {answer.status} with a body that is not JSON: {beginning}")


def finite(text: str) -> int | float | None:
    """Read a JSON number as databases return it: -0.0 as 0.0, a large whole number as an int.

    A number too large for a float becomes None.
    """
    number = float(text) + 0.0
    if FLOATS_BELOW <= abs(number) <= LARGEST:
        return int(number)
    return number if math.isfinite(number) else None


# Created once, because creating one costs more than reading a status with it.
_decoder = json.JSONDecoder(parse_constant=lambda name: None, parse_float=finite)


def storable(value: Any) -> Any:
    """Replace the characters in a JSON value that databases cannot store or UTF-8 cannot encode."""
    if isinstance(value, str):
        return UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return value


def detail(answer: HttpResponse, mask: Mask = unmasked) -> str:
    """Return the reason for a refusal on one line, from a body of any known shape."""
    body = json_or_none(answer)
    message = _said(body) if isinstance(body, dict) else ""
    return _cut(in_one_line(message, mask)) if message else words(answer, mask)


def words(answer: HttpResponse, mask: Mask = unmasked) -> str:
    """Return the body as one line of plain text; for HTML, the text without tags."""
    # Masked before being cut: a truncated secret would not be recognized.
    text = mask(answer.body[:40_000].decode("utf-8", "replace"))[:20_000]
    if _looks_like_html(text):
        text = unescape(_MARKUP.sub(" ", text))
    return _cut(in_one_line(text, mask))


def is_page(answer: HttpResponse) -> bool:
    """Whether the body is a page, e.g. of a gateway or under maintenance, which says nothing about the request.

    The API's errors are JSON or plain text; JSON is the API's, whatever its content type and whatever HTML it quotes.
    """
    return _is_markup(answer) and json_or_none(answer) is None


def _is_markup(answer: HttpResponse) -> bool:
    kind, begins = answer.headers.get("content-type", "").lower(), answer.body[:1000].decode("utf-8-sig", "replace")
    return "html" in kind or begins.lstrip().startswith("<") or _looks_like_html(begins)


def _looks_like_html(text: str) -> bool:
    return "<html" in text.lower() or "<!doctype" in text.lower()


def missing_names(answer: HttpResponse) -> list[str]:
    """Return the names of missing inputs in a 422 response, in any known shape."""
    body = json_or_none(answer)
    if not isinstance(body, dict):
        return []
    more = body.get("details")
    named = more.get("missing_inputs") if isinstance(more, dict) else None
    if isinstance(named, list):
        return [str(name) for name in named]
    problem = body.get("detail")
    if isinstance(problem, list):
        return [str(place[-1]) for place in map(_missing_place, problem) if place]
    text = problem if isinstance(problem, str) else ""
    match = re.search(r"missing (?:required )?inputs?:\s*(.+)", text, re.IGNORECASE)
    return [name.strip(" '\"[]") for name in match[1].split(",")] if match else []


def _missing_place(item: Any) -> list[Any]:
    """Return where a 422 reports a missing field: a list of names, on its own or as an error's ``loc``."""
    if isinstance(item, list):
        return item
    place = item.get("loc") if isinstance(item, dict) else None
    if not isinstance(place, list):
        return []
    problem = f"{item.get('type') or ''} {item.get('msg') or ''}".lower()
    return place if not problem.strip() or "missing" in problem or "required" in problem else []


def retry_after(answer: HttpResponse, now: datetime | None = None) -> float | None:
    """Return the seconds in a Retry-After header; None if absent or invalid."""
    value = answer.headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,12}", value, re.ASCII):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def budget_until(answer: HttpResponse) -> str | None:
    """Return when a used-up budget begins anew; empty if that is not a time, None if no budget is the reason."""
    body = json_or_none(answer)
    budget = body.get("budget") if isinstance(body, dict) else None
    if not isinstance(budget, dict):
        return None
    until = budget.get("until")
    return until if isinstance(until, str) and TIME.fullmatch(until) else ""


def json_or_none(answer: HttpResponse) -> Any:
    """Read the body as JSON; None if it is something else."""
    try:
        return json_of(answer, "")
    except CrewProtocolError:
        return None


def _said(body: dict[str, Any]) -> str:
    problem = body.get("detail")
    if isinstance(problem, str):
        return problem
    if isinstance(problem, list):
        return "; ".join(_complaint(item) for item in problem)
    return ": ".join(str(body[key]) for key in ("error", "message") if isinstance(body.get(key), str))


def _complaint(item: Any) -> str:
    if isinstance(item, list):
        return ".".join(map(str, item))
    if not isinstance(item, dict):
        return str(item)
    loc = item.get("loc")
    where = ".".join(str(part) for part in loc) if isinstance(loc, list) else ""
    return f"{where}: {item.get('msg', '')}" if where else str(item.get("msg", ""))


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_DETAIL else f"{line[:LONGEST_DETAIL]}…"
