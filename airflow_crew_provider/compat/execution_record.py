"""The executions that a DAG run's tasks have polled: the Crew tab shows only these.

Anybody who may write a DAG's XComs could name any execution, and any connection, in the XCom in which a task announces
its execution. Anybody who may edit a task can write to Airflow 3.3's task state store, which may also be emptied when
the task succeeds. So the record is a Variable on every version that has the tab. Its name is a hash of its content,
so a lookup takes one statement and no decryption. It remains until its DAG run is deleted (`inbox.store.sweep`).

A run may poll another DAG's execution if its connection's token gives access to it. So the record for a kickoff, which
got the id from the service, differs from the record for a task that was given the id.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import Any

from airflow_crew_provider.compat import variables
from airflow_crew_provider.compat.task_instance import task_identity
from airflow_crew_provider.compat.version import has_human_in_the_loop
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import EXECUTION_RECORD_KEY, hashed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExecutionRecord:
    """An execution that a DAG run's task has started or polled, and the id to poll it with.

    :param is_own: whether a kickoff in this run returned the id; other executions may belong to another DAG
    """

    dag_id: str
    run_id: str
    crew_conn_id: str
    execution_id: str
    kickoff_id: str
    is_own: bool = False

    @classmethod
    def of(cls, dag_id: str, run_id: str, about: Json, *, is_own: bool = False) -> ExecutionRecord:
        """Return the record that confirms an XCom."""
        texts = (str(about.get(name) or "") for name in ("crew_conn_id", "execution_id", "kickoff_id"))
        crew_conn_id, execution_id, kickoff_id = texts
        return cls(dag_id, run_id, crew_conn_id, execution_id, kickoff_id, is_own)

    @property
    def key(self) -> str:
        """The name of its Variable."""
        *named, is_own = asdict(self).values()
        # Unchanged since releases in which a run's own executions did not have separate records.
        parts = [*named, is_own] if is_own else named
        return EXECUTION_RECORD_KEY + hashed(*parts)


def record_execution(context: Any, about: Json, *, is_own: bool = False) -> None:
    """Record what a task started or polls; if that fails, the tab shows less and the task continues."""
    if not has_human_in_the_loop():
        return
    try:
        task = task_identity(context)
        record = ExecutionRecord.of(task["dag_id"], task["run_id"], about, is_own=is_own)
        if variables.read(record.key) is None:
            description = (
                f"Lets the Crew tab of {record.run_id} of {record.dag_id} show an execution; removed with the run"
            )
            variables.write(record.key, json.dumps(asdict(record)), description)
    except Exception as error:
        log.warning("The Crew tab will not show execution %s: %s", about.get("execution_id"), error)
