"""What it means that an exchange got no answer: nothing was sent, or nobody knows."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import aiohttp
import requests

from airflow_crew_provider import answers
from airflow_crew_provider.api import Call
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewOutcomeUnknown, CrewProtocolError


def no_answer(call: Call[Any], error: Exception, sent: bool, mask: answers.Mask) -> CrewError:
    reason = _reason(error, mask)
    if call.starts_something and sent:
        return CrewOutcomeUnknown(
            f"{call.method} {call.path} was sent and its answer is lost ({reason}): "
            "whether the service acted on it is unknown"
        )
    if isinstance(error, CrewProtocolError):
        return error
    return CrewConnectionError(
        f"No answer to {call.method} {call.path}: {reason}; nothing was started", _is_permanent(error)
    )


def _reason(error: BaseException, mask: answers.Mask) -> str:
    """Return the innermost message, which says most, without the object addresses around it."""
    if isinstance(error, TimeoutError | requests.Timeout | aiohttp.ServerTimeoutError):
        return mask(str(error)) or "the time for it ran out"
    for inner in _chain(error):
        error = inner
    text = str(error).rpartition("object at 0x")[2] if "object at 0x" in str(error) else str(error)
    return mask(" ".join(text.split()))[:300] or type(error).__name__


def _is_permanent(error: Exception) -> bool:
    wrong = (
        ssl.SSLCertVerificationError,
        aiohttp.ClientConnectorCertificateError,
        requests.exceptions.InvalidURL,
    )
    return any(isinstance(each, wrong) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Walk from an error to what caused it; urllib3 keeps that in `reason` or in its arguments."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((each for each in inner if isinstance(each, BaseException)), None)
