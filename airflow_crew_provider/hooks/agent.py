"""A crew as a common-ai agent: one prompt, one execution, one answer.

The interface is `BaseManagedAgentHook` of ``apache-airflow-providers-common-ai``, which the ``common-ai`` extra
installs. Airflow retries a task after any error, so each error also shows whether a crew may have been started::

    ManagedAgentRejected         nothing was started: the service refused the prompt; the model may try another one
    our own error, unchanged     nothing was started, and a later try may succeed
    ManagedAgentInvocationError  nothing was started, and a later try would fail in the same way
    CrewAgentFailed              a crew may have been started: the task fails without further tries

For each question, the asking task records the execution that it started, so that a retry reattaches to it: the previous
try may have failed because of a different question or tool. After a clear, the task asks again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowOptionalProviderFeatureException,
    AirflowTaskTimeout,
    get_current_context,
)

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.client.deployment import FLOW
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.task_instance import task_identity
from airflow_crew_provider.exceptions import (
    REFUSED,
    CrewBadRequest,
    CrewConnectionError,
    CrewError,
    CrewExecutionFailed,
)
from airflow_crew_provider.kickoff.post_record import (
    WHAT_TO_CHECK,
    CrewPostLost,
    Earlier,
    PostRecord,
    Sender,
    SendOnce,
    fingerprint,
    unanswered,
)
from airflow_crew_provider.models import Execution, Json, Started, reported, shown
from airflow_crew_provider.stored_names import AGENT_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import Get, Poll, PollUntilOver, Steps, Stop, Worker
from airflow_crew_provider.task.store import NoRecord, record_of
from airflow_crew_provider.wait.outcomes import is_over
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FAILED,
    PENDING,
    Outcome,
    Watch,
    fate_of_stop,
    is_transient,
)

try:
    from airflow.providers.common.ai.exceptions import ManagedAgentInvocationError, ManagedAgentRejected
    from airflow.providers.common.ai.managed_agents.base import (
        BaseManagedAgentHook,
        ManagedAgentCapabilities,
        ManagedAgentRef,
        ManagedAgentRequest,
        ManagedAgentResponse,
        ManagedAgentUsage,
    )
except ImportError:

    class BaseManagedAgentHook:  # type: ignore[no-redef]
        """Stand-in for common-ai's class, which is not installed."""

        def agent(self, agent: str) -> NoReturn:
            """Raise an error that names the extra to install."""
            raise AirflowOptionalProviderFeatureException(
                f"{shown(agent)} cannot be used as an agent: install airflow-crew-provider[common-ai]"
            )

    class ManagedAgentInvocationError(RuntimeError):  # type: ignore[no-redef]
        """Stand-in for common-ai's class."""


PLATFORM = "crewai.crew"
LONGEST = 3600.0  # seconds, for a request without its own limit
POLL_INTERVAL = 2.0
SENT = "The task ended while the kickoff was in flight, so a crew may be running"


class CrewAgentFailed(ManagedAgentInvocationError, AirflowFailException):
    """A crew that was started, or may have been, returned no answer; another try would start a second execution."""


def ref(crew_conn_id: str, agent: str) -> ManagedAgentRef:
    """Return a crew's name for logs and metrics."""
    return ManagedAgentRef(PLATFORM, f"{crew_conn_id}:{agent}")


def capabilities() -> ManagedAgentCapabilities:
    """Return a crew's capabilities as an agent; it does not keep a conversation."""
    return ManagedAgentCapabilities(sessions=False, structured_output=True, usage=True, trace=True)


def response(execution: Execution) -> ManagedAgentResponse:
    """Return the answer from a completed execution."""
    tokens = [reported(execution.usage, f"{each}_tokens") for each in ("prompt", "completion")]
    sent, received = (None if each is None else int(each) for each in tokens)
    return ManagedAgentResponse(
        text=execution.output or "",
        raw=execution.raw,
        structured=execution.output_json,
        usage=None if sent is received is None else ManagedAgentUsage(sent, received),
        trace_ref=execution.kickoff_id,
    )


def prompt_of(request: ManagedAgentRequest) -> str:
    """Return the prompt in a request; refuse a request for anything that a crew cannot do."""
    request_fields = {
        "messages": request.messages,
        "session_id": request.session_id,
        "vendor_options": request.vendor_options,
    }
    refused = [name for name, value in request_fields.items() if value]
    if refused or request.prompt is None:
        problem = f"accepts only a prompt, not {', '.join(refused)}" if refused else "needs a prompt"
        raise ManagedAgentInvocationError(f"A crew {problem}. Nothing was started")
    return request.prompt


class Consultation:
    """One question to a crew, as steps: start it or reattach to an earlier try's execution, and wait.

    :param crew: the crew to ask
    :param prompt_input: the crew's input that takes the prompt; None for its only required input
    :param seconds: the time limit
    """

    def __init__(self, crew: ConnectedCrew, prompt_input: str | None, seconds: float | None) -> None:
        self._crew, self._prompt_input = crew, prompt_input
        self._seconds = LONGEST if seconds is None else seconds
        self._deadline = time.time() + self._seconds
        self._context: Any = None  # outside a task
        with suppress(Exception):
            self._context = get_current_context()

    def answer(self, prompt: str) -> Execution:
        """Return the completed execution of the crew with a prompt."""
        return Worker(self._crew, self._crew.log).drive(self._answer(prompt))

    def _answer(self, prompt: str) -> Steps[Execution]:
        question = {"connection": self._crew.crew_conn_id, "prompt": prompt, "input": self._prompt_input}
        try:
            self._record = _record_of(question, self._context)
            kickoff_id = (yield from self._started_before()) or (yield from self._start(prompt))
        except CrewError as error:
            if is_transient(error):
                raise
            raise ManagedAgentInvocationError(f"{error}. Nothing was started") from error
        try:
            return (yield from self._completed(kickoff_id))
        except CrewAgentFailed:
            raise
        except (Exception, AirflowTaskTimeout) as error:
            fate = fate_of_stop(kickoff_id, (yield Stop(kickoff_id)))
            raise CrewAgentFailed(f"{fate}: {type(error).__name__}: {error}") from error
        except BaseException:  # e.g. the worker is stopping
            self._crew.log.warning("%s", fate_of_stop(kickoff_id, (yield Stop(kickoff_id))))
            raise

    # --- what an earlier try started ---

    def _started_before(self) -> Steps[str | None]:
        """Return the execution that an earlier try started for this question, if it should be reused."""
        record = self._record
        kickoff_id = record.kickoff_id
        if kickoff_id is None:
            return None
        reply = yield Poll(kickoff_id, self._left())
        has_failed = isinstance(reply, Execution) and reply.has_failed
        if not record.newest.cleared and not has_failed:
            self._crew.log.info("An earlier try asked this question: reattaching to execution %s", kickoff_id)
            return kickoff_id
        if is_over(reply):
            record.finish()
        else:
            fate = fate_of_stop(kickoff_id, (yield Stop(kickoff_id)))
            self._crew.log.warning("The task was cleared. %s", fate)
        return None

    def _refuse_unknown(self, sender: Sender) -> None:
        """Refuse a second kickoff if the outcome of the first is unknown, unless the service recognizes its key."""
        keyed = self._crew.connection.idempotency_keys
        if self._record.earlier is Earlier.UNKNOWN and (why := self._record.why_not_again(sender, keyed=keyed)):
            message = "An earlier try sent a kickoff for this question; its outcome is unknown"
            raise CrewAgentFailed(f"{message}, and {why}. {WHAT_TO_CHECK}")

    # --- the kickoff ---

    def _start(self, prompt: str) -> Steps[str]:
        sender = Sender.of(self._crew.connection)
        self._refuse_unknown(sender)
        name = yield from self._input()
        try:
            kickoff_id = yield from self._kickoff({name: prompt}, sender)
        except CrewBadRequest as error:
            raise ManagedAgentRejected(str(error)) from error
        metrics.started(self._crew.crew_conn_id)
        self._crew.log.info("Started execution %s of the crew at connection %s", kickoff_id, self._crew.crew_conn_id)
        return kickoff_id

    def _input(self) -> Steps[str]:
        """Return the name of the input for the prompt.

        :raises ManagedAgentInvocationError: the crew has no such input, or also requires others
        """
        expected = yield Get(endpoints.inputs(), self._left())
        unless_flow = [] if self._crew.connection.kind == FLOW else expected.names
        required = unless_flow if expected.required is None else expected.required
        candidates = [self._prompt_input] if self._prompt_input else required or expected.names
        others = [each for each in required if each not in candidates[:1]]
        if len(candidates) == 1 and candidates[0] in expected.names and not others:
            return candidates[0]
        wanted = repr(self._prompt_input) if self._prompt_input else "one input"
        reported = f"requires {', '.join(required) or 'none'}"
        requires = "does not report which it requires" if expected.required is None else reported
        asks = f"the crew asks for {', '.join(expected.names) or 'none'}, and {requires}"
        message = f"An agent can pass a crew only its prompt, as {wanted}, but {asks}"
        advice = (
            "Specify the input with CrewHook(prompt_input=...), and make all other inputs optional. Nothing was started"
        )
        raise ManagedAgentInvocationError(f"{self._crew.mask(message)}. {advice}")

    def _left(self) -> float:
        """Return the seconds left for the next request; raise an error if the time limit has expired."""
        left = self._deadline - time.time()
        if left <= 0:
            over = f"The time limit of {self._seconds:.1f} s expired"
            raise CrewConnectionError(f"{over}. Nothing was sent")
        return left

    def _kickoff(self, inputs: Json, sender: Sender) -> Steps[str]:
        """Send the kickoff once and record it."""
        left, keyed = self._left(), self._crew.connection.idempotency_keys
        meta = {"airflow": task_identity(self._context)} if self._context else None

        def post(key: str | None) -> Started:
            request = Kickoff(inputs=inputs, meta=meta, idempotency_key=key)
            try:
                return self._crew.send_kickoff(request, timeout=left)
            except CrewError:
                raise
            except (Exception, AirflowTaskTimeout) as error:
                metrics.outcome_unknown(self._crew.crew_conn_id, "kickoff")
                reason = f"{SENT}: {error}" if isinstance(error, AirflowTaskTimeout) else error
                raise CrewAgentFailed(f"{reason}. {WHAT_TO_CHECK}") from error
            except BaseException:  # e.g. the worker is stopping
                metrics.outcome_unknown(self._crew.crew_conn_id, "kickoff")
                self._crew.log.warning("%s. A later try will not start another", SENT)
                raise

        try:
            started: Started = yield SendOnce(self._record, post, sender, keyed)
            return started.kickoff_id
        except CrewPostLost as lost:
            error = lost.error
        if not isinstance(error, REFUSED):
            metrics.outcome_unknown(self._crew.crew_conn_id, "kickoff")
        elif is_transient(error):  # an earlier kickoff, sent with the same key, may have been accepted
            raise error
        raise CrewAgentFailed(f"{unanswered(error)}. {WHAT_TO_CHECK}") from error

    # --- the wait ---

    def _completed(self, kickoff_id: str) -> Steps[Execution]:
        watch = Watch(kickoff_id=kickoff_id, started=time.time(), deadline=self._deadline, poll_interval=POLL_INTERVAL)
        outcome: Outcome = yield PollUntilOver(watch)
        if outcome.kind == COMPLETED:
            assert watch.progress.last
            metrics.completed(self._crew.crew_conn_id, watch.progress.last)
            return watch.progress.last
        if outcome.kind == FAILED:
            metrics.failed(self._crew.crew_conn_id, outcome.usage)
            raise CrewAgentFailed(f"{CrewExecutionFailed(kickoff_id, outcome.message)}. Clear the task to ask again")
        message = outcome.message
        if outcome.kind == PENDING:
            message = f"The crew needs a person at task {outcome.crew_task_id}; an agent cannot wait for one"
        fate = fate_of_stop(kickoff_id, (yield Stop(kickoff_id)))
        raise CrewAgentFailed(f"{message}. {fate}. Clear the task to ask again")


class _Asked:
    """The questions that the task has asked since it began: its try may run again under the same number."""

    def __init__(self) -> None:
        self._try: Json = {}
        self._numbers: Counter[str] = Counter()

    def count(self, of_try: Json, name: str) -> int:
        """Return how often the task has now asked this question; a process runs a try once."""
        if of_try != self._try:
            self._try, self._numbers = of_try, Counter()
        self._numbers[name] += 1
        return self._numbers[name]


_ASKED = _Asked()
_FINDING = threading.Lock()  # a model may ask several questions concurrently


def _record_of(question: Json, context: Any) -> PostRecord:
    """Return the record for a question; a separate one if the task asks it again while it runs."""
    name = fingerprint(question)
    if context is None:
        return PostRecord(NoRecord(), Attempt(), name)
    attempt = Attempt.of(context, context.get("task"))
    with _FINDING:
        number = _ASKED.count({**task_identity(context), **attempt.as_dict()}, name)
        record = PostRecord(record_of(context).part(f"{AGENT_STATE}__{name[:16]}_{number}", None), attempt, name)
        record.begin_try()
    return record
