"""A scripted reviewer: answers every question over Airflow's REST API, at random moments, as a person would.

Some answers come as soon as Airflow lists the question, which may be before the task has given its slot back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import requests

from scripts.stack import AirflowApi, DagRun
from scripts.stack.background import BackgroundWork
from scripts.stack.reviews import answer_body, draft_shown, is_approval, round_of

PAUSE = 0.1
LONGEST_THOUGHT = 8.0
AT_ONCE = 0.4  # the share of the answers that come in the moment in which the question is seen
REVISE = 0.4
MOST_REVISIONS = 2  # of three rounds: the last one must approve
OPEN = ("running", "deferred", "awaiting_input", "up_for_retry", "queued", "scheduled")

Question = tuple[str, str, int]  # run, task, map index


@dataclass(frozen=True)
class Given:
    """An answer that Airflow has accepted, and the state in which its task was."""

    question: Question
    option: str
    feedback: str
    task_state: str


class Reviewer(BackgroundWork):
    """Reviews the given runs until the block ends: ``with Reviewer(api, runs, seed) as reviewer: ...``.

    :param api: for this reviewer alone, which works in a thread of its own
    """

    def __init__(self, api: AirflowApi, runs: Sequence[DagRun], seed: int) -> None:
        super().__init__()
        self.given: list[Given] = []  # as Airflow accepted them; a question that is asked again is answered again
        self.refused: Counter[str] = Counter()
        self._api, self._runs, self._random = api, runs, Random(seed)
        self._due: dict[Question, float] = {}

    def work(self) -> None:
        while not self.over.wait(PAUSE):
            for run in self._runs:
                self._review(run)

    def _review(self, run: DagRun) -> None:
        try:
            for detail in self._api.pages(f"{run.path}/hitlDetails", "hitl_details", response_received=False):
                if detail["task_instance"]["state"] in OPEN and self._is_due(question_of(detail)):
                    self._answer(run, detail)
        except requests.RequestException:
            return  # Airflow is busy or away; the question stays

    def _is_due(self, question: Question) -> bool:
        thought = 0.0 if self._random.random() < AT_ONCE else self._random.uniform(0, LONGEST_THOUGHT)
        return time.monotonic() >= self._due.setdefault(question, time.monotonic() + thought)

    def _answer(self, run: DagRun, detail: Mapping[str, Any]) -> None:
        question = question_of(detail)
        option, feedback = decision_on(detail, self._random)
        answer = self._api.call("PATCH", run.answer_path(detail), json=answer_body(option, feedback))
        if answer.ok:
            self.given.append(Given(question, option, feedback, detail["task_instance"]["state"]))
            self._due.pop(question)
        else:
            self.refused[f"{answer.status_code}"] += 1


def decision_on(detail: Mapping[str, Any], random: Random) -> tuple[str, str]:
    """Draw an answer to a draft, or to a question in the middle of a task."""
    options, number = detail["options"], round_of(detail["task_instance"]["task_id"])
    if "answer" in options:
        return "answer", f"The buyer, in round {number}"
    if "run_again" in options:
        return random.choice([("run_again", ""), ("done", f"It was paid before round {number}")])
    refuse = (number <= MOST_REVISIONS or "deny" in options) and random.random() < REVISE
    option = next(each for each in options if is_approval(each) != refuse)
    why = f"not in round {number}" if option == "deny" else f"more of {draft_shown(detail)} in round {number}"
    return option, why if refuse else ""


def question_of(detail: Mapping[str, Any]) -> Question:
    task = detail["task_instance"]
    return task["dag_run_id"], task["task_id"], task["map_index"]
