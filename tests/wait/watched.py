"""A watch and what it sees, at a fixed moment."""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.wait.narrator import Narrator, Progress
from airflow_crew_provider.wait.watch import Watch

S = ExecutionState
T0 = 1_800_000_000.0


def watch(*, ended: int | None = 0, known: bool = False, last: Execution | None = None, **more: Any) -> Watch:
    progress = Progress(known=known, last=last)
    return Watch(**{"kickoff_id": "k-1", "started": T0, **more}, progress=progress, narrator=Narrator(ended))


def seen(state: ExecutionState = S.RUNNING, **more: Any) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=str(state), **more)
