"""Crews as jobs: processes that run a bounded number of segments, behind a service that only answers requests."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from crew_client import PLAIN, Client, Command, ended, eventually
from fork_template import ForkedCommand
from sampling import sampled
from sqlalchemy import create_engine, select, text, update

from crew_service.cli import _parser, main
from crew_service.engine.jobs import Quota, is_done
from crew_service.options import settings_of
from crew_service.settings import FileLimits
from crew_service.storage.database import Database
from crew_service.storage.location import url_of
from crew_service.storage.tables import executions
from scripts.stack.waiting import FACTOR, PATIENCE, wait_until

# One worker, like the other tests that start many processes at once: PostgreSQL has a hundred connections for all.
pytestmark = pytest.mark.xdist_group("many processes")
ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-tests-only"
GATED = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "notes_task", "seconds": 0.2, "output": "Notes on {topic}"},
        {"id": "draft_task", "human_input": True, "output": "Draft on {topic}"},
    ],
}


@dataclass
class Jobs:
    """The jobs of one database, and the service in front of it."""

    folder: Path
    database: str
    client: Client
    started: list[ForkedCommand] = field(default_factory=list)

    def start(self, *options: str) -> ForkedCommand:
        with (self.folder / f"log-of-job-{len(self.started)}").open("w") as log:
            self.started.append(ForkedCommand(self._words(*options), self.folder, log.fileno(), os.environ))
        return self.started[-1]

    def run(self, *options: str) -> str:
        """Run a job to its end; return what it logged."""
        job = ended(self.folder, self._words(*options), dict(os.environ))
        assert job.returncode == 0, job.stderr
        return job.stderr

    def _words(self, *options: str) -> list[str]:
        return ["work", "--db", self.database, "--crew", "crew.json", *options]

    def queue(self) -> list[dict[str, Any]]:
        return self._printed("queue")

    def states(self) -> list[str]:
        return sorted(each["state"] for each in self._printed("list", "--json", "--limit", "200"))

    def wait_for(self, state: str) -> None:
        """Wait for the only execution; each look opens a connection, of which a server has few."""
        wait_until(lambda: self.states() == [state], f"an execution that is {state}", pause=0.5)

    def _printed(self, *command: str) -> list[dict[str, Any]]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main([*command, "--db", self.database]) == 0
        return list(json.loads(printed.getvalue()))


@pytest.fixture
def jobs(tmp_path: Path, command: Callable[..., Command], postgresql: str) -> Iterator[Jobs]:
    (tmp_path / "crew.json").write_text(json.dumps(PLAIN))
    (tmp_path / "gated.json").write_text(json.dumps(GATED))
    front = command("--db", postgresql, "--crew", "crew.json", "--token", TOKEN, "--no-work")
    jobs = Jobs(tmp_path, postgresql, front.client(TOKEN))
    yield jobs
    for each in jobs.started:
        each.kill()
        each.stdout.close()


@pytest.mark.slow
def test_a_job_takes_its_quota_and_another_takes_the_rest(jobs: Jobs) -> None:
    for _ in range(5):
        jobs.client.kickoff()
    (queue,) = jobs.queue()
    assert queue.pop("oldest_seconds") > 0
    assert queue == {"crew": "", "queued": 5, "held": 0, "running": 0}
    assert "crew_service_queued 5.0" in jobs.client.get("/metrics").text

    log = jobs.run("--max-executions", "2", "--workers", "1")
    assert log.count('"message": "running"') == 2
    assert jobs.states() == ["completed"] * 2 + ["queued"] * 3
    assert jobs.run("--idle-exit", "0.5").count('"message": "running"') == 3
    assert jobs.states() == ["completed"] * 5
    assert '"message": "running"' not in jobs.run("--idle-exit", "0.5", "--max-executions", "1"), "nothing is left"
    assert jobs.queue() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(["ScaledJob", "ScaledObject"], 2))
def test_the_query_of_the_manifest_counts_what_queue_prints(jobs: Jobs, kind: str) -> None:
    manifests = yaml.safe_load_all((ROOT / "deploy" / "crew-jobs.yaml").read_text())
    (scaled,) = [each for each in manifests if each["kind"] == kind]
    query = re.sub(r"crew = '\w+'", "crew = ''", scaled["spec"]["triggers"][0]["metadata"]["query"])
    (jobs.folder / "crew.json").write_text(json.dumps(GATED))

    def counted() -> int:
        engine = create_engine(url_of(jobs.database))
        with engine.connect() as connection:
            number = connection.execute(text(query)).scalar_one()
        engine.dispose()
        return int(number)

    for _ in range(3):
        jobs.client.kickoff()
    assert counted() == sum(each["queued"] for each in jobs.queue()) == 3
    with contextlib.closing(Database(jobs.database)) as database, database.writing() as connection:
        one = select(executions.c.id).limit(1).scalar_subquery()
        connection.execute(update(executions).where(executions.c.id == one).values(held_until=database.now() + 3600))
    assert counted() == sum(each["queued"] for each in jobs.queue()) == 2
    assert [each["held"] for each in jobs.queue()] == [1]
    eventually(lambda: counted() == 3, "a look at what is held, since no budget holds it")
    jobs.run("--idle-exit", "0.5")
    assert jobs.states() == ["waiting"] * 3
    assert counted() == 0
    assert jobs.queue() == []


@pytest.mark.slow
def test_a_job_asked_to_end_leaves_its_segment_to_another(jobs: Jobs) -> None:
    (jobs.folder / "crew.json").write_text(json.dumps({**PLAIN, "tasks": [{**PLAIN["tasks"][0], "seconds": 3600}]}))
    kickoff_id = jobs.client.kickoff()
    job = jobs.start("--max-executions", "1")
    jobs.wait_for("running")
    job.send_signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 0
    assert [(each["queued"], each["running"]) for each in jobs.queue()] == [(1, 0)]
    (jobs.folder / "crew.json").write_text(json.dumps(PLAIN))
    jobs.run("--max-executions", "1")
    jobs.client.until(kickoff_id, "completed")


@pytest.mark.slow
def test_a_service_without_work_requeues_a_killed_jobs_execution(jobs: Jobs) -> None:
    (jobs.folder / "crew.json").write_text(json.dumps({**PLAIN, "tasks": [{**PLAIN["tasks"][0], "seconds": 3600}]}))
    jobs.client.kickoff()
    job = jobs.start("--max-executions", "1")
    jobs.wait_for("running")
    job.kill()
    killed = time.monotonic()
    job.wait(PATIENCE)
    jobs.wait_for("queued")
    assert time.monotonic() - killed < 60 * FACTOR
    assert [each["queued"] for each in jobs.queue()] == [1]


def test_a_service_without_work_on_a_sqlite_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--port", "0", "--no-work"]) == 2
    assert "`serve --no-work` needs a PostgreSQL database" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("executions", [5, pytest.param(100, marks=pytest.mark.long)])
def test_a_scaler_killing_every_fifth_job_completes_each_execution_once(
    jobs: Jobs, command: Callable[..., Command], executions: int
) -> None:
    """The scaler starts a job for each queued execution, at most four at a time, as KEDA's `ScaledJob` does."""
    (jobs.folder / "crew.json").write_text(json.dumps(GATED))
    other = command("--db", jobs.database, "--crew", "crew.json", "--token", TOKEN, "--no-work").client(TOKEN)
    clients, random, running = (jobs.client, other), Random(7), dict[ForkedCommand, bool]()
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda number: clients[number % 2].kickoff(str(number)), range(executions)))
    answered: set[str] = set()
    ends = time.monotonic() + PATIENCE + 5 * executions * FACTOR
    while jobs.states() != ["completed"] * executions:
        assert time.monotonic() < ends, jobs.states()
        running = {job: dies for job, dies in running.items() if job.poll() is None}
        queued = sum(each["queued"] for each in jobs.queue())
        for _ in range(min(queued, 4 - len(running))):
            running[jobs.start("--max-executions", "1", "--idle-exit", "1")] = random.random() < 0.2
        for job, dies in running.items():
            if dies and "running" in jobs.states():
                job.kill()
        waiting = [each for each in ids if each not in answered and jobs.client.status(each)["status"] == "pending"]
        for each in waiting:
            assert clients[len(answered) % 2].resume(each).ok
            answered.add(each)
        time.sleep(0.1)
    for job in running:
        job.wait(PATIENCE)
    assert len(set(ids)) == executions
    for number, each in enumerate(ids):
        result = jobs.client.status(each)["result"]
        assert result["output"] == f"Draft on {number}"
        assert [task["task_id"] for task in result["tasks"]] == ["notes_task", "draft_task"]


# --- pure ---


@dataclass
class Runner:
    is_busy: bool = False
    idle_since: float | None = None


@pytest.mark.parametrize(
    ("left", "idle_exit", "runners", "done"),
    [
        (None, None, [Runner(idle_since=0.0)], False),
        (0, None, [Runner()], True),
        (0, None, [Runner(), Runner(is_busy=True)], False),
        (1, None, [Runner(idle_since=0.0)], False),
        (None, 5.0, [Runner(idle_since=0.0)], True),
        (None, 5.0, [Runner(idle_since=0.0), Runner()], False),
        (None, 5.0, [Runner(idle_since=0.0), Runner(is_busy=True)], False),
        (None, 1e9, [Runner(idle_since=0.0)], False),
    ],
)
def test_a_job_is_done_at_its_quota_or_after_idling(
    left: int | None, idle_exit: float | None, runners: list[Runner], done: bool
) -> None:
    assert is_done(Quota(left), idle_exit, runners) is done


def test_a_quota_is_shared_and_unused_parts_are_given_back() -> None:
    quota = Quota(3)
    assert (quota.reserve(2), quota.reserve(2), quota.is_used_up) == (2, 1, True)
    quota.give_back(1)
    assert (quota.is_used_up, quota.reserve(9)) == (False, 1)
    unbounded = Quota()
    assert (unbounded.reserve(9), unbounded.is_used_up) == (9, False)


def test_a_worker_limits_its_crews_files_as_a_service_does() -> None:
    words = ("--max-file-size", "1KiB", "--max-files-size", "2KiB", "--max-stored-files", "3KiB")
    for command in ("serve", "work"):
        arguments = _parser().parse_args([command, *words], argparse.Namespace(starting=None, target=None))
        assert settings_of(arguments, "", {}).file_limits == FileLimits(1024, 2048, 3072)
