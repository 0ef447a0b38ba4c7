"""The settings of one service."""

from __future__ import annotations

from dataclasses import dataclass, field

from crew_service.prices import Prices


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
    max_body: int = 1024 * 1024  # bytes
    header_seconds: float = 10.0  # for a request's headers to arrive
    max_connections: int | None = None  # open at once; by default, as many as the limit on open files allows
    body_seconds: float = 30.0  # for a request's body to arrive
    oldest_release: str | None = None  # the last migration of the oldest release that may run these crews
    delivers: bool = True  # whether this process sends webhooks, or only runs crews
    webhook_timeout: float = 10.0
    flow_webhook: str | None = None  # where Flows' questions are announced
    flow_webhook_secret: str = field(default="", repr=False)
    base_url: str = ""  # public base URL of this service, for the receivers of these webhooks
    webhook_attempts: int = 20  # with growing pauses, about eight hours in total
    webhook_secret: str | None = field(default=None, repr=False)  # signs webhooks, if set
    keep_days: float = 30.0  # how long finished executions are kept
    keep_memory_days: float | None = None  # how long crews remember; None for ever
