"""The trigger that waits without a worker slot. It only polls; it never starts, resumes or repeats anything.

Its class path and arguments are stored in Airflow's database, so arguments may be added with a default, but must never
be renamed or removed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from functools import partial
from inspect import signature
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_crew_provider.api.budget import Budget
from airflow_crew_provider.compat import deferral
from airflow_crew_provider.compat.supervisor import KILLS_CALL_ON_KILL
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox.source import InboxSource
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import TRIGGER_CLASS_PATH
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.narrator import Narrator, Progress
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import GAVE_UP, Outcome, Watch, fate_of_stop

# Maximum seconds over which waits that resume together spread their first polls. It matters to a few hundred of them: a
# triggerer starts about a hundred waits per second, which spreads the polls of thousands by itself.
SPREAD = 10.0


class CrewStatusTrigger(BaseTrigger):
    """Wait until an execution is completed, pending or failed, then fire one event.

    :param kickoff_id: the id to poll
    :param crew_conn_id: the connection; the token stays in it
    :param poll_interval: the minimum pause between polls, in seconds
    :param started: when the wait began, in epoch seconds; kept across triggerer restarts
    :param deadline: when the wait ends, in epoch seconds; None for no deadline
    :param wait_past_pending: whether to treat an execution that is waiting for a person as in progress
    :param known: whether the service has already shown this id
    :param exponential_backoff: double the pause after each poll instead of adapting it
    :param max_wait: the maximum pause with `exponential_backoff`, in seconds
    :param cancel_on_kill: whether to stop the execution when a user ends the waiting task
    :param inbox: where this execution's webhooks are stored, if they go to the inbox
    :param not_before: the earliest time of the first poll and of an event, in epoch seconds; None for no such time
    :param report_seen: whether to also fire when the id becomes known, so that the wait remembers it after a restart
    :param max_total_tokens: fire once the execution has used more tokens; None for no limit
    :param max_cost: fire once the execution has cost more, in USD; None for no limit
    :param ended: the number of finished tasks already logged; None to log none
    :param ends_at_unknown: with `wait_past_pending`, whether to fire when a person is asked about a tool call whose
        outcome is unknown
    """

    def __init__(
        self,
        kickoff_id: str,
        crew_conn_id: str = CrewHook.default_conn_name,
        poll_interval: float = 10.0,
        started: float | None = None,
        deadline: float | None = None,
        wait_past_pending: bool = False,
        known: bool = False,
        exponential_backoff: bool = False,
        max_wait: float | None = None,
        cancel_on_kill: bool = False,
        inbox: Json | None = None,
        not_before: float | None = None,
        report_seen: bool = False,
        max_total_tokens: int | None = None,
        max_cost: float | None = None,
        ended: int | None = 0,
        ends_at_unknown: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kickoff_id = kickoff_id
        self.crew_conn_id = crew_conn_id
        self.poll_interval = poll_interval
        self.started = time.time() if started is None else started
        self.deadline = deadline
        self.wait_past_pending = wait_past_pending
        self.known = known
        self.exponential_backoff = exponential_backoff
        self.max_wait = max_wait
        self.cancel_on_kill = cancel_on_kill
        self.inbox = inbox
        self.not_before = not_before
        self.report_seen = report_seen
        self.max_total_tokens = max_total_tokens
        self.max_cost = max_cost
        self.ended = ended
        self.ends_at_unknown = ends_at_unknown
        self._hook = CrewHook(crew_conn_id)
        self._source = InboxSource(self._hook, inbox)
        self._poller = Poller(self._hook, self._source)
        self._held = False
        self._handling: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, watch: Watch, crew_conn_id: str, cancel_on_kill: bool, inbox: Json | None = None) -> CrewStatusTrigger:
        """Return a trigger that continues a worker's watch."""
        now = time.time()
        asked = watch.asked_pause if watch.deadline is None else min(watch.asked_pause, watch.deadline - now)
        return cls(
            **{name: getattr(watch, name) for name in WATCHED if name != "report_seen"},
            known=watch.progress.known,
            ended=watch.narrator.ended,
            **watch.budget.limits,
            crew_conn_id=crew_conn_id,
            cancel_on_kill=cancel_on_kill,
            inbox=inbox,
            # Regardless of the interval, because no trigger could notice a webhook that arrived before the deferral.
            not_before=now + max(deferral.NOTICED_AFTER, asked),
            report_seen=True,
        )

    def watch(self) -> Watch:
        """Return the watch that the arguments describe."""
        return Watch(
            **{name: getattr(self, name) for name in WATCHED},
            budget=Budget(self.max_total_tokens, self.max_cost),
            progress=Progress(known=self.known),
            narrator=Narrator(self.ended),
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments; omit those that 0.2.0 did not store if they have their defaults."""
        arguments = {name: getattr(self, name) for name in ARGUMENTS}
        return TRIGGER_CLASS_PATH, {n: value for n, value in arguments.items() if NOT_STORED.get(n, ...) != value}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then fire an event with the outcome; an error is an outcome, too."""
        try:
            outcome = await self._outcome()
            await asyncio.sleep(self._until_noticed())
            yield TriggerEvent(outcome.to_event())
        except asyncio.CancelledError:
            if not KILLS_CALL_ON_KILL:  # so a user's action may be the reason
                await outcomes.to_its_end(self._stop_if_killed(without_task=False))
            raise

    async def on_kill(self) -> None:
        """Stop the execution, if requested, when a user ends the waiting task (Airflow 3.3 and newer)."""
        # One time limit from here on, although `cleanup` may have to wait for the rest.
        self._handling = asyncio.ensure_future(outcomes.to_its_end(self._stop_if_killed(without_task=True)))
        await outcomes.to_its_end(self._handling)

    async def cleanup(self) -> None:
        """Release the shared session; do not stop the execution here, because Airflow calls this on every exit.

        On Python 3.11, Airflow may call this while `on_kill` is running, and closes the task's log afterwards.
        """
        if self._handling:
            await outcomes.to_its_end(self._handling)
        if self._held:
            self._held = False
            await self._hook.release()

    async def _outcome(self) -> Outcome:
        try:
            watch = self.watch()
            outcome = await self._hold(watch)
            if outcome is None:
                await asyncio.sleep(self._until_first_poll())
                outcome = await self._poller.await_outcome(watch)
            return outcome
        except CrewError as error:
            return self._gave_up(str(error))
        except Exception as error:
            self.log.exception("The wait for execution %s ended with an error", self.kickoff_id)
            return self._gave_up(f"{type(error).__name__}: {error}")
        finally:
            await self.cleanup()  # `dag.test()` does not call it

    async def _hold(self, watch: Watch) -> Outcome | None:
        """Look up the connection; treat a temporary failure like a failed poll."""
        while True:
            try:
                await self._hook.hold()
            except CrewConnectionError as error:
                outcome = watch.failed(error, now=time.time())
                self.log.warning("Execution %s cannot be polled: %s", self.kickoff_id, error)
            else:
                self._held = True
                return None
            if outcome is not None:
                return outcome
            await asyncio.sleep(watch.pause(now=time.time()))

    def _until_noticed(self) -> float:
        """Return the seconds in which Airflow may still fail the task if it resumes, even if it has timed out."""
        return max(0.0, (self.not_before or 0.0) - time.time())

    def _until_first_poll(self) -> float:
        now = time.time()
        if self.not_before is None:
            return 0.0
        # A late resume means a restart: all other waits resume too, and they must not all poll at the same moment.
        spread = min(self.poll_interval, SPREAD) * random.random()  # noqa: S311
        first = self.not_before if self.not_before > now else now + spread
        return max(0.0, min(first, self.deadline or first) - now)

    def _gave_up(self, problem: str) -> Outcome:
        fate = f"Execution {self.kickoff_id} is not affected and may still be active"
        return Outcome(GAVE_UP, self.kickoff_id, f"{problem}. {fate}")

    async def _stop_if_killed(self, *, without_task: bool) -> None:
        # If the inbox ended this wait, the task may have succeeded without a user's action.
        was_woken = partial(self._source.was_asked, self.kickoff_id)
        if await outcomes.is_by_user(self, without_task=without_task, was_woken=was_woken):
            fate = fate_of_stop(self.kickoff_id, await self._stop() if self.cancel_on_kill else None)
            self.log.info("A user ended the task. %s", fate)
            await outcomes.until_log_is_read(self)

    async def _stop(self) -> bool | CrewError:
        """Stop the execution through the current connection or, if the lookup fails, through the last known one."""
        hook = CrewHook(self.crew_conn_id)
        try:
            await hook.hold()
        except CrewError:
            hook = self._hook
        try:
            return await hook.astop(self.kickoff_id)
        except CrewError as error:
            return error
        finally:
            if hook is not self._hook:
                await hook.release()


NOT_STORED: Json = {
    "max_total_tokens": None,
    "max_cost": None,
    "ended": 0,
    "ends_at_unknown": False,
}  # arguments that are not stored if they have these values
ARGUMENTS = tuple(signature(CrewStatusTrigger).parameters)
WATCHED = tuple(
    name for name in ARGUMENTS if name in signature(Watch).parameters
)  # arguments that describe the wait itself
