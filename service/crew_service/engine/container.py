"""Assembles the parts of one process, and starts and stops them in the right order."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Protocol

from crew_service import addresses, tracing
from crew_service.budgets import REFUSE
from crew_service.engine import paths
from crew_service.engine.background import Background
from crew_service.engine.browser_sessions import BrowserSessions
from crew_service.engine.budgets import Budgets, hold
from crew_service.engine.continuing import unusable
from crew_service.engine.crew import Cancellation, Crew
from crew_service.engine.dead_letters import DeadLetters
from crew_service.engine.executions import Executions
from crew_service.engine.files import Files
from crew_service.engine.flow_answers import FlowAnswers
from crew_service.engine.flow_webhook import FlowWebhook, FlowWebhooks
from crew_service.engine.health import Health
from crew_service.engine.jobs import Quota, connections, is_done
from crew_service.engine.ledger import Ledger
from crew_service.engine.limits import Limits
from crew_service.engine.membership import Membership, keep_out_earlier
from crew_service.engine.metrics import Metrics, Pool
from crew_service.engine.outbox import Outbox
from crew_service.engine.principals import Principal, Tokens
from crew_service.engine.printed_writer import PrintedWriter
from crew_service.engine.retention import Retention
from crew_service.engine.runner import Runner, stop_all
from crew_service.engine.segments import Segment
from crew_service.engine.usage_report import UsageReport
from crew_service.settings import Settings
from crew_service.storage import counts, queries
from crew_service.storage.database import Database
from crew_service.storage.states import State

log = logging.getLogger(__name__)

JUDGED = 30.0  # seconds between looks at what budgets hold
EXPIRY = 1.0  # seconds between looks for questions whose deadline has passed

DEFAULT_WORKERS = {"inline": 32, "process": 4}  # scripted crews only wait; a CrewAI crew needs a process per execution


class Dialect(Protocol):
    """The part of a dialect that the engine uses."""

    fresh_ids: ClassVar[bool]
    columns: ClassVar[tuple[str, ...]]
    queue_delay: ClassVar[float]


class Process:
    """State shared by the crews in one process."""

    def __init__(self, settings: Settings, crews: Mapping[str, Crew], dialect: Dialect) -> None:
        self.settings = settings
        self.metrics = Metrics(crews, settings.prices)
        self.stopping = Cancellation()
        self.database = Database(settings.database, serve=True, connections=connections(settings))
        if settings.oldest_release:
            keep_out_earlier(self.database, settings.oldest_release)
        self.ledger = Ledger(self.database, settings.prices, keep_seconds=settings.keep_days * 86400)
        self.budgets = Budgets(
            settings.budgets,
            self.ledger,
            refuses_unknown=settings.on_unknown_price == REFUSE,
            stops=settings.budget_stops,
        )
        self.files = Files(self.database, settings.file_limits)
        self.flow_webhook = _flow_webhook(settings)
        self.retention = Retention(
            self.database,
            keep_days=settings.keep_days,
            forget_memory=self._forget_memory if settings.keep_memory_days else None,
        )
        self.printed = PrintedWriter(self.database, settings)
        self.quota = Quota(settings.max_executions)
        self.membership = Membership(self.database, on_loss=self._cancel_all)
        self.outbox = Outbox(
            self.database,
            self.membership,
            self.metrics,
            timeout=settings.webhook_timeout,
            attempts=settings.webhook_attempts,
            secret=settings.webhook_secret,
            flow_webhook=self.flow_webhook,
        )
        self.flow_webhooks = (
            FlowWebhooks(self.database, self.flow_webhook, self.outbox.posted) if self.flow_webhook else None
        )
        self.posted = self.outbox.posted if settings.delivers else _nothing
        self.crews = {name: Container(self, name, crew, dialect) for name, crew in crews.items()}
        self.deadlines = Background("deadlines", self._expire, pause=EXPIRY)
        self.holds = Background("holds", self._judge_held, pause=JUDGED)
        self.health = Health(self.membership.probe, self._loops())
        self.metrics.watch(
            self.database,
            {name: Pool(crew.workers, crew.runner.running) for name, crew in self.crews.items()},
            self.budgets,
        )

    def start(self) -> None:
        tracing.start()
        self.membership.start()
        self._warn_of_unserved()
        self.ledger.start()
        if self.settings.delivers:
            self.outbox.start()
            if self.flow_webhooks:
                self.flow_webhooks.start()
        self.printed.start()
        if self.settings.works:
            for crew in self.crews.values():
                crew.runner.start()
        self.deadlines.start()
        self.holds.start()
        self.retention.start()

    def is_done(self, idle_exit: float | None) -> bool:
        """Return whether this process has run what it may, or has found nothing to run for ``idle_exit`` seconds."""
        return is_done(self.quota, idle_exit, [crew.runner for crew in self.crews.values()])

    @property
    def off(self) -> list[str]:
        return list(dict.fromkeys(what for crew in self.crews.values() for what in crew.crew.off))

    def unready(self) -> str | None:
        """Return why this process should not receive requests: a problem or a shutdown; None if it should."""
        return "The service is stopping." if self.stopping.is_set() else self.health.problem()

    def stop(self) -> None:
        """Stop the crews first, so that their last webhooks are stored, and close the database last."""
        self.stopping.set("the service is stopping")
        stop_all([crew.runner for crew in self.crews.values()])
        self.deadlines.stop()
        self.holds.stop()
        self.ledger.stop()
        self.printed.stop()
        if self.settings.delivers:
            if self.flow_webhooks:
                self.flow_webhooks.stop()
            self.outbox.stop()
        self.retention.stop()
        self.membership.stop()
        self.database.close()
        tracing.stop()

    def _warn_of_unserved(self) -> None:
        """Log how many executions wait for crews that this process does not have: a crew may have been renamed."""
        with self.database.reading() as connection:
            stored = counts.stored(connection)
        for crew in sorted({crew for crew, _ in stored} - self.crews.keys()):
            if number := sum(stored.get((crew, state), 0) for state in (State.QUEUED, State.WAITING)):
                which = f"the crew {crew}" if crew else "a crew without a name"
                log.warning(
                    "%d executions are queued or wait for a person, but belong to %s, which this process does not "
                    "have; they stay as they are until a process serves it, or `airflow-crew-service stop` ends them",
                    number,
                    which,
                )

    def _expire(self) -> None:
        """Answer what nobody has answered in time."""
        with self.database.reading() as connection:
            overdue = queries.overdue(connection, self.crews, now=self.database.now())
        for row in overdue:
            self.crews[row.crew].executions.expire(row)

    def _judge_held(self) -> None:
        """Judge again what a budget holds, in case the budgets or the clock have changed since."""
        now = self.database.now()
        with self.database.writing() as connection:
            for name in self.crews:
                hold(connection, name, self.budgets.barred(connection, name, now=now))
        for crew in self.crews.values():
            crew.runner.wake()

    def _forget_memory(self) -> None:
        assert self.settings.keep_memory_days
        before = time.time() - self.settings.keep_memory_days * 86400
        for crew in self.crews.values():
            crew.crew.forget_memory(before, self.stopping)

    def _cancel_all(self) -> None:
        for crew in self.crews.values():
            crew.runner.cancel_all("the execution is running elsewhere")

    def _loops(self) -> list[Background]:
        flow_webhooks = [self.flow_webhooks.loop] if self.flow_webhooks else []
        shared = [self.membership.loop, self.outbox.loop, self.printed.loop, self.deadlines, self.retention.loop]
        budgets = [self.ledger.loop, self.holds]
        runners = [crew.runner.loop for crew in self.crews.values()] if self.settings.works else []
        return [*shared, *budgets, *flow_webhooks, *runners]


def _flow_webhook(settings: Settings) -> FlowWebhook | None:
    if not settings.flow_webhook:
        return None
    return FlowWebhook(addresses.parsed(settings.flow_webhook), settings.flow_webhook_secret, settings.base_url)


class Container:
    """One crew in the process."""

    def __init__(self, process: Process, name: str, crew: Crew, dialect: Dialect) -> None:
        settings = process.settings
        self.process = process
        self.name = name
        self.title = name or settings.title or "Crew"
        self.settings = settings
        self.crew = crew
        self.database = process.database
        self.metrics = process.metrics
        self.files = process.files
        self.url = f"{settings.base_url}{paths.of_crew(name)}"
        self.tokens = _tokens(settings, name)
        self.browser_sessions = BrowserSessions(self.database, self.tokens, name)
        self.limits = Limits(settings.time_limit, settings.max_tokens)
        self.workers = settings.workers or DEFAULT_WORKERS[crew.isolation]
        segment = partial(
            Segment,
            self.database,
            limits=self.limits,
            fresh_ids=dialect.fresh_ids,
            posted=process.posted,
            spent=partial(process.metrics.spent, name),
            printed=process.printed,
            stored_files=process.files,
            ledger=process.ledger,
        )
        self.runner = Runner(
            self.database,
            process.membership,
            name,
            crew,
            workers=self.workers,
            segment=segment,
            quota=process.quota,
            budgets=process.budgets,
            ledger=process.ledger,
        )
        self.dead_letters = DeadLetters(self.database, crew=name, posted=process.outbox.posted)
        self.executions = Executions(
            self.database,
            crew=name,
            columns=dialect.columns,
            task_ids=frozenset() if dialect.fresh_ids else frozenset(task.id for task in crew.tasks),
            queue_delay=dialect.queue_delay,
            budgets=process.budgets,
            wake=self.runner.wake,
            cancel=self.runner.cancel,
            unusable=partial(unusable, crew),
            edit_problem=partial(crew.edit_problem, stopping=process.stopping),
            limits=self.limits,
            ledger=process.ledger,
            spent=partial(process.metrics.spent, name),
        )
        self.usage = UsageReport(self.database, process.budgets, name)
        self.flow_answers = FlowAnswers(self.database, self.executions, process.flow_webhook)

    def owner(self, caller: Principal) -> str:
        """Identify a token's holder within this crew if the token is the crew's own, otherwise across all crews."""
        return f"{self.name if caller.has_crew_token else ''} {caller.key}"

    def figures(self, caller: Principal) -> bytes:
        """Return the metrics for an organization token: this crew's if the token is the crew's own, otherwise all."""
        return self.metrics.text(self.name if caller.has_crew_token else None)


def _tokens(settings: Settings, name: str) -> Tokens:
    """Return a crew's tokens: its own replace the common ones, but there is always an organization token."""
    own = [(Principal(user, True), token) for crew, user, token in settings.crew_tokens if crew == name]
    has_organization = any(holder.user is None for holder, _ in own)
    common = [] if has_organization else [(Principal(), settings.token)]
    users = own or [(Principal(user), token) for user, token in settings.user_tokens]
    return Tokens([*common, *users])


def _nothing() -> None:
    """Do nothing, because this process sends no webhooks."""
