"""Puts the parts of one service together, and starts and stops them in the right order."""

from __future__ import annotations

from .callers import Tokens
from .crews import Crew
from .desk import Desk
from .dialects import DIALECTS, Dialect
from .housekeeping import Housekeeping
from .metrics import Metrics
from .outbox import Outbox
from .runner import Runner
from .settings import Settings
from .store import Store


class Service:
    def __init__(self, settings: Settings, crew: Crew) -> None:
        self.settings = settings
        self.crew = crew
        self.dialect: Dialect = DIALECTS[settings.dialect]()
        self.tokens = Tokens(settings.token, settings.user_tokens)
        self.metrics = Metrics()
        self.store = Store(settings.database)
        self.outbox = Outbox(
            self.store, self.metrics, timeout=settings.webhook_timeout, attempts=settings.webhook_attempts
        )
        self.workers = settings.workers or DEFAULT_WORKERS[crew.isolation]
        self.runner = Runner(
            self.store,
            crew,
            workers=self.workers,
            time_limit=settings.time_limit,
            fresh_ids=self.dialect.fresh_ids,
            posted=self.outbox.posted,
        )
        self.desk = Desk(
            self.store,
            columns=self.dialect.columns,
            task_ids=frozenset() if self.dialect.fresh_ids else frozenset(task.id for task in crew.tasks),
            queue_delay=self.dialect.queue_delay,
            wake=self.runner.wake,
            cancel=self.runner.cancel,
        )
        self.housekeeping = Housekeeping(self.store, keep_days=settings.keep_days)
        self.metrics.watch(self)

    def start(self) -> None:
        self.outbox.start()
        self.runner.start()
        self.housekeeping.start()

    def stop(self) -> None:
        """Crews first, so that what they still post is stored; the database last."""
        self.runner.stop()
        self.outbox.stop()
        self.housekeeping.stop()
        self.store.close()


DEFAULT_WORKERS = {"inline": 32, "process": 4}  # scripted crews only wait; a CrewAI crew is a process each
