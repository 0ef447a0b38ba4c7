"""What a person can set when starting the service."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    token: str = field(repr=False)
    user_tokens: list[tuple[str, str]] = field(default_factory=list, repr=False)
    dialect: str = "spec"
    database: str = "crew-service.db"
    workers: int | None = None  # executions at once; by default what suits the kind of crew
    time_limit: float = 3600.0  # seconds of work, of one execution
    max_body: int = 1024 * 1024  # bytes
    body_seconds: float = 30.0  # for a request's body to arrive
    webhook_timeout: float = 10.0
    webhook_attempts: int = 6
    keep_days: float = 30.0  # how long executions that are over stay
