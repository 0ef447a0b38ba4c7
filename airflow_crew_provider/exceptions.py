"""Errors raised when communicating with a crew. Their messages and attributes never contain a token.

::

    CrewError
    ├── CrewInvalidInput        refused before anything was sent
    ├── CrewApiError            the service refused the request
    │   ├── CrewBadRequest      400
    │   ├── CrewUnauthorized    401, 403
    │   ├── CrewNotFound        404
    │   ├── CrewMissingInputs   422, or found missing before the kickoff
    │   ├── CrewKeyReused       422: the idempotency key was already used for a different request
    │   ├── CrewAlreadyContinued  409: another execution already continues the failed one
    │   ├── CrewRateLimited     429
    │   │   └── CrewQuotaExceeded  a budget or quota is used up
    │   ├── CrewRefused         405, 415 and others with which a request has certainly done nothing
    │   │   └── CrewTooLarge    413
    │   └── CrewServerError     5xx
    ├── CrewConnectionError     nothing was sent, or a GET got no response
    ├── CrewFileError           a file to send cannot be read, or the service did not take it; nothing was started
    ├── CrewOutcomeUnknown      a POST may have arrived
    ├── CrewProtocolError       a response that cannot be read
    │   └── CrewWebPage         a body that is not the API's
    ├── CrewExecutionFailed     the execution failed
    └── CrewTimeout             the wait reached its deadline; the execution may continue
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class CrewError(Exception):
    """The base class of all errors in this package."""


class CrewInvalidInput(CrewError, ValueError):
    """The input cannot be sent; nothing was sent."""


class CrewApiError(CrewError):
    """The service refused a request.

    :param status_code: the HTTP status code of the response
    :param method: the HTTP method of the request
    :param path: the path of the request, below the base URL
    :param detail: the service's explanation, as text
    """

    def __init__(self, status_code: int | None, method: str, path: str, detail: str, *more: object) -> None:
        super().__init__(status_code, method, path, detail, *more)  # all arguments, so that it can be pickled
        self.status_code, self.method, self.path, self.detail = status_code, method, path, detail

    def __str__(self) -> str:
        return f"{self.method} {self.path} returned {self.status_code}: {self.detail or 'no detail given'}"


class CrewBadRequest(CrewApiError):
    """400: the service rejected the request as invalid (specification, section 7)."""


class CrewUnauthorized(CrewApiError):
    """401 or 403: the token is missing or invalid, or does not permit the request (specification, section 5)."""


class CrewNotFound(CrewApiError):
    """404: the service does not recognize the id (specification, section 7)."""


class CrewMissingInputs(CrewApiError):
    """422: required inputs are missing (specification, section 7).

    :param names: the missing inputs; empty if the service did not name them
    :param status_code: None if they were found to be missing before anything was sent
    """

    def __init__(
        self,
        names: Sequence[str],
        status_code: int | None = 422,
        method: str = "POST",
        path: str = "/kickoff",
        detail: str = "",
    ) -> None:
        super().__init__(status_code, method, path, detail or f"Missing inputs: {', '.join(names)}")
        self.names = list(names)
        self.args = (self.names, status_code, method, path, self.detail)

    def __str__(self) -> str:
        return super().__str__() if self.status_code else self.detail


class CrewKeyReused(CrewApiError):
    """422: the idempotency key was already used for a different request, whose outcome is not reported."""


class CrewAlreadyContinued(CrewApiError):
    """409: another execution already continues the one named in the request; this request started nothing.

    :param kickoff_id: the id of the other execution
    """

    def __init__(self, status_code: int, method: str, path: str, detail: str, kickoff_id: str = "") -> None:
        super().__init__(status_code, method, path, detail, kickoff_id)
        self.kickoff_id = kickoff_id


class CrewRateLimited(CrewApiError):
    """429: the request was refused, and nothing was started.

    :param retry_after: how many seconds the service asks the caller to wait; None if missing or invalid
    """

    def __init__(self, status_code: int, method: str, path: str, detail: str, retry_after: float | None = None) -> None:
        super().__init__(status_code, method, path, detail, retry_after)
        self.retry_after = retry_after


class CrewQuotaExceeded(CrewRateLimited):
    """A budget of the service, or a deployment's quota, is used up: nothing was started.

    :param retry_after: how many seconds until a retry works; None if unknown, as for a deployment's quota
    :param until: the same as a time (ISO 8601); empty if unknown
    """

    def __init__(
        self, status_code: int, method: str, path: str, detail: str, retry_after: float | None = None, until: str = ""
    ) -> None:
        super().__init__(status_code, method, path, detail, retry_after)
        self.until = until
        self.args = (*self.args, until)

    def __str__(self) -> str:
        refusal = super().__str__().rstrip(".")
        when = f"A retry works from {self.until} on" if self.until else "When a retry works is not known"
        return f"{refusal}. {when}"


class CrewRefused(CrewApiError):
    """Another 4xx with which a request has certainly done nothing (`api.endpoints` lists them)."""


class CrewTooLarge(CrewRefused):
    """413: the body is larger than the service, or a gateway in front of it, accepts."""


class CrewServerError(CrewApiError):
    """5xx: the service failed. If the request was a POST, the service may have acted on it before failing."""

    def __init__(self, status_code: int, method: str, path: str, detail: str, retry_after: float | None = None) -> None:
        super().__init__(status_code, method, path, detail, retry_after)
        self.retry_after = retry_after


class CrewConnectionError(CrewError):
    """No response, and nothing was started: the request was never sent, or it was a GET, which can be repeated.

    :param permanent: True if retrying cannot help, e.g. because the certificate is untrusted
    :param renewable: True if verification against a CA file failed, because that file may be about to be replaced
    :param unreachable: True if no connection could be made, so that another request would not arrive either
    """

    def __init__(
        self, message: str, permanent: bool = False, renewable: bool = False, unreachable: bool = False
    ) -> None:
        super().__init__(message, permanent, renewable, unreachable)
        self.permanent, self.renewable, self.unreachable = permanent, renewable, unreachable

    def __str__(self) -> str:
        return str(self.args[0])


class CrewFileError(CrewError):
    """A file to send cannot be read, or the service did not take it; nothing was started. A retry reads it again."""


class CrewOutcomeUnknown(CrewError):
    """A POST may have arrived, but its response was lost or is unusable.

    :param status_code: the HTTP status code, None if there was no response
    """

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message, status_code)
        self.status_code = status_code

    def __str__(self) -> str:
        return str(self.args[0])


class CrewProtocolError(CrewError):
    """The service returned something that is not a valid response for this API."""


class CrewWebPage(CrewProtocolError):
    """The body is a web page, or other text where JSON is expected, e.g. from a gateway or under maintenance.

    It is not the API's, so it is never an answer, and a later request may succeed.
    """


# A POST that raises one of these has certainly started nothing.
REFUSED = (
    CrewInvalidInput,
    CrewFileError,
    CrewConnectionError,
    CrewBadRequest,
    CrewUnauthorized,
    CrewNotFound,
    CrewMissingInputs,
    CrewAlreadyContinued,
    CrewKeyReused,  # only if the key is new; if it was sent before, this proves nothing
    CrewRateLimited,
    CrewRefused,
)


class CrewExecutionFailed(CrewError):
    """The execution failed.

    :param kickoff_id: the id that was polled
    :param error: the service's description of the failure
    """

    def __init__(self, kickoff_id: str, error: str) -> None:
        super().__init__(kickoff_id, error)
        self.kickoff_id, self.error = kickoff_id, error

    def __str__(self) -> str:
        why = self.error if self.error.endswith("..") else self.error.removesuffix(".")
        return f"The crew's execution {self.kickoff_id} failed: {why}"


class CrewTimeout(CrewError):
    """The wait reached its deadline; the message reports what became of the execution."""


# --- passing an error to another process ---


LONGEST_ARGUMENT = 2_000  # characters; Airflow stores the result


def to_json(error: CrewError) -> dict[str, Any]:
    """Return the class and the arguments of an error."""
    kind = next(each for each in type(error).__mro__ if each.__module__ == __name__)
    cut = [each[:LONGEST_ARGUMENT] if isinstance(each, str) else each for each in error.args]
    return {"class": kind.__name__, "arguments": cut}


def from_json(stored: Any) -> CrewError | None:
    """Return the error that `to_json` described; None for anything else, e.g. from another release."""
    kind = globals().get(str(stored.get("class"))) if isinstance(stored, dict) else None
    if not isinstance(kind, type) or not issubclass(kind, CrewError):
        return None
    try:
        error: CrewError = kind(*stored.get("arguments", ()))
    except TypeError:
        return None
    return error
