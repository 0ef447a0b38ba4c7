"""One machine of several: the service as a process, with a crew that writes down what it does.

`python machine.py PORT DATABASE JOURNAL`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from crew_service import logs
from crew_service.engine.crew import Completed, Job, PendingReview, Progress, Report, TaskDone, TaskStarted
from crew_service.engine.paths import ROOT
from crew_service.http.server import server
from crew_service.http.starting import bind
from crew_service.scripted_crew import ScriptedCrew
from crew_service.settings import Settings

TOKEN = "a-token-of-20-letters"
WORKERS = 8
GATES = ("draft_task", "final_task")
SCENARIO = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "seconds": 1.0, "output": "Notes on {topic}"},
        {"id": "draft_task", "seconds": 0.5, "human_input": True, "output": "Draft on {topic}"},
        {"id": "edit_task", "seconds": 1.0, "output": "Edited: {topic}"},
        {"id": "final_task", "seconds": 0.5, "human_input": True, "output": "Final: {topic}"},
        {"id": "publish_task", "seconds": 0.5, "output": "All on {topic}"},
    ],
}


class Journalled(ScriptedCrew):
    """Appends a line when a task starts, and one when its end is stored."""

    def __init__(self, journal: Path) -> None:
        super().__init__(SCENARIO)
        self._file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        def note(progress: Progress) -> None:
            if isinstance(progress, TaskStarted):
                self._write("start", job.execution_id, progress.task_id)
            report(progress)
            if isinstance(progress, TaskDone):
                self._write("done", job.execution_id, progress.task["task_id"])

        return super().run(job, note)

    def _write(self, *words: str) -> None:
        os.write(self._file, (" ".join(words) + "\n").encode())


def main() -> None:
    port, database, journal = sys.argv[1:]
    settings = Settings(token=TOKEN, database=database, workers=WORKERS)
    with bind("127.0.0.1", int(port)) as listener:
        logs.configure()
        server(settings, {ROOT: Journalled(Path(journal))}).run(sockets=[listener])


if __name__ == "__main__":
    main()
