"""A crew in one task of Airflow 3.4: rounds, lost workers, answers to older questions, clears, and late answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import requests
from chaos import own_api
from faults.proxy import KICKOFF, POLL, RESUME, Fault, FaultProxy, Forward
from faults.wire import Reply
from held import HeldAnswer, kill_worker_of
from test_a28_lost_rounds import PausedCrew

from crew_service.local import LocalService, running_service
from scripts.stack import AirflowStack, DagRun, wait_until
from tests.system.reviews.test_loop import CREW, EDITED, audited, decided_at_the_service

pytestmark = [pytest.mark.since_airflow("3.4"), pytest.mark.timeout(600)]
ONE_DRAFT = {**CREW, "tasks": [CREW["tasks"][0], CREW["tasks"][-1]]}
MANY = 50  # as in dags/runs.py
FIRST, SECOND = "Draft 1 on tea", "Draft 2 on tea, after: Shorter."


class HeldInWorker(HeldAnswer):
    """Holds one answer to a task while a worker runs it, after some that it lets pass."""

    def __init__(self, run: DagRun, passing: int) -> None:
        super().__init__()
        self._run, self._passing = run, passing

    def __call__(self, forward: Forward, random: Random) -> Reply:
        if self.taken.is_set() or self._run.task("crew")["state"] != "running":
            return forward()
        self._passing -= 1
        return forward() if self._passing >= 0 else super().__call__(forward, random)


class OneTask:
    """A run of one task whose crew is behind a proxy."""

    def __init__(self, airflow: AirflowStack, proxy: FaultProxy, dag_id: str = "one_task") -> None:
        self.airflow, self.proxy = airflow, proxy
        self.run = airflow.api.trigger(dag_id)
        self._seen = DagRun(own_api(airflow), self.run.dag_id, self.run.run_id)  # by the proxy's threads

    def asked(self, draft: str, number: int) -> dict[str, Any]:
        """Wait until somebody is asked about a draft, under a number."""

        def question() -> dict[str, Any] | None:
            assert self.run.state in ("queued", "running"), self.run.failure_report()
            forms = [each for each in self.run.reviews() if f"> {draft}\n" in each["body"]]
            return next((each for each in forms if _number(each) == number), None)

        return wait_until(question, f"question {number} about {draft}")

    def answer(self, form: dict[str, Any], option: str, feedback: str = "", **more: Any) -> None:
        """Answer as the form's page does: with all of its fields."""
        fields = {name: each["value"] for name, each in form["params"].items()}
        self.run.answer(form, option, **{**fields, "human_feedback": feedback, **more})

    @contextmanager
    def lost_at(self, call: str, passing: int = 0) -> Iterator[None]:
        """Kill the worker in the middle of a call of the visit to which the block leads."""
        held = HeldInWorker(self._seen, passing)
        self.proxy.faults = (Fault("A1", "answer held back", call, held),)
        try:
            yield
            wait_until(held.taken.is_set, f"a call ({call}) of the task")
            kill_worker_of(self.airflow, self.run.task("crew"))
        finally:
            self.proxy.faults = ()
            held.release.set()

    @property
    def decisions(self) -> list[tuple[int, Any, bool]]:
        found = self.run.xcom("crew", "crew_decisions")
        return [(each["round"], each["is_approve"], each.get("taken")) for each in found]


def _number(form: dict[str, Any]) -> int:
    return int(form["params"]["question_number"]["value"])


@pytest.fixture
def crew() -> PausedCrew:
    return PausedCrew(ONE_DRAFT)


@pytest.fixture
def service(crew: PausedCrew, tmp_path: Path) -> Iterator[LocalService]:
    with running_service(crew=crew, db=tmp_path / "crew.db") as service:
        yield service


@pytest.fixture
def proxy(airflow: AirflowStack, service: LocalService) -> Iterator[FaultProxy]:
    with FaultProxy(service.url, seed=0, rate=1.0, faults=()) as proxy:
        airflow.api.add_connection("crew_one_task", conn_type="crew", host=proxy.url, password=service.token)
        yield proxy


@pytest.mark.row("A11")
def test_one_task_runs_two_rounds_without_slots_or_stale_answers(
    airflow: AirflowStack,
    service: LocalService,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = OneTask(airflow, proxy)
    first = task.asked(FIRST, 1)
    assert task.run.task("crew")["state"] == "awaiting_input"
    assert airflow.api.occupied_slots() == 0
    task.answer(first, "revise", "Shorter.")
    second = task.asked(SECOND, 2)
    assert "Changes since round 1" in second["body"]
    task.answer(first, "approve")  # a page of the first form, left open, of a program that does not name its time
    refused = wait_until(lambda: next((each for each in task.run.reviews() if _refuses(each)), None), "a refusal")
    assert _number(refused) == 2
    assert decided_at_the_service_of(service, task.run) == [(FIRST, False)]
    assert second["task_instance"]["id"] == refused["task_instance"]["id"]
    task.answer(refused, "approve", edited_draft=EDITED)
    task.run.wait_for("success")

    record = task.run.xcom("crew")
    assert (record["state"], record["output"]) == ("completed", "Printed.")
    assert task.decisions == [(1, False, True), (2, True, True)]
    assert proxy.forwarded[KICKOFF] == 1
    assert decided_at_the_service_of(service, task.run) == [(FIRST, False), (SECOND, True)]
    assert task.run.task("crew")["try_number"] == 1
    lines = audited(airflow, task.run, monkeypatch, capsys)
    assert [(line["round"], line["is_approve"], line["taken"]) for line in lines] == task.decisions
    assert all(line["service"]["status"] and line["reviewer"] and line["task_id"] == "crew" for line in lines)


def _refuses(form: dict[str, Any]) -> bool:
    return "it answers question 1, but this is question 2" in form["body"]


def decided_at_the_service_of(service: LocalService, run: DagRun) -> list[Any]:
    return decided_at_the_service(service, _Kickoff(run))  # type: ignore[arg-type]


class _Kickoff:
    """A run of one task, which has the id that other runs have at their kickoff."""

    def __init__(self, run: DagRun) -> None:
        self._run = run

    def xcom(self, task_id: str) -> Any:
        return self._run.xcom("crew", "kickoff_id")


@pytest.mark.row("A1", "A28")
def test_lost_workers_neither_lose_nor_repeat_answers_or_executions(
    airflow: AirflowStack, crew: PausedCrew, service: LocalService, proxy: FaultProxy
) -> None:
    before = Counter(proxy.forwarded)
    task = OneTask(airflow, proxy)
    first = task.asked(FIRST, 1)
    with task.lost_at(POLL):  # before the answer is stored
        task.answer(first, "revise", "Shorter.")
    second = task.asked(SECOND, 2)
    with task.lost_at(POLL, passing=1):  # when it is stored, before it is sent
        task.answer(second, "revise", "Shorter.")
    third = task.asked("Draft 3 on tea, after: Shorter.", 3)
    with task.lost_at(RESUME):  # when the service has it
        task.answer(third, "approve")
    task.run.wait_for("success")
    sent = {call: proxy.forwarded[call] - before[call] for call in (KICKOFF, RESUME)}
    assert sent == {KICKOFF: 1, RESUME: 3}
    assert [approved for _, approved in decided_at_the_service_of(service, task.run)] == [False, False, True]
    assert [(number, approved) for number, approved, _ in task.decisions] == [(1, False), (2, False), (3, True)]
    assert task.run.xcom("crew")["output"] == "Printed."
    assert task.run.task("crew")["try_number"] == 4


@pytest.mark.row("A7")
def test_clearing_replaces_the_execution_and_manual_failing_leaves_it_paused(
    airflow: AirflowStack, service: LocalService, proxy: FaultProxy
) -> None:
    task = OneTask(airflow, proxy)
    task.answer(task.asked(FIRST, 1), "revise", "Shorter.")
    task.asked(SECOND, 2)
    stopped = task.run.xcom("crew", "kickoff_id")
    task.run.clear("crew")
    task.asked(FIRST, 3)  # a page that was open before the clear answers no form of the new execution
    started = task.run.xcom("crew", "kickoff_id")
    assert started != stopped
    assert [_state(service, each) for each in (stopped, started)] == ["error", "pending"]
    task.run.mark_task("crew", "failed")
    task.run.wait_for("failed")
    assert _state(service, started) == "pending"


def _state(service: LocalService, kickoff_id: str) -> str:
    headers = {"Authorization": f"Bearer {service.token}"}
    return str(requests.get(f"{service.url}/status/{kickoff_id}", headers=headers, timeout=30).json()["status"])


@pytest.mark.row("A11")
def test_an_answer_after_the_deadline_does_not_end_the_wait(
    airflow: AirflowStack, crew: PausedCrew, service: LocalService, proxy: FaultProxy
) -> None:
    task = OneTask(airflow, proxy, "one_task_deadline")
    first = task.asked(FIRST, 1)
    crew.may_begin.clear()
    wait_until(lambda: decided_at_the_service_of(service, task.run), "the deadline to revise")
    task.run.wait_for_task("crew", {"deferred"})
    task.answer(first, "approve")
    wait_until(lambda: "after its question had been decided" in task.run.log("crew"), "the late answer in the log")
    task.run.wait_for_task("crew", {"deferred"})
    crew.may_begin.set()
    task.answer(task.asked("Draft 2 on tea, after: Nobody answered.", 2), "approve")
    task.run.wait_for("success")
    assert [approved for _, approved in decided_at_the_service_of(service, task.run)] == [False, True]


def test_live_webhooks_wake_the_task_per_question_despite_lost_workers(airflow: AirflowStack, tmp_path: Path) -> None:
    live = running_service(scenario=ONE_DRAFT, dialect="live", db=tmp_path / "live.db")
    with live as service, FaultProxy(service.url, seed=0, rate=1.0, faults=()) as proxy:
        extra = json.dumps({"inbox_url": f"{airflow.url}/crew-inbox"})
        connection = {"conn_type": "crew", "host": proxy.url, "password": service.token, "extra": extra}
        airflow.api.add_connection("crew_one_task_inbox", **connection)
        task = OneTask(airflow, proxy, "one_task_webhooks")
        task.answer(task.asked(FIRST, 1), "revise", "Shorter.")  # no poll would find it before ten minutes are over
        second = task.asked(SECOND, 2)
        with task.lost_at(POLL, passing=1):  # when the answer is stored, before it is sent
            task.answer(second, "revise", "Shorter.")
        task.answer(task.asked("Draft 3 on tea, after: Shorter.", 3), "approve")
        task.run.wait_for("success")
        assert {call: proxy.forwarded[call] for call in (KICKOFF, RESUME)} == {KICKOFF: 1, RESUME: 3}
    assert task.run.xcom("crew")["output"] == "Printed."
    assert [(number, approved) for number, approved, _ in task.decisions] == [(1, False), (2, False), (3, True)]


@pytest.mark.long
def test_fifty_that_wait_for_people_hold_none_of_four_slots(
    airflow: AirflowStack, crew: PausedCrew, proxy: FaultProxy
) -> None:
    run = airflow.api.trigger("many_in_one_task_each")

    def all_wait() -> bool:
        return Counter(run.states().values()) == {"awaiting_input": MANY} and len(run.reviews()) == MANY

    wait_until(all_wait, "fifty questions", pause=2)
    airflow.api.trigger("neighbour_of_many").wait_for("success")
    assert all_wait()
    for form in run.reviews():
        run.answer(form, "approve", **{name: each["value"] for name, each in form["params"].items()})
    run.wait_for("success")
    assert (proxy.forwarded[KICKOFF], proxy.forwarded[RESUME]) == (MANY, MANY)
