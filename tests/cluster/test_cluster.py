"""Airflow's distributed engine and three crew services while everything dies: `make cluster-test`.

CREW_CLUSTER_SIZE and CREW_CLUSTER_SEED choose the number of runs and what is drawn.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random, SystemRandom

import pytest
from cluster_reviewer import Reviewer
from kills import KINDS, Killer
from topology import CLOCKS, FAKETIME, Cluster, cluster_running
from verdict import NAIVE, REVIEWED, Verdict, executions, judge, judge_naive

from scripts.stack import DagRun, StackTimeout, wait_until
from scripts.stack.runs import FINISHED
from scripts.stack.waiting import FACTOR

SIZE = int(os.environ.get("CREW_CLUSTER_SIZE", "40"))
SEED = int(os.environ.get("CREW_CLUSTER_SEED") or SystemRandom().randrange(1_000_000))
SHORT = SIZE <= 40
SHORTEST = SIZE <= 10  # without the Flow: each of three services would import CrewAI for it
KILLS = (3 if SHORTEST else len(KINDS)) if SHORT else None  # None: for as long as it lasts
SHARES = {
    "cluster_plain": 0.5,
    "cluster_failing": 0.27,
    "cluster_gated": 0.12,
    "cluster_flow": 0.0 if SHORTEST else 0.06,
    "cluster_mapped": 0.05,
}
NAIVE_SHARE = 0.1
STUCK_AFTER = 300.0 * FACTOR  # seconds after the last kill
BOUND = (240.0 if SHORT else 1080.0) * FACTOR
HEAD = "| | runs | lost | doubled | wrong draft | stuck | p50 | p95 |\n|---|---|---|---|---|---|---|---|"


@pytest.mark.cluster
@pytest.mark.timeout(BOUND + STUCK_AFTER + 300)
def test_a_cluster_in_which_everything_dies_loses_and_doubles_nothing(tmp_path: Path) -> None:
    clocks = ", ".join(f"{days:+} d" for days in CLOCKS) if FAKETIME else "all the same, for want of libfaketime"
    say(f"\ncluster: {SIZE} runs, SEED={SEED}, clocks of the crew services: {clocks}")
    with cluster_running(tmp_path, has_flow=SHARES["cluster_flow"] > 0) as cluster:
        began = time.monotonic()
        runs, naive = start_runs(cluster)
        reviewed = [run for run in runs if run.dag_id in REVIEWED]
        with (
            Killer(cluster, SEED, kinds=KILLS) as killer,
            Reviewer(cluster.airflow.api, reviewed, SEED) as reviewer,
        ):
            wait_while_killing([*runs, *naive.values()], killer, BOUND - (time.monotonic() - began))
            killer.stop_killing()
            wait_until(cluster.is_alive, "a start of what was killed last")
            cluster.airflow.wait_healthy()
            stuck = wait_for_the_rest([*runs, *naive.values()], STUCK_AFTER)
        stored = executions(cluster.crew_database)
        ours, theirs = judge(runs, stored, stuck), judge_naive(naive, stored, stuck)
        report(killer, reviewer, ours, theirs)
    assert killer.killed_what_it_had_to
    assert (ours.lost, ours.doubled, ours.wrong_draft, ours.stuck, ours.orphans) == ([], [], [], [], [])


def start_runs(cluster: Cluster) -> tuple[list[DagRun], dict[str, DagRun]]:
    """Start all runs, shuffled; return those of the provider, and those of the naive loop by topic."""
    plan = [dag_id for dag_id, share in SHARES.items() for _ in range(round(SIZE * share))]
    naive = [NAIVE] * max(1, round(SIZE * NAIVE_SHARE))
    topics = [f"{SEED}-{number}" for number in range(len(plan) + len(naive))]
    order = [*plan, *naive]
    Random(SEED).shuffle(order)
    started = {
        topic: cluster.airflow.api.trigger(dag_id, {"topic": topic})
        for topic, dag_id in zip(topics, order, strict=True)
    }
    ours = [run for run in started.values() if run.dag_id != NAIVE]
    return ours, {topic: run for topic, run in started.items() if run.dag_id == NAIVE}


def unfinished(runs: list[DagRun]) -> list[DagRun]:
    """List the runs that are not over, with one request for each DAG; an API server that is away tells nothing."""
    over: set[str] = set()
    for dag_id in {run.dag_id for run in runs}:
        for state in FINISHED:
            pages = runs[0].api.pages(f"dags/{dag_id}/dagRuns", "dag_runs", state=state)
            over |= {each["dag_run_id"] for each in pages}
    return [run for run in runs if run.run_id not in over]


def wait_while_killing(runs: list[DagRun], killer: Killer, seconds: float) -> None:
    def over() -> bool:
        return (not SHORT or killer.killed_what_it_had_to) and not _unfinished_or_all(runs)

    try:
        wait_until(over, "the end of all runs", patience=seconds, pause=3)
    except StackTimeout:
        say("the time for kills is over; what is left goes on undisturbed")


def wait_for_the_rest(runs: list[DagRun], seconds: float) -> set[str]:
    """Return the ids of the runs that are not over this long after the last kill."""
    try:
        wait_until(lambda: not _unfinished_or_all(runs), "the end of all runs", patience=seconds, pause=3)
    except StackTimeout:
        return {run.run_id for run in unfinished(runs)}
    return set()


def _unfinished_or_all(runs: list[DagRun]) -> list[DagRun]:
    try:
        return unfinished(runs)
    except OSError:  # every error of requests is one
        return runs


def report(killer: Killer, reviewer: Reviewer, ours: Verdict, theirs: Verdict) -> None:
    say(HEAD)
    say(f"| airflow-crew-provider | {ours.row} |")
    say(f"| a loop in a PythonOperator | {theirs.row} |")
    say("\n| killed | times |\n|---|---|")
    for kind, times in sorted(killer.kills.items()):
        say(f"| {kind} | {times} |")
    say(f"\n{reviewer.answered} answers of the reviewer; started again: {dict(killer.revived)}")
    for name in ("lost", "doubled", "wrong_draft", "stuck", "orphans"):
        for problem in getattr(ours, name):
            say(f"{name}: {problem}")


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - `make cluster-test` shows it
