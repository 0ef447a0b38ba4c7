"""Rows S13 and S19: several services, as processes, on one PostgreSQL.

The default size is small; `CREW_MACHINES_SIZE=300 CREW_MACHINES_PAUSE=20` is the size of the fault matrix.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import machine
import pytest
import requests
from crew_client import Serve, eventually

from scripts.stack.ports import free_port
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
SIZE = int(os.environ.get("CREW_MACHINES_SIZE", "24"))
PAUSE = float(os.environ.get("CREW_MACHINES_PAUSE", "15"))  # seconds between two kills
HEADERS = {"Authorization": f"Bearer {machine.TOKEN}"}
ANSWERED = 300.0  # seconds within which some machine must answer


class Machine:
    def __init__(self, folder: Path, database: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder, self._database = folder, database
        self.start()

    def start(self) -> None:
        script = [sys.executable, machine.__file__, str(self.port), self._database, str(self._folder / "journal")]
        with (self._folder / f"log-{self.port}").open("a") as log:
            self.process = subprocess.Popen(script, stderr=log, stdout=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def is_up(self) -> bool:
        assert self.process.poll() is None
        try:
            return requests.get(f"{self.url}/healthz", timeout=PATIENCE).ok
        except requests.RequestException:
            return False


class Machines:
    """Three machines behind a load balancer that sends each request anywhere."""

    def __init__(self, folder: Path, database: str, number: int = 3) -> None:
        self.folder = folder
        self.may_end = threading.Event()  # while it is not set, nothing is approved at the last gate
        self.may_end.set()
        self.machines = [Machine(folder, database) for _ in range(number)]
        for one in self.machines:
            eventually(one.is_up, "the start")

    def ask(self, method: str, path: str, key: str | None = None, body: Any = None) -> requests.Response:
        """Ask until some machine answers: a repetition is harmless with a key."""
        deadline = time.monotonic() + ANSWERED
        headers = {**HEADERS, **({"Idempotency-Key": key} if key else {})}
        while True:
            url = random.choice(self.machines).url + path
            try:
                answer = requests.request(method, url, json=body, headers=headers, timeout=PATIENCE)
                if answer.status_code < 500:
                    return answer
            except requests.RequestException:
                pass  # it is dead, or died with the request
            assert time.monotonic() < deadline, f"no machine answers {method} {path}"
            time.sleep(0.1)

    def status(self, kickoff_id: str) -> dict[str, Any]:
        return self.ask("GET", f"/status/{kickoff_id}").json()

    def run_one(self, number: int) -> tuple[str, dict[str, Any]]:
        """Kick off, approve at each gate, and return the id and the last status."""
        body = {"inputs": {"topic": str(number)}}
        kickoff_id = self.ask("POST", "/kickoff", f"kickoff-{number}", body).json()["kickoff_id"]
        for gate in machine.GATES:
            eventually(lambda gate=gate: self.status(kickoff_id).get("task_id") == gate, gate)
            if gate == machine.GATES[-1]:
                assert self.may_end.wait(PATIENCE)
            decision = {"execution_id": kickoff_id, "task_id": gate, "human_feedback": "", "is_approve": True}
            answer = self.ask("POST", "/resume", f"resume-{number}-{gate}", decision)
            assert answer.status_code == 200, answer.text
        record = eventually(lambda: self._over(kickoff_id), "the end")
        return kickoff_id, record

    def _over(self, kickoff_id: str) -> dict[str, Any] | None:
        record = self.status(kickoff_id)
        return record if record["status"] in ("completed", "error") else None

    def journal(self) -> list[tuple[str, str, str]]:
        journal = self.folder / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [(word, execution, task) for word, execution, task in map(str.split, lines)]


@pytest.fixture
def machines(tmp_path: Path, postgresql: str) -> Iterator[Machines]:
    running = Machines(tmp_path, postgresql)
    yield running
    for one in running.machines:
        one.kill()


@pytest.fixture
def killing(machines: Machines) -> Iterator[list[float]]:
    """Kill one machine after the other, and start it again; the list of the moments.

    The first is killed as soon as a task has ended, and no execution ends before.
    """
    machines.may_end.clear()
    kills: list[float] = []
    enough = threading.Event()

    def kill() -> None:
        while not enough.wait(PAUSE if kills else 0.1):
            if not any(word == "done" for word, *_ in machines.journal()):
                continue
            while not all(one.is_up() for one in machines.machines) and not enough.wait(0.5):
                pass  # one at a time: the others carry on
            one = machines.machines[len(kills) % len(machines.machines)]
            one.kill()
            kills.append(time.monotonic())
            machines.may_end.set()
            one.start()

    thread = threading.Thread(target=kill)
    thread.start()
    yield kills
    enough.set()
    thread.join()


def all_run(machines: Machines, number: int) -> list[str]:
    with ThreadPoolExecutor(min(number, 64)) as pool:
        ends = list(pool.map(machines.run_one, range(number)))
    ids = [kickoff_id for kickoff_id, _ in ends]
    assert Counter(record["status"] for _, record in ends) == {"completed": number}
    assert [record["result"]["output"] for _, record in ends] == [f"All on {n}" for n in range(number)]
    assert len(set(ids)) == number
    return ids


def repeated(journal: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Tasks that started again after their end was stored."""
    done: set[tuple[str, str]] = set()
    again = []
    for word, execution, task in journal:
        if word == "start" and (execution, task) in done:
            again.append((execution, task))
        if word == "done":
            done.add((execution, task))
    return again


@pytest.mark.row("S13")
def test_services_on_one_postgresql_share_work_running_each_execution_once(machines: Machines) -> None:
    ids = all_run(machines, 18)
    starts = Counter((execution, task) for word, execution, task in machines.journal() if word == "start")
    assert set(starts.values()) == {1}
    assert {execution for execution, _ in starts} == set(ids)
    logs = [(machines.folder / f"log-{one.port}").read_text() for one in machines.machines]
    assert all(log.count('"running"') >= 3 for log in logs)


@pytest.mark.long
@pytest.mark.row("S13")
def test_what_one_machine_takes_another_knows(machines: Machines) -> None:
    first, second, third = (one.url for one in machines.machines)
    body, key = {"inputs": {"topic": "x"}}, {**HEADERS, "Idempotency-Key": "one"}
    with ThreadPoolExecutor(12) as pool:
        urls = [first, second, third] * 4
        answers = list(
            pool.map(lambda url: requests.post(f"{url}/kickoff", json=body, headers=key, timeout=PATIENCE), urls)
        )
    (kickoff_id,) = {answer.json()["kickoff_id"] for answer in answers}
    decision = {"execution_id": kickoff_id, "task_id": "draft_task", "human_feedback": "", "is_approve": True}
    eventually(lambda: machines.status(kickoff_id)["status"] == "pending", "the question")
    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(lambda url: requests.post(f"{url}/resume", json=decision, headers=HEADERS, timeout=PATIENCE), urls)
        )
    assert Counter(answer.status_code for answer in answers) == {200: 1, 400: 11}
    stopped = requests.post(f"{third}/stop/{kickoff_id}", headers=HEADERS, timeout=PATIENCE)
    assert stopped.status_code == 200
    journal = machines.journal()
    all_run(machines, 6)  # whichever machine runs it hears of the stop before these are over
    later = [line for line in machines.journal() if line not in journal and line[1] == kickoff_id]
    assert len(later) <= 1
    assert machines.status(kickoff_id)["error"] == "Stopped on request"


@pytest.mark.row("S3")
def test_ids_that_postgresql_cannot_compare_are_unknown(serve: Serve, postgresql: str) -> None:
    client = serve(db=postgresql)
    kickoff_id = client.kickoff("zero\0character")
    assert client.until(kickoff_id, "pending")["task_output"] == "Draft 1 on zero\0character"
    assert client.resume("a\0b").status_code == 404
    assert client.resume(kickoff_id, task_id="a\0b").status_code == 404
    for path in ("/stop/a%00b", "/stop/%00", f"/stop/{kickoff_id}%00"):
        assert client.post(path).status_code == 404


def test_signing_in_at_one_machine_signs_in_at_all(machines: Machines) -> None:
    first, second, _ = (one.url for one in machines.machines)
    browser = requests.Session()
    page = {"Accept": "text/html"}
    signed_in = browser.post(
        f"{first}/login", {"token": machine.TOKEN}, headers=page, timeout=PATIENCE, allow_redirects=False
    )
    assert signed_in.status_code == 303
    elsewhere = browser.get(f"{second}/", headers=page, timeout=PATIENCE)
    assert elsewhere.status_code == 200
    form_key = elsewhere.text.split('name="form_key" value="')[1].split('"')[0]
    browser.post(f"{second}/logout", {"form_key": form_key}, headers=page, timeout=PATIENCE, allow_redirects=False)
    assert browser.get(f"{first}/", headers=page, timeout=PATIENCE).status_code == 401


@pytest.mark.row("S19")
@pytest.mark.long  # the short cluster test kills services, too
@pytest.mark.timeout(1200)
def test_executions_survive_machines_that_are_killed_one_after_the_other(
    machines: Machines, killing: list[float], record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    ids = all_run(machines, SIZE)
    journal = machines.journal()
    starts = Counter((execution, task) for word, execution, task in journal if word == "start")
    assert {execution for execution, _ in starts} == set(ids), "an execution was started that nobody knows"
    assert repeated(journal) == []
    extra = sum(starts.values()) - len(starts)
    assert extra <= len(killing) * machine.WORKERS, "more than what was at work was run again"
    assert killing, "nothing was killed; the test proves nothing"
    figures = f"{SIZE} executions, {len(killing)} kills, {extra} tasks run again, {time.monotonic() - began:.0f} s"
    record_property("figures", figures)
    print(figures)  # noqa: T201
