"""What the executions of a task have used since its last clear, which each try that ends by itself pushes.

Airflow deletes a task's XComs when it is tried again, so the executions of tries that failed are on record. A killed
try pushes nothing; the next one finds its execution through the record of its kickoff.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_crew_provider.api.budget import judged
from airflow_crew_provider.models import ExecutionState, Json
from airflow_crew_provider.stored_names import EXECUTIONS, USAGE_KEY, USAGE_STATE
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.store import Stored, TaskStateUnavailable

log = logging.getLogger(__name__)

MOST = 100  # executions of a task; of more, the newest


class UsedByTask:
    """The executions of a task, an entry for each: ``execution_id``, ``kickoff_id``, ``state`` and ``usage``.

    :param stored: the record of the task instance
    :param attempt: the present try
    """

    def __init__(self, stored: Stored, ti: Any, attempt: Attempt) -> None:
        self._ti, self._attempt = ti, attempt
        self._store = stored.part(USAGE_STATE, (EXECUTIONS, *attempt.as_dict()))
        self._seen: list[Json] = []  # by this process
        self._continued: set[str] = set()

    def see(self, state: ExecutionState, kickoff_id: str, execution_id: str, usage: Json | None) -> None:
        """Note an execution's state; of one that continues others, the usage of all of them."""
        used = judged(usage) or None
        before = next((each for each in self._seen if each["execution_id"] == execution_id), {})
        entry: Json = {"execution_id": execution_id, "kickoff_id": kickoff_id, "state": str(state)}
        entry["usage"] = before.get("usage") if used is None else used
        self._seen = [each for each in self._seen if each is not before] + [entry]

    def replaces(self, continued: str) -> None:
        """Note that the execution of this task continues an earlier one, whose usage it includes.

        :param continued: the earlier execution's id
        """
        self._continued.add(continued)
        self._seen = [each for each in self._seen if continued not in (each["execution_id"], each["kickoff_id"])]
        try:
            self._store.change(self._merged(), _warn)
        except TaskStateUnavailable as problem:
            _warn(problem)

    def end(self, *, may_be_retried: bool) -> None:
        """Push the executions, and store them for the next try; a problem is logged, because the task has ended."""
        executions = self._seen
        try:
            merged = self._merged()
            executions = merged[EXECUTIONS]
            if may_be_retried and executions:
                self._store.keep(merged)
        except TaskStateUnavailable as problem:
            _warn(problem)
        if not executions:
            return
        try:
            self._ti.xcom_push(key=USAGE_KEY, value={EXECUTIONS: executions})
        except Exception as problem:
            log.warning("The usage of this task was not pushed: %s", problem)

    def _merged(self) -> Json:
        newer = {each["execution_id"] for each in self._seen} | self._continued
        earlier = [each for each in self._recall() if newer.isdisjoint((each["execution_id"], each["kickoff_id"]))]
        return {**self._attempt.as_dict(), EXECUTIONS: [*earlier, *self._seen][-MOST:]}

    def _recall(self) -> list[Json]:
        stored = self._store.recall()
        executions = stored.get(EXECUTIONS)
        if not isinstance(executions, list) or self._attempt.relation_to(stored) in (
            Relation.CLEAR,
            Relation.OTHER_RUN,
        ):
            return []
        return [each for each in executions if isinstance(each, dict) and {"execution_id", "kickoff_id"} <= each.keys()]


def _warn(problem: TaskStateUnavailable) -> None:
    log.warning("The XCom %s of this or a later try may lack executions: %s", USAGE_KEY, problem)
