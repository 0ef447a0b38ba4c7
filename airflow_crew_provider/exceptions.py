"""What can go wrong between Airflow and a crew, each with a name. No text or attribute of these shows a token.

::

    CrewError
    ├── CrewInvalidInput        refused here, before anything was sent
    ├── CrewApiError            the service answered, and the answer is a refusal
    │   ├── CrewBadRequest      400
    │   ├── CrewUnauthorized    401, 403
    │   ├── CrewNotFound        404
    │   ├── CrewMissingInputs   422, or found missing before the kickoff
    │   ├── CrewKeyReused       422: the idempotency key belongs to another request
    │   ├── CrewRateLimited     429, or an exhausted quota
    │   └── CrewServerError     5xx
    ├── CrewConnectionError     nothing was sent, or a GET got no answer
    ├── CrewOutcomeUnknown      a POST may have arrived
    ├── CrewProtocolError       an answer that cannot be read
    │   └── CrewWebPage         a web page where the crew's API is expected
    ├── CrewExecutionFailed     the execution ended as failed
    └── CrewTimeout             the wait reached its deadline; the execution may go on
"""

from __future__ import annotations

from collections.abc import Sequence


class CrewError(Exception):
    """Root of all errors of this package."""


class CrewInvalidInput(CrewError, ValueError):
    """A value that cannot be sent; nothing was sent."""


class CrewApiError(CrewError):
    """The service refused a request.

    :param status_code: the HTTP status code of the answer
    :param method: the HTTP method of the request
    :param path: the path of the request, below the base URL
    :param detail: what the service said, as text
    """

    def __init__(self, status_code: int | None, method: str, path: str, detail: str) -> None:
        super().__init__(status_code, method, path, detail)
        self.status_code, self.method, self.path, self.detail = status_code, method, path, detail

    def __str__(self) -> str:
        return f"{self.method} {self.path} was answered {self.status_code}: {self.detail or 'no detail given'}"


class CrewBadRequest(CrewApiError):
    """400: the service could not accept the request (specification, section 7)."""


class CrewUnauthorized(CrewApiError):
    """401 or 403: the token is missing, wrong, or not allowed to do this (specification, section 5)."""


class CrewNotFound(CrewApiError):
    """404: the service does not know the id (specification, section 7)."""


class CrewMissingInputs(CrewApiError):
    """422: required inputs are missing (specification, section 7).

    :param names: the missing inputs; empty where the service did not name them
    :param status_code: None where they were found missing before anything was sent
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
    """422: the service has accepted another request with this idempotency key; what came of that one is not said."""


class CrewRateLimited(CrewApiError):
    """429, or an exhausted quota: the request was refused, nothing was started.

    :param retry_after: seconds to wait as the service asks for, None if it does not say or says nonsense
    """

    def __init__(self, status_code: int, method: str, path: str, detail: str, retry_after: float | None = None) -> None:
        super().__init__(status_code, method, path, detail)
        self.retry_after = retry_after
        self.args = (*self.args, retry_after)


class CrewServerError(CrewApiError):
    """5xx: the service failed. After a POST it is unknown what it did before it failed."""

    def __init__(self, status_code: int, method: str, path: str, detail: str, retry_after: float | None = None) -> None:
        super().__init__(status_code, method, path, detail)
        self.retry_after = retry_after
        self.args = (*self.args, retry_after)


class CrewConnectionError(CrewError):
    """No answer, and no harm: a request that never left, or a GET that may be asked again.

    :param permanent: True if asking again cannot help, as with a certificate that is not trusted
    :param renewable: True if it was a CA file that did not trust it, which may be replaced at this moment
    :param unreachable: True if there was no connection at all, so that another request would not arrive either
    """

    def __init__(
        self, message: str, permanent: bool = False, renewable: bool = False, unreachable: bool = False
    ) -> None:
        super().__init__(message, permanent, renewable, unreachable)
        self.permanent, self.renewable, self.unreachable = permanent, renewable, unreachable

    def __str__(self) -> str:
        return str(self.args[0])


class CrewOutcomeUnknown(CrewError):
    """A POST may have arrived, and its answer is lost or cannot be used.

    :param status_code: the HTTP status code, None if there was no answer
    """

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message, status_code)
        self.status_code = status_code

    def __str__(self) -> str:
        return str(self.args[0])


class CrewProtocolError(CrewError):
    """The service answered with something that is not an answer of this API."""


class CrewWebPage(CrewProtocolError):
    """A web page where the crew's API is expected: this is not a crew deployment."""


# After these it is certain that a POST has started nothing.
REFUSED = (
    CrewInvalidInput,
    CrewConnectionError,
    CrewBadRequest,
    CrewUnauthorized,
    CrewNotFound,
    CrewMissingInputs,
    CrewKeyReused,  # of a key of its own; of one that was sent before it settles nothing
    CrewRateLimited,
)


class CrewExecutionFailed(CrewError):
    """The execution ended as failed.

    :param kickoff_id: the id that was polled
    :param error: what the service says of the failure
    """

    def __init__(self, kickoff_id: str, error: str) -> None:
        super().__init__(kickoff_id, error)
        self.kickoff_id, self.error = kickoff_id, error

    def __str__(self) -> str:
        return f"The crew's execution {self.kickoff_id} failed: {self.error}"


class CrewTimeout(CrewError):
    """The wait reached its deadline; what became of the execution stands in the message."""
