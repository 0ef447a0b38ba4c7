"""A watch and what it sees, at a fixed moment."""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.wait.watch import Watch

S = ExecutionState
T0 = 1_800_000_000.0


def watch(**more: Any) -> Watch:
    return Watch(**{"kickoff_id": "k-1", "started": T0, **more})


def seen(state: ExecutionState = S.RUNNING, **more: Any) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=str(state), **more)
