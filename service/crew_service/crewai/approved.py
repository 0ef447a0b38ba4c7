"""Does what CrewAI does after a task's answer, once a person has approved the answer."""

from __future__ import annotations

from collections.abc import Iterable

from crewai import Crew, Task, TaskOutput

from crew_service.crewai.callbacks import Callback, call
from crew_service.crewai.internals import task_ends
from crew_service.crewai.task_outputs import save


def finish(
    task: Task, output: TaskOutput, crew: Crew | None, callbacks: Iterable[Callback], output_file: str | None
) -> None:
    task_ends.remember(task, output, crew)
    for callback in callbacks:
        call(callback, output)
    save(task, output, output_file)
    task_ends.tell_listeners(task, output)
