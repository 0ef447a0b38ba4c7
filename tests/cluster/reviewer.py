"""A scripted reviewer: answers every question over Airflow's REST API, at random moments, as a person would."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import requests

from scripts.stack import AirflowApi, DagRun

PAUSE = 1.0
LONGEST_THOUGHT = 8.0
WAITING = ("deferred", "awaiting_input")
MOST_REVISIONS = 2  # of three rounds; the last must approve


@dataclass
class Reviewer:
    """Reviews the runs that it is given, each question once, until it is told to stop."""

    api: AirflowApi
    runs: Sequence[DagRun]
    seed: int
    answered: int = 0
    _due: dict[tuple[str, str], float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Reviewer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _work(self) -> None:
        while not self._over.wait(PAUSE):
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
        text = f"More of {task['task_id']} for {shown_draft(detail)}" if revise else ""
        answer = self.api.call("PATCH", run.answer_path(detail), json=_body(option, text))
        self.answered += answer.ok


def _body(option: str, feedback: str) -> dict[str, Any]:
    return {"chosen_options": [option], "params_input": {"human_feedback": feedback}}


def is_approval(option: str) -> bool:
    return option in ("approve", "publish")


def round_of(task_id: str) -> int:
    """Return the number in ``crew.round_2.review``."""
    found = re.search(r"round_(\d+)", task_id)
    return int(found.group(1)) if found else 1


def shown_draft(detail: dict[str, Any]) -> str:
    """Return which draft a form shows, e.g. ``Draft 2``."""
    found = re.search(r"Draft \d+", detail["body"])
    return found.group(0) if found else "no draft"
