"""Three rounds in a Task Loop, while workers, triggerers and schedulers are lost at each step of the second one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chaos import own_api
from faults.proxy import KICKOFF, OTHER, POLL, RESUME, Fault, FaultProxy, Forward
from faults.wire import Reply
from held import HeldAnswer, kill_worker_of

from airflow_crew_provider.stored_names import REVIEW_KEY
from crew_service.engine.crew import Completed, Job, PendingReview, Progress, Report, TaskStarted
from crew_service.local import LocalService, running_service
from crew_service.scripted_crew import ScriptedCrew
from scripts.stack import AirflowStack, DagRun, wait_until
from tests.system.reviews.test_loop import (
    CREW,
    DECIDED,
    EDITED,
    REASON,
    asked,
    audited,
    comparable,
    decided_at_the_service,
    in_rounds,
    three_rounds,
)

pytestmark = [pytest.mark.since_airflow("3.4"), pytest.mark.row("A28")]
SECOND = 1  # the index of its iteration
RECORDED = [("review", REVIEW_KEY), *((name, "return_value") for name in ("review", "resume", "wait"))]
WORKER, MACHINE = "a worker", "the machine of workers, scheduler and triggerer"


class PausedCrew(ScriptedCrew):
    """Begins no task of its own while the test keeps it from that."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        super().__init__(scenario)
        self.may_begin = threading.Event()
        self.may_begin.set()

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        def reported(progress: Progress) -> None:
            report(progress)
            while isinstance(progress, TaskStarted) and not self.may_begin.wait(0.1):
                job.cancelled.raise_if_set()

        return super().run(job, reported)


class HeldOf(HeldAnswer):
    """Holds the answer to a task that is running, and to nobody else."""

    def __init__(self, is_running: Callable[[], bool]) -> None:
        super().__init__()
        self._is_running = is_running

    def __call__(self, forward: Forward, random: Random) -> Reply:
        return super().__call__(forward, random) if self._is_running() else forward()


class Rounds:
    """A run of three rounds whose crew is behind a proxy."""

    def __init__(self, airflow: AirflowStack, proxy: FaultProxy, lost: str) -> None:
        self.airflow, self.proxy, self.lost = airflow, proxy, lost
        self.run = airflow.api.trigger("rounds_lost")
        self._seen = DagRun(own_api(airflow), self.run.dag_id, self.run.run_id)  # by the proxy's threads

    def second(self, name: str, run: DagRun | None = None) -> dict[str, Any] | None:
        """Return the task instance of the second iteration, once there is one."""
        found = (task for task in (run or self.run).tasks() if task["task_id"] == f"crew.round.{name}")
        return next((task for task in found if task["region_index"] == SECOND), None)

    def is_in(self, state: str, name: str, run: DagRun | None = None) -> bool:
        return (self.second(name, run) or {}).get("state") == state

    def wait_for(self, state: str, name: str) -> None:
        def reached() -> bool:
            assert self.run.state in ("queued", "running"), self.run.failure_report()
            return self.is_in(state, name)

        wait_until(reached, f"the second {name} to be {state}")

    @contextmanager
    def lost_at(self, name: str, call: str) -> Iterator[None]:
        """Kill what runs the second task of that name, in the middle of the call to which the block leads."""
        held = HeldOf(lambda: self.is_in("running", name, self._seen))
        self.proxy.faults = (Fault("A28", "answer held back", call, held),)
        try:
            yield
            wait_until(held.taken.is_set, f"a call of the second {name}")
            assert self.is_in("running", name)
            self._lose(name)
        finally:
            self.proxy.faults = ()
            held.release.set()

    def _lose(self, name: str) -> None:
        if self.lost == WORKER:
            kill_worker_of(self.airflow, self.second(name) or {})
        else:
            self.restart("scheduler", "triggerer")

    def restart(self, *components: str) -> None:
        """Kill components at the same time, the scheduler with all workers, and start them again."""
        for component in components:
            self.airflow.kill(component)
        for component in components:
            self.airflow.start(component)
        self.airflow.wait_healthy()

    def tries(self) -> dict[str, int]:
        """Return how often each task of the second iteration was tried."""
        found = {name: self.second(name) for name in ("review", "resume", "wait", "until_completed")}
        return {name: task["try_number"] for name, task in found.items() if task}


@pytest.fixture
def crew() -> PausedCrew:
    return PausedCrew(CREW)


@pytest.fixture
def service(crew: PausedCrew, tmp_path: Path) -> Iterator[LocalService]:
    with running_service(crew=crew, db=tmp_path / "crew.db") as service:
        yield service


@pytest.fixture
def proxy(airflow: AirflowStack, service: LocalService) -> Iterator[FaultProxy]:
    with FaultProxy(service.url, seed=0, rate=1.0, faults=()) as proxy:
        airflow.api.add_connection("crew_lost_rounds", conn_type="crew", host=proxy.url, password=service.token)
        yield proxy


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lost", [WORKER, MACHINE])
def test_three_rounds_end_once_and_correctly_despite_lost_steps(
    airflow: AirflowStack,
    crew: PausedCrew,
    service: LocalService,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost: str,
) -> None:
    calm = three_rounds(airflow, "rounds_lost")
    before = Counter(proxy.forwarded)
    rounds = Rounds(airflow, proxy, lost)
    _lose_each_step(rounds, crew)
    run = rounds.run

    assert {call: proxy.forwarded[call] - before[call] for call in (KICKOFF, RESUME)} == {KICKOFF: 1, RESUME: 3}
    assert decided_at_the_service(service, run) == DECIDED
    assert in_rounds(run, "until_completed", REASON) == ["round 1: revise", "round 2: approve", "round 3: approve"]
    for name, key in RECORDED:
        found = in_rounds(run, name, key)
        assert len(found) == len(DECIDED), (name, key)
        assert comparable(found, run) == comparable(in_rounds(calm, name, key), calm), (name, key)
    assert comparable(run.xcom("crew.result"), run) == comparable(calm.xcom("crew.result"), calm)
    lines = _told(audited(airflow, run, monkeypatch, capsys))
    assert len(lines) == len(DECIDED)
    assert lines == _told(audited(airflow, calm, monkeypatch, capsys))
    assert rounds.tries() == {"review": 3, "resume": 2, "wait": 2, "until_completed": 2}


def _lose_each_step(rounds: Rounds, crew: PausedCrew) -> None:
    run = rounds.run
    first = asked(run, "Draft 1 on tea")
    with rounds.lost_at("review", OTHER):  # when Airflow has the question
        run.answer(first, "revise", human_feedback="Shorter.")
    rounds.wait_for("deferred", "review")  # for a look at what was answered since
    rounds.restart("triggerer")
    second = asked(run, "Draft 2 on tea, after: Shorter.")
    rounds.restart("scheduler")
    rounds.restart("triggerer")
    crew.may_begin.clear()
    with rounds.lost_at("review", OTHER):  # when the decision is written down
        run.answer(second, "approve", human_feedback="", edited_draft=EDITED)
    rounds.wait_for("deferred", "review")  # for the answer to the attempt before
    rounds.restart("triggerer")
    with rounds.lost_at("resume", RESUME):  # when the service has the answer
        pass
    with rounds.lost_at("wait", POLL):
        pass
    rounds.wait_for("deferred", "wait")
    rounds.restart("triggerer")
    rounds.restart("scheduler")
    with rounds.lost_at("until_completed", OTHER):
        crew.may_begin.set()
    rounds.wait_for("success", "until_completed")
    rounds.restart("scheduler")
    run.answer(asked(run, "Draft 1 on tea"), "approve", human_feedback="")
    rounds.restart("scheduler")
    run.wait_for("success")


def _told(lines: list[dict[str, Any]]) -> list[Any]:
    """Return what the audit says of each round, without what differs between two runs."""
    names = ("region_index", "round", "is_approve", "human_feedback", "output", "edited_output", "taken")
    return sorted([line.get(name) for name in names] for line in lines)
