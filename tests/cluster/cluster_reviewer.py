"""A scripted reviewer: answers every question over Airflow's REST API, at random moments, as a person would."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Any

import requests

from scripts.stack import AirflowApi, DagRun
from scripts.stack.background import BackgroundWork
from scripts.stack.reviews import answer_body, draft_shown, is_approval, round_of
from scripts.stack.runs import WAITING

PAUSE = 1.0
LONGEST_THOUGHT = 8.0
MOST_REVISIONS = 2  # of three rounds; the last must approve


class Reviewer(BackgroundWork):
    """Reviews the given runs, each question once."""

    def __init__(self, api: AirflowApi, runs: Sequence[DagRun], seed: int) -> None:
        super().__init__()
        self.api, self.runs = api, runs
        self.answered = 0
        self._random = Random(seed)
        self._due: dict[tuple[str, str], float] = {}

    def work(self) -> None:
        while not self.over.wait(PAUSE):
            for dag_id in {run.dag_id for run in self.runs}:
                try:
                    self._review(dag_id)
                except requests.RequestException:
                    continue  # the API server is being killed now and then

    def _review(self, dag_id: str) -> None:
        """Answer what has been waiting for as long as this reviewer thinks about it."""
        path = f"dags/{dag_id}/dagRuns/~/hitlDetails"
        for detail in self.api.pages(path, "hitl_details", response_received=False):
            task = detail["task_instance"]
            if task["state"] not in WAITING:
                continue
            key = (task["dag_run_id"], task["task_id"])
            due = self._due.setdefault(key, time.monotonic() + self._random.uniform(0, LONGEST_THOUGHT))
            if time.monotonic() >= due:
                self._answer(dag_id, detail)

    def _answer(self, dag_id: str, detail: dict[str, Any]) -> None:
        task = detail["task_instance"]
        run = DagRun(self.api, dag_id, task["dag_run_id"])
        revise = round_of(task["task_id"]) <= MOST_REVISIONS and self._random.random() < 0.4
        option = next(each for each in detail["options"] if is_approval(each) != revise)
        text = f"More of {task['task_id']} for Draft {draft_shown(detail)}" if revise else ""
        answer = self.api.call("PATCH", run.answer_path(detail), json=answer_body(option, text))
        self.answered += answer.ok
