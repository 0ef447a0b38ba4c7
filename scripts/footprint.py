"""Count the code that a reader meets: the package's functions that one kickoff, poll, review and resume enter.

Run with Python 3.12 or newer: ``python -m scripts.footprint``. The operators, the trigger, the client and the crew
service are real; Airflow's supervisor and its Variables are stand-ins. A function counts once, with all its lines,
whether it runs in a worker or in the triggerer. Imports and class bodies do not count.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType
from typing import Any
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "airflow_crew_provider"
CREW = {
    "inputs": ["topic"],
    "tasks": [{"id": "write", "agent": "Writer", "seconds": 1, "human_input": True, "output": "On {topic}."}],
}


class Entered:
    """The functions of the package that were entered."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()

    @contextmanager
    def counting(self) -> Iterator[None]:
        monitoring = sys.monitoring
        tool = monitoring.PROFILER_ID
        monitoring.use_tool_id(tool, "footprint")
        monitoring.register_callback(tool, monitoring.events.PY_START, self._start)
        monitoring.set_events(tool, monitoring.events.PY_START)
        monitoring.restart_events()
        try:
            yield
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

    def _start(self, code: CodeType, offset: int) -> Any:
        is_function = not code.co_name.startswith("<") and code.co_flags & 0x2  # CO_NEWLOCALS: neither module nor class
        if is_function and "<locals>" not in code.co_qualname and Path(code.co_filename).is_relative_to(PACKAGE):
            self.functions.add(code)
        return sys.monitoring.DISABLE

    def row(self) -> tuple[int, int, int]:
        """Return the number of files, of functions, and of their lines."""
        return len({each.co_filename for each in self.functions}), len(self.functions), sum(map(_lines, self.functions))


def _lines(code: CodeType) -> int:
    last = max(line for _, _, line in code.co_lines() if line)
    nested = [each for each in code.co_consts if isinstance(each, CodeType)]
    return max([last, *(each.co_firstlineno + _lines(each) - 1 for each in nested)]) - code.co_firstlineno + 1


def _steps(count: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Start an execution, wait for its question, answer it, and send the answer."""
    from airflow.sdk.exceptions import TaskDeferred
    from airflow_stand_ins import parked
    from simulated_airflow import TaskRun, fire, fresh

    from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
    from airflow_crew_provider.operators.review import CrewReviewOperator
    from airflow_crew_provider.sensors.crew import CrewStatusSensor

    started = CrewKickoffOperator(task_id="kickoff", inputs={"topic": "tea"})
    kickoff_id = count("kickoff", lambda: started.execute(TaskRun("kickoff").context()))

    wait = CrewStatusSensor(task_id="wait", kickoff_id=kickoff_id, poke_interval=1, deferrable=True)
    waiting = TaskRun("wait").context()
    with pytest.raises(TaskDeferred) as deferral:
        wait.execute(waiting)
    deferred = deferral.value
    event = count("poll", lambda: fire(deferred.trigger))
    pending = fresh(wait).resume_execution(deferred.method_name, {**(deferred.kwargs or {}), "event": event}, waiting)

    answer = {
        **{"chosen_options": ["approve"], "params_input": {"human_feedback": ""}, "responded_at": datetime.now(UTC)},
        **{"responded_by_user": {"id": "7", "name": "Ann"}, "timedout": False},
    }

    asked, asking = CrewReviewOperator(task_id="review", pending=pending), TaskRun("review").context()
    asking["ti"].id = uuid4()

    def ask_and_judge() -> Any:
        parked(lambda: fresh(asked).execute(asking))
        return fresh(asked).execute_complete(asking, answer)

    review = count("review", ask_and_judge)
    answered = CrewResumeOperator(task_id="resume", review=review)
    count("resume", lambda: answered.execute(TaskRun("resume").context()))


def main() -> None:
    """Print a row for each step."""
    if sys.version_info < (3, 12):
        raise SystemExit("Python 3.12 or newer is required: sys.monitoring")
    sys.path.insert(0, str(ROOT / "tests"))
    sys.path.insert(0, str(ROOT / "tests" / "review"))
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="crew-footprint-")
    from airflow.sdk.execution_time import task_runner
    from airflow_stand_ins import Supervisor
    from faults.variables import stand_in_for_variables

    from scripts.stack import CrewService

    with pytest.MonkeyPatch.context() as patch, CrewService(CREW) as service:
        stand_in_for_variables(patch)
        patch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)
        connection = {"conn_type": "crew", "host": service.url, "password": service.token}
        patch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(connection))
        rows: dict[str, tuple[int, int, int]] = {}

        def counted(name: str, step: Callable[[], Any]) -> Any:
            entered = Entered()
            with entered.counting():
                result = step()
            rows[name] = entered.row()
            return result

        _steps(counted)
    print(f"{'':10}{'files':>8}{'functions':>11}{'lines':>8}")
    for name, row in rows.items():
        print(f"{name:10}{row[0]:8}{row[1]:11}{row[2]:8}")


if __name__ == "__main__":
    main()
