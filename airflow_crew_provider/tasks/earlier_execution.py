"""What became of the execution of an earlier try: whether it is over, and if not, whether it can be stopped."""

from __future__ import annotations

import time

from airflow_crew_provider.core.polling import GRACE_FOR_UNKNOWN_ID
from airflow_crew_provider.exceptions import CrewError, CrewNotFound
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.tasks.outcomes import fate_of_stop

OVER = (ExecutionState.COMPLETED, ExecutionState.ERROR)
BETWEEN_TWO_POLLS = 1.0  # seconds


def end_of(hook: CrewHook, kickoff_id: str, since: float, *, stop: bool) -> tuple[bool, str]:
    """Return whether an earlier execution is over, and a sentence on its fate.

    :param since: when it was started, in epoch seconds
    :param stop: whether to stop it if it is not over
    """
    reply = hook.poll(kickoff_id)
    over = is_over(reply) or _is_forgotten(hook, kickoff_id, reply, since)
    if over or not stop:
        return over, f"The earlier execution {kickoff_id} is {_state(reply)}"
    try:
        stopped = hook.stop(kickoff_id)
    except CrewError as error:
        return False, fate_of_stop(kickoff_id, error)
    return stopped or is_over(hook.poll(kickoff_id)), fate_of_stop(kickoff_id, stopped)


def is_over(reply: Execution | CrewError) -> bool:
    """Whether an execution can do nothing any more; a live deployment's "not found" may wait for a person."""
    return isinstance(reply, Execution) and reply.state in OVER


def _is_forgotten(hook: CrewHook, kickoff_id: str, reply: Execution | CrewError, since: float) -> bool:
    """Whether the service says twice that it does not know an id that is old enough to be known."""
    if not isinstance(reply, CrewNotFound) or time.time() - since < GRACE_FOR_UNKNOWN_ID:
        return False
    time.sleep(BETWEEN_TWO_POLLS)
    return isinstance(hook.poll(kickoff_id), CrewNotFound)


def _state(reply: Execution | CrewError) -> str:
    if isinstance(reply, Execution):
        return str(reply.state)
    return "not known to the service" if isinstance(reply, CrewNotFound) else f"in an unknown state ({reply})"
