"""Which error an exchange without an answer is: nothing was sent, or the outcome is unknown."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import aiohttp
import requests

from airflow_crew_provider.core import responses
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewOutcomeUnknown, CrewProtocolError

UNTRUSTED = (ssl.SSLCertVerificationError, aiohttp.ClientConnectorCertificateError)
# What OpenSSL says when the peer does not speak TLS.
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
HINT = " (the peer does not speak TLS: a Host without a scheme means https; write http:// before it if that is meant)"


def no_answer(
    call: Call[Any], error: Exception, sent: bool, mask: responses.Mask, *, ca_file: bool = False
) -> CrewError:
    """Return the error that names what happened.

    :param sent: whether the request may have arrived
    :param ca_file: whether a CA file decides which certificates are trusted
    """
    reason = _reason(error, mask)
    if call.starts_something and sent:
        return CrewOutcomeUnknown(
            f"{call.method} {call.path} was sent and its answer was lost ({reason}): "
            "whether the service acted on it is unknown"
        )
    if isinstance(error, CrewProtocolError):
        return error
    return CrewConnectionError(
        f"No answer to {call.method} {call.path}: {reason}; nothing was started",
        permanent=_is_permanent(error),
        renewable=ca_file and _has(error, *UNTRUSTED),
    )


def _reason(error: BaseException, mask: responses.Mask) -> str:
    """Return the innermost message, which says most, without the object addresses around it."""
    if isinstance(error, TimeoutError | requests.Timeout | aiohttp.ServerTimeoutError):
        return mask(str(error)) or "it timed out"
    for inner in _chain(error):
        error = inner
    text = str(error).rpartition("object at 0x")[2] if "object at 0x" in str(error) else str(error)
    shown = mask(" ".join(text.split()))[:300] or type(error).__name__
    return shown + HINT if any(word in text.upper().replace(" ", "_") for word in NOT_TLS) else shown


def _is_permanent(error: Exception) -> bool:
    return _has(error, *UNTRUSTED, requests.exceptions.InvalidURL)


def _has(error: Exception, *kinds: type[Exception]) -> bool:
    return any(isinstance(each, kinds) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Walk from an error to what caused it; urllib3 keeps that in `reason` or in its arguments."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((each for each in inner if isinstance(each, BaseException)), None)
