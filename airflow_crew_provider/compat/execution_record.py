"""Which executions the tasks of a DAG run have asked a deployment about: the Crew tab shows these and no others.

Whoever may write XComs of a DAG could name any execution, and any connection, in the XCom by which a task announces its
execution. The task state store of Airflow 3.3 can be written with the rights to edit a task, and may be emptied when a
task succeeds. So the record is a Variable on every version that has the tab. Its name holds all that it says, which
makes a look-up one statement without decryption. It stays until its DAG run is deleted (`inbox.store.sweep`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from typing import Any

from airflow.providers.common.compat.sdk import Variable

from airflow_crew_provider.compat.task_state import found_or_none, task_identity
from airflow_crew_provider.compat.version import has_human_in_the_loop
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import EXECUTION_RECORD_KEY

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExecutionRecord:
    """An execution, and what it is polled by, of one DAG run."""

    dag_id: str
    run_id: str
    crew_conn_id: str
    execution_id: str
    kickoff_id: str

    @classmethod
    def of(cls, dag_id: str, run_id: str, about: Json) -> ExecutionRecord:
        """Return the record that confirms what an XCom says."""
        ids = (str(about.get(name) or "") for name in ("crew_conn_id", "execution_id", "kickoff_id"))
        return cls(dag_id, run_id, *ids)

    @property
    def key(self) -> str:
        """The name of its Variable."""
        digest = hashlib.sha256(json.dumps(list(asdict(self).values())).encode()).hexdigest()
        return EXECUTION_RECORD_KEY + digest[:40]


def record_execution(context: Any, about: Json) -> None:
    """Record what a task has asked about; where that fails, the tab shows less and the task goes on."""
    if not has_human_in_the_loop():
        return
    try:
        task = task_identity(context)
        record = ExecutionRecord.of(task["dag_id"], task["run_id"], about)
        if found_or_none(lambda: Variable.get(record.key)) is None:
            said = f"Lets the Crew tab of {record.run_id} of {record.dag_id} show an execution; removed with the run"
            Variable.set(record.key, json.dumps(asdict(record)), description=said)
    except Exception as error:
        log.warning("The Crew tab will not show execution %s: %s", about.get("execution_id"), error)
