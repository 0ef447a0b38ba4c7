"""A triggerer that serves its triggers twice a second, and logs three chunks of other lines with each cancellation.

Python imports this in each of Airflow's processes at its start; it changes the triggerer's.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def make_slow_and_loud(module: ModuleType) -> None:
    supervisor, runner = module.TriggerRunnerSupervisor, module.TriggerRunner
    load_triggers, cancel_triggers = supervisor.load_triggers, runner.cancel_triggers

    def load_slowly(self: Any) -> None:
        time.sleep(0.5)
        load_triggers(self)

    async def cancel_loudly(self: Any) -> None:
        for _ in range(20 if self.to_cancel else 0):
            self.log.info("A line of another trigger, " + 500 * "x")
            Path(os.environ["CREW_TEST_LAGS"], "logged").touch()  # noqa: ASYNC240  the delay is intended
        await cancel_triggers(self)

    supervisor.load_triggers, runner.cancel_triggers = load_slowly, cancel_loudly


class Changed:
    """Finds the triggerer's module, once."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != "airflow.jobs.triggerer_job_runner":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec: Any = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_changed(module: ModuleType) -> None:
            load(module)
            make_slow_and_loud(module)

        spec.loader.exec_module = load_changed
        return spec


if "triggerer" in sys.orig_argv:
    sys.meta_path.insert(0, Changed())
