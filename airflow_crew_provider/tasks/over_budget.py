"""An execution that has passed its budget: recorded first, then stopped by a worker; then the task fails for good.

A retry that finds the record, or an ended execution whose usage is over the budget, fails alike and starts nothing.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn

from airflow_crew_provider.core.budget import Budget
from airflow_crew_provider.core.polling import Watch
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.tasks.earlier_execution import is_over
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed, fate_of_stop
from airflow_crew_provider.tasks.post_record import PostRecord

RECORDED = "over_budget"
WHAT_NOW = "A retry would fail alike; raise the limit, or make the crew use less, and clear the kickoff to start again"


def fail_over_budget(hook: CrewHook, kickoff_id: str, passed: str, log: Any) -> NoReturn:
    """Stop an execution that has passed its budget, and fail for good.

    :param passed: which limits it has passed, with the figures
    """
    raise CrewTaskFailed(f"Execution {kickoff_id} {passed}. {_stop(hook, kickoff_id, log)}. {WHAT_NOW}")


def refuse_retry(hook: CrewHook, record: PostRecord, budget: Budget, log: Any) -> None:
    """Fail where an earlier try has found its execution over the budget, or could have."""
    if record.cleared or not record.kickoff_id:
        return
    passed = record.record.get(RECORDED) or _passed_at_its_end(hook, record.kickoff_id, budget)
    if passed:
        fail_over_budget(hook, record.kickoff_id, passed, log)


def _passed_at_its_end(hook: CrewHook, kickoff_id: str, budget: Budget) -> str:
    reply = hook.poll(kickoff_id) if budget.limits else None
    failed = isinstance(reply, Execution) and reply.state is ExecutionState.ERROR
    return budget.passed_by(reply.usage) if isinstance(reply, Execution) and failed else ""


def _stop(hook: CrewHook, kickoff_id: str, log: Any) -> str:
    """Stop it, as patiently as a wait polls, since no other try will; return a sentence on its fate."""
    watch = Watch(kickoff_id=kickoff_id, started=time.time(), poll_interval=1.0)
    while True:
        try:
            if hook.stop(kickoff_id):
                return fate_of_stop(kickoff_id, True)
            return _not_stopped(hook.poll(kickoff_id), kickoff_id)
        except CrewError as error:
            problem = error
        if watch.failed(problem, now=time.time()) is not None:
            return fate_of_stop(kickoff_id, problem)
        log.warning("Execution %s could not be stopped yet: %s", kickoff_id, problem)
        time.sleep(watch.pause(now=time.time()))


def _not_stopped(reply: Execution | CrewError, kickoff_id: str) -> str:
    if is_over(reply):
        return f"Execution {kickoff_id} has ended"
    if isinstance(reply, Execution):
        return f"Execution {kickoff_id} could not be stopped: the service does not do it, so it runs on there"
    return fate_of_stop(kickoff_id, False)
