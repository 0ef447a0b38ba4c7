"""The settings of one service."""

from __future__ import annotations

from dataclasses import dataclass, field

from crew_service.prices import Prices


@dataclass(frozen=True)
class Settings:
    token: str = field(repr=False)
    user_tokens: list[tuple[str, str]] = field(default_factory=list, repr=False)
    crew_tokens: list[tuple[str, str | None, str]] = field(default_factory=list, repr=False)  # crew, user, token
    title: str = ""  # what a crew at the root is called on its page
    dialect: str = "spec"
    database: str = "crew-service.db"
    workers: int | None = None  # executions at once; the default depends on the kind of crew
    time_limit: float = 3600.0  # seconds of work, of one execution
    max_tokens: int | None = None  # of a language model, that one execution may use
    prices: Prices = field(default_factory=Prices)  # of models; without any, nothing is said of costs
    max_body: int = 1024 * 1024  # bytes
    header_seconds: float = 10.0  # for a request's headers to arrive
    max_connections: int | None = None  # at once; by default what the limit on open files leaves
    body_seconds: float = 30.0  # for a request's body to arrive
    delivers: bool = True  # whether this process sends webhooks, or only runs crews
    webhook_timeout: float = 10.0
    flow_webhook: str | None = None  # where the questions of Flows are announced
    flow_webhook_secret: str = field(default="", repr=False)
    base_url: str = ""  # of this service, as the receiver of such a webhook reaches it
    webhook_attempts: int = 20  # with growing pauses: over some eight hours
    webhook_secret: str | None = field(default=None, repr=False)  # signs webhooks, where it is given
    keep_days: float = 30.0  # how long finished executions are kept
