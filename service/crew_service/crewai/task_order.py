"""Finished tasks are reported in the order of the crew, so that what is stored is always its beginning.

CrewAI goes on from the first task without an output; one that finished early beside it is run again then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from crewai import Task
from crewai.tasks.conditional_task import ConditionalTask

from crew_service.crewai.task_outputs import restored, stored
from crew_service.engine.crew import CrewFailed, Progress, TaskDone
from crew_service.engine.crew import TaskOutput as StoredOutput


class TaskOrder:
    def __init__(self, tasks: dict[str, Task], done: list[StoredOutput], report: Callable[[Progress], None]) -> None:
        known = [output["task_id"] for output in done]
        if known != list(tasks)[: len(known)]:
            raise CrewFailed(
                "The crew has changed: this execution has finished "
                f"{', '.join(known)}; the crew begins with {', '.join(list(tasks)[: len(known)])}."
            )
        self._tasks = tasks
        self._missing = list(tasks)[len(known) :]
        self._early: dict[str, StoredOutput] = {}
        self._report = report
        self._lock = threading.Lock()
        for output in done:
            task = tasks[output["task_id"]]
            task.output = restored(task, output)

    def add(self, output: StoredOutput) -> None:
        with self._lock:
            self._early[output["task_id"]] = output
            while self._missing and self._missing[0] in self._early:
                self._report(TaskDone(self._early.pop(self._missing.pop(0))))

    def pass_over(self, until: str | None = None) -> None:
        """Finish the conditional tasks before `until` (or all) that have no output: CrewAI has skipped them."""
        for task_id, task in self._tasks.items():
            if task_id == until:
                return
            if isinstance(task, ConditionalTask) and task.output is None:
                task.output = task.get_skipped_task_output()
                self.add(stored(task_id, task.output, 0.0))
