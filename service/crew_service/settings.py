"""The settings of one service."""

from __future__ import annotations

from dataclasses import dataclass, field

from crew_service.budgets import REFUSE, Budget
from crew_service.prices import Prices


@dataclass(frozen=True)
class FileLimits:
    """Maximum sizes in bytes: of a file, of an execution's files, and of all files in the database."""

    of_file: int = 25 * 1024 * 1024
    of_execution: int = 100 * 1024 * 1024
    of_all: int | None = None


@dataclass(frozen=True)
class Settings:
    token: str = field(repr=False)
    user_tokens: list[tuple[str, str]] = field(default_factory=list, repr=False)
    crew_tokens: list[tuple[str, str | None, str]] = field(default_factory=list, repr=False)  # crew, user, token
    title: str = ""  # name that the page shows for a crew at the root
    dialect: str = "spec"
    database: str = "crew-service.db"
    workers: int | None = None  # concurrent executions; the default depends on the kind of crew
    time_limit: float = 3600.0  # seconds of run time per execution
    max_tokens: int | None = None  # model tokens per execution
    prices: Prices = field(default_factory=Prices)  # prices of models; without any, costs are not reported
    budgets: tuple[Budget, ...] = ()  # what may be used in an hour, a day or a month
    budget_stops: bool = False  # whether a budget that is used up also ends what is running
    on_unknown_price: str = REFUSE  # whether budgets in USD refuse or allow usage without a price
    max_body: int = 1024 * 1024  # bytes
    allow_file_urls: bool = False  # whether the service fetches files from public addresses for its callers
    file_limits: FileLimits = field(default_factory=FileLimits)
    header_seconds: float = 10.0  # for a request's headers to arrive
    max_connections: int | None = None  # open at once; by default, as many as the limit on open files allows
    unbounded_connections: bool = False  # serve even if connections cannot be limited
    body_seconds: float = 30.0  # for a request's body to arrive
    oldest_release: str | None = None  # the last migration of the oldest release that may run these crews
    works: bool = True  # whether this process runs crews, or only answers requests
    max_executions: int | None = None  # segments that this process may take
    delivers: bool = True  # whether this process sends webhooks, or only runs crews
    webhook_timeout: float = 10.0
    flow_webhook: str | None = None  # where Flows' questions are announced
    flow_webhook_secret: str = field(default="", repr=False)
    base_url: str = ""  # public base URL of this service, for the receivers of these webhooks
    webhook_attempts: int = 20  # with growing pauses, about eight hours in total
    webhook_secret: str | None = field(default=None, repr=False)  # signs webhooks, if set
    keep_days: float = 30.0  # how long finished executions are kept
    keep_memory_days: float | None = None  # how long crews remember; None for ever
