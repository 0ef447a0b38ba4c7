"""What became of every run, from the crew services' database against Airflow's."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import quantiles
from typing import Any

import sqlalchemy

from crew_service.storage.states import State
from scripts.stack import DagRun
from scripts.stack.reviews import draft_shown, is_approval, round_of

EXPECTED = {"cluster_failing": "failed"}
PLAIN = "cluster_plain"
REVIEWED = ("cluster_gated", "cluster_flow")
NAIVE = "cluster_naive"
COLUMNS = "id, state, inputs, meta, output, created_at, ended_at"  # times by the database's clock


@dataclass
class Verdict:
    """Counts of what must not happen, each with the runs in which it did."""

    runs: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong_draft: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # from completion to the start of the task downstream

    @property
    def row(self) -> str:
        """Return the figures as cells of a table."""
        figures = (self.runs, *(len(each) for each in (self.lost, self.doubled, self.wrong_draft, self.stuck)))
        return " | ".join(str(each) for each in (*figures, *self._latency()))

    def _latency(self) -> tuple[str, str]:
        if len(self.seconds) < 2:
            return "-", "-"
        cuts = quantiles(self.seconds, n=20)
        return f"{cuts[9]:.1f} s", f"{cuts[18]:.1f} s"


def executions(url: str) -> list[dict[str, Any]]:
    """Return every execution that any of the services has stored."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(sqlalchemy.text(f"SELECT {COLUMNS} FROM executions"))
        found = [dict(row._mapping) for row in rows]
    engine.dispose()
    return [{**each, "inputs": _json(each["inputs"]), "meta": _json(each["meta"]) or {}} for each in found]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def judge(runs: list[DagRun], stored: list[dict[str, Any]], stuck: set[str]) -> Verdict:
    """Judge the runs of the provider: an execution is known by the task instance in its ``meta``."""
    verdict = Verdict(len(runs))
    by_run = defaultdict(list)
    for each in stored:
        by_run[each["meta"].get("airflow", {}).get("run_id")].append(each)
    for run in runs:
        if run.run_id in stuck:
            verdict.stuck.append(f"{run.dag_id} {run.run_id}: {run.states()}")
        else:
            _judge_run(run, by_run[run.run_id], verdict)
    return verdict


def _judge_run(run: DagRun, mine: list[dict[str, Any]], verdict: Verdict) -> None:
    starts = defaultdict(list)
    for each in mine:
        starts[each["meta"]["airflow"]["task_id"], each["meta"]["airflow"]["map_index"]].append(each)
    verdict.doubled += [f"{run.run_id} {task}: {_told(each)}" for task, each in starts.items() if _is_doubled(each)]
    verdict.orphans += [each["id"] for each in mine if each["ended_at"] is None]
    if run.state != EXPECTED.get(run.dag_id, "success"):
        verdict.lost.append(f"{run.dag_id} {run.run_id}: {run.failure_report()}")
    elif run.dag_id == PLAIN:
        verdict.seconds.append(_downstream_start(run) - mine[0]["ended_at"])
    elif run.dag_id in REVIEWED:
        verdict.wrong_draft += _wrong_answers(run, mine[0])


def _is_doubled(started: list[dict[str, Any]]) -> bool:
    """Return whether a task started one before its last one had failed; only then, a retry starts another."""
    in_order = sorted(started, key=lambda each: each["created_at"])
    return any(
        one["state"] != State.FAILED or one["ended_at"] > other["created_at"] for one, other in pairwise(in_order)
    )


def _told(started: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['id']} {each['state']} {each['created_at']}-{each['ended_at']}" for each in started)


def _downstream_start(run: DagRun) -> float:
    return datetime.fromisoformat(run.task("note")["start_date"]).timestamp()


def _wrong_answers(run: DagRun, execution: dict[str, Any]) -> list[str]:
    """Compare the answers that Airflow took with what the crew made of them."""
    details = sorted(_answered(run), key=lambda detail: round_of(detail["task_instance"]["task_id"]))
    revisions = [detail for detail in details if not is_approval(detail["chosen_options"][0])]
    problems = [
        f"{run.run_id}: round {number} showed draft {draft_shown(detail)}"
        for number, detail in enumerate(details, start=1)
        if draft_shown(detail) != number
    ]
    found = re.match(r"Draft (\d+) on ", execution["output"] or "")
    if not found or int(found.group(1)) != len(revisions) + 1:
        problems.append(f"{run.run_id}: {len(revisions)} revisions made {execution['output']!r}")
    if revisions and revisions[-1]["params_input"]["human_feedback"] not in (execution["output"] or ""):
        problems.append(f"{run.run_id}: the last feedback is not in {execution['output']!r}")
    return problems


def _answered(run: DagRun) -> list[dict[str, Any]]:
    details = run.api.pages(f"{run.path}/hitlDetails", "hitl_details")
    return [each for each in details if each["response_received"] and each["task_instance"]["state"] == "success"]


def judge_naive(runs: dict[str, DagRun], stored: list[dict[str, Any]], stuck: set[str]) -> Verdict:
    """Judge the loop of a PythonOperator; its executions are known by their topic alone."""
    verdict = Verdict(len(runs))
    starts = Counter(each["inputs"]["topic"] for each in stored)
    for topic, run in runs.items():
        if run.run_id in stuck:
            verdict.stuck.append(topic)
        elif run.state != "success":
            verdict.lost.append(topic)
        if starts[topic] > 1:
            verdict.doubled.append(f"{topic}: {starts[topic]} times")
    return verdict
