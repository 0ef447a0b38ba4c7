"""What a task that waits does in a worker: begin, hand over to the triggerer, and come back with an outcome."""

from __future__ import annotations

from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.hooks.crew import HasHook
from airflow_crew_provider.hooks.inbox import address_of, hook_with
from airflow_crew_provider.hooks.waits import ended, fail_task, fate_of_stop, net_beneath
from airflow_crew_provider.models import Execution, Json
from airflow_crew_provider.triggers import kills
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.waiting import COMPLETED, FAILED, GAVE_UP, PENDING, SEEN, TIMEOUT, Outcome, Watch


class WaitingTask(HasHook):
    """A mixin of operators and sensors. They say which watch to keep, and what an execution's end means to them."""

    cancel_on_kill: bool
    log: Any
    _ti: Any = None

    @property
    def inbox(self) -> Json | None:
        """Where webhooks of the execution are kept, once it was looked up."""
        return getattr(self.hook, "address", None)

    def open_inbox(self, context: Any, kickoff_id: str) -> None:
        """Let all looks know what the inbox is told, if the execution was started with it."""
        self.__dict__["_hook"] = hook_with(self.crew_conn_id, address_of(context, self, kickoff_id))

    def watch_again(self, context: Any) -> Watch:
        """Return the watch of this task as its arguments describe it; the deadline counts from now."""
        raise NotImplementedError

    def completed(self, context: Any, execution: Execution) -> Any:
        """Return what the task returns."""
        raise NotImplementedError

    def failed(self, watch: Watch, error: str) -> NoReturn:
        """Raise for an execution that failed."""
        raise NotImplementedError

    def timed_out(self, watch: Watch, message: str) -> NoReturn:
        """Raise for a wait that reached its deadline."""
        raise NotImplementedError

    def begin_in_triggerer(self, context: Any, watch: Watch) -> Any:
        """Look once, and leave the rest to the triggerer; what is over already needs none."""
        outcome = self.hook.look_once(watch)
        if outcome is None:
            self.go_on(watch)
        return self.end(context, watch, outcome)

    def go_on(self, watch: Watch) -> NoReturn:
        """Give the worker slot back."""
        raise TaskDeferred(
            trigger=CrewStatusTrigger.of(watch, self.crew_conn_id, self.cancel_on_kill, self.inbox),
            method_name="execute_complete",
            kwargs={"waiting": self._waiting(watch)},
            timeout=net_beneath(watch.deadline),
        )

    def _waiting(self, watch: Watch) -> Json:
        """Return what the task needs when it comes back, and by what the inbox finds it meanwhile."""
        found_by = {"kickoff_id": watch.kickoff_id, "inbox": (self.inbox or {}).get("registration")}
        return {"started": watch.started, "deadline": watch.deadline, **found_by}

    def execute_complete(self, context: Any, event: Any = None, waiting: Json | None = None) -> Any:
        """Take the trigger's event up in a worker; the result is fetched here."""
        try:
            outcome = Outcome.from_event(event)
        except CrewError as error:
            fail_task(error, "What became of the execution is not known; a retry of this task looks again")
        self.__dict__.update(_ti=context["ti"], _kickoff_id=outcome.kickoff_id)
        watch = self.watch_again(context)
        watch.kickoff_id = outcome.kickoff_id
        if waiting:
            watch.started, watch.deadline = waiting["started"], waiting["deadline"]
        if not watch.wait_past_pending:
            self.open_inbox(context, watch.kickoff_id)
        if outcome.kind == SEEN and outcome.message:
            # A webhook woke this task: the service may have more to tell by now.
            self.log.info("Execution %s: %s", watch.kickoff_id, outcome.message)
            watch.known = True
            return self.begin_in_triggerer(context, watch)
        return self.end(context, watch, outcome)

    def end(self, context: Any, watch: Watch, outcome: Outcome) -> Any:
        """Turn an outcome into the task's end, or into a further wait."""
        if outcome.kind == SEEN:
            watch.known = True
            self.go_on(watch)
        if outcome.kind == FAILED:
            self.failed(watch, outcome.message)
        if outcome.kind == TIMEOUT:
            self.timed_out(watch, outcome.message)
        if outcome.kind == GAVE_UP:
            raise AirflowException(f"{outcome.message}. A retry of this task looks at it again")
        assert outcome.kind in (COMPLETED, PENDING)
        try:
            execution = ended(self.hook, watch, outcome)
        except CrewError as error:
            fail_task(error)
        if execution is None:
            self.log.info("Execution %s goes on, somebody else answered it; waiting on", watch.kickoff_id)
            watch.known = True
            self.go_on(watch)
        return self.completed(context, execution)

    def stop_execution(self, kickoff_id: str) -> str:
        """Stop an execution, best effort; return a sentence that tells its fate."""
        try:
            return fate_of_stop(kickoff_id, self.hook.stop(kickoff_id))
        except CrewError as error:
            return fate_of_stop(kickoff_id, error)

    def stop_if_asked(self, kickoff_id: str) -> None:
        """Stop the execution of a task that is ended for good, if `cancel_on_kill` says so; log its fate anyway."""
        asked = self.cancel_on_kill and kills.is_for_good(self._ti)
        fate = self.stop_execution(kickoff_id) if asked else fate_of_stop(kickoff_id, None)
        self.log.info("The task was killed. %s", fate)
