"""What the tests of crashes, kills and timeouts run: one task each, against the crew that the run's params name."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, Param, Variable, task

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor

PARAMS = {
    "crew": Param("crew_default", type="string"),
    "topic": Param("tea", type="string"),
    "kickoff_id": Param("", type="string"),
    "rows": Param([], type="array"),
}
# More than one: a task that is started while the API server is away has used a try up.
RETRIES = {"retries": 3, "retry_delay": timedelta(seconds=1)}
CREW = {"crew_conn_id": "{{ params.crew }}", "poll_interval": 1}
TOPIC = {"topic": "{{ params.topic }}"}
SOON, LATER = timedelta(seconds=12), timedelta(seconds=30)

KICKOFFS: dict[str, dict[str, Any]] = {
    "in_worker": {"wait_for_completion": True},
    "in_worker_kept": {"wait_for_completion": True, "cancel_on_kill": False},
    "deferred": {"wait_for_completion": True, "deferrable": True},
    "over_budget": {"wait_for_completion": True, "max_total_tokens": 1000},
    "over_budget_deferred": {"wait_for_completion": True, "deferrable": True, "max_total_tokens": 1000},
    "deferred_kept": {"wait_for_completion": True, "deferrable": True, "cancel_on_kill": False},
    "execution_timeout": {"wait_for_completion": True, "execution_timeout": SOON},
    "execution_timeout_kept": {"wait_for_completion": True, "execution_timeout": SOON, "cancel_on_kill": False},
    "execution_timeout_deferred": {"wait_for_completion": True, "deferrable": True, "execution_timeout": LATER},
}
SENSORS: dict[str, dict[str, Any]] = {
    f"sensor_{name}{'_cancels' if cancels else ''}": {**options, "cancel_on_timeout": cancels}
    for name, options in (("poke", {}), ("reschedule", {"mode": "reschedule"}), ("deferred", {"deferrable": True}))
    for cancels in (True, False)
}


def dag(dag_id: str, **options: Any) -> DAG:
    start = pendulum.datetime(2026, 1, 1, tz="UTC")
    return DAG(dag_id, schedule=None, start_date=start, catchup=False, params=PARAMS, **options)


for name, options in KICKOFFS.items():
    with dag(name, default_args={} if "timeout" in name else RETRIES):
        CrewKickoffOperator(task_id="crew", inputs=TOPIC, **CREW, **options)

for name, options in SENSORS.items():
    with dag(name):
        CrewStatusSensor(
            task_id="wait",
            kickoff_id="{{ params.kickoff_id }}",
            crew_conn_id="{{ params.crew }}",
            poke_interval=1,
            timeout=SOON.total_seconds(),
            **options,
        )

for name in ("deferred", "deferred_kept", "in_worker", "in_worker_kept"):
    with dag(f"run_timeout_{name}", dagrun_timeout=LATER):
        CrewKickoffOperator(task_id="crew", inputs=TOPIC, **CREW, **KICKOFFS[name])

with dag("kickoff_then_wait"):
    kickoff = CrewKickoffOperator(task_id="crew", inputs=TOPIC, crew_conn_id=CREW["crew_conn_id"])
    CrewStatusSensor(
        task_id="wait",
        kickoff_id=kickoff.output,
        crew_conn_id=CREW["crew_conn_id"],
        poke_interval=1,
        deferrable=True,
    )

with dag("many_waits", max_active_tasks=64):

    @task
    def rows(params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        return (params or {})["rows"]

    CrewKickoffOperator.partial(
        task_id="crew", crew_conn_id=CREW["crew_conn_id"], poll_interval=4, wait_for_completion=True, deferrable=True
    ).expand_kwargs(rows())


class TalkingCrew(CrewHook):
    """Talks to its supervisor nearly all the time, so that a kill comes in the middle of a request."""

    _crew_conn_id = ""

    @property
    def crew_conn_id(self) -> str:  # type: ignore[override]
        """Each poll names the connection."""
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends:
            Variable.get("nothing", None)
        return self._crew_conn_id

    @crew_conn_id.setter
    def crew_conn_id(self, given: str) -> None:
        self._crew_conn_id = given


class TalkingKickoff(CrewKickoffOperator):
    """A kickoff whose polls talk to the supervisor."""

    hook_class = TalkingCrew


with dag("talking", default_args=RETRIES):
    TalkingKickoff(task_id="crew", inputs=TOPIC, wait_for_completion=True, **{**CREW, "poll_interval": 0.05})
