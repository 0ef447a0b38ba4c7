"""Runs that were open under earlier code of both packages go on under this one, over the same databases.

Earlier code comes from this repository's history.
"""

from __future__ import annotations

import io
import sqlite3
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_crew_provider.stored_names import TASK_RECORD
from scripts.find_postgres import server_url
from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup
from tests.system.conftest import HERE

ROOT = HERE.parents[1]
EARLIER = {
    "0.2.0": "c2452d4c",
    "the last with a record for each POST and question": "c77f7967",
}
SECONDS = 45.0  # longer than what happens while a crew works on a draft
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research", "agent": "Researcher", "seconds": 0.5, "output": "Notes on {topic}."},
        {
            "id": "write",
            "agent": "Writer",
            "seconds": SECONDS,
            "human_input": "review",
            "output": "Draft {revision} on {topic}.",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        },
    ],
}

pytestmark = [pytest.mark.long, pytest.mark.since_airflow("3.1")]


def earlier_code(commit: str, folder: Path) -> Path:
    """Write both packages, as they were at a commit, into a folder."""
    packages = ("airflow_crew_provider", "service/crew_service")
    done = subprocess.run(["git", "archive", commit, *packages], cwd=ROOT, capture_output=True, timeout=60)
    if done.returncode:
        pytest.skip(f"needs commit {commit} in this clone's history: {done.stderr.decode()[:200]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Upgraded:
    """An Airflow and a crew service that begin with earlier code.

    :param code: the folder of both packages
    """

    def __init__(self, code: Path, group: ProcessGroup, airflows: ProcessGroup) -> None:
        earlier = {"PYTHONPATH": f"{code}:{code / 'service'}"}
        self.crew = CrewService(CREW, name="crew-service-open-runs", group=group, env=earlier).start()
        dags, connections = [HERE / "dags" / "open_runs"], {"crew_open_runs": self.crew.connection}
        self.airflow = AirflowStack(
            dags=dags, connections=connections, env=earlier, postgres=server_url(), group=airflows
        ).start_all()

    def upgrade(self) -> None:
        """Kill every process, and start this code on the same databases."""
        self.crew.kill()
        del self.airflow.env["PYTHONPATH"], self.crew.env["PYTHONPATH"]
        self.airflow.upgrade()
        self.crew.start()

    def review_of(self, run: DagRun, task_id: str) -> dict[str, Any]:
        """Wait for a form, and until Airflow has processed that its task left the worker."""
        form = run.wait_for_review()
        self.airflow.wait_until_put_away(run, task_id)
        return form

    def has_records(self) -> bool:
        """Return whether tasks have kept records as this code does."""
        return any(self.airflow.api.pages("variables", "variables", variable_key_pattern=f"{TASK_RECORD}__"))

    def read_service(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.crew.folder / "service.db")) as database:
            return database.execute(query).fetchall()


def answer_once(run: DagRun, form: dict[str, Any]) -> None:
    """Approve, and then ask for a revision, which Airflow refuses."""
    run.answer(form, "approve", human_feedback="")
    body = {"chosen_options": ["revise"], "params_input": {"human_feedback": "Too late."}}
    assert run.api.call("PATCH", run.answer_path(form), json=body).status_code == 409


@pytest.mark.row("A8")
@pytest.mark.parametrize("commit", EARLIER.values(), ids=EARLIER)
def test_open_runs_go_on_under_this_code(commit: str, tmp_path: Path) -> None:
    with ProcessGroup() as group, ProcessGroup() as airflows:
        stack = Upgraded(earlier_code(commit, tmp_path), group, airflows)
        trigger = stack.airflow.api.trigger
        asked, revised = trigger("open_group"), trigger("open_group")
        form, first = asked.wait_for_review(), revised.wait_for_review()
        waiting, kicked_off = trigger("open_group"), trigger("open_kickoff")
        kicked_off.wait_for_task("kickoff", {"deferred"})
        waiting.wait_for_task("crew.wait", {"deferred"})
        revised.answer(first, "revise", human_feedback="Shorter.")
        revised.wait_for_task("crew.round_1.wait", {"deferred"})
        assert not stack.has_records()
        stack.upgrade()

        kicked_off.wait_for("success")
        assert kicked_off.xcom("kickoff")["output"] == "Draft 1 on tea."
        answer_once(asked, form)
        answer_once(waiting, stack.review_of(waiting, "crew.round_1.review"))
        second = stack.review_of(revised, "crew.round_2.review")
        assert "Draft 2 on tea, after: Shorter." in second["body"]
        answer_once(revised, second)
        for run, draft in ((asked, "1 on tea."), (waiting, "1 on tea."), (revised, "2 on tea, after: Shorter.")):
            run.wait_for("success")
            assert run.xcom("crew.result")["output"] == f"Draft {draft}"
        assert stack.read_service("SELECT state FROM executions") == [("completed",)] * 4
        answers = [text for (text,) in stack.read_service("SELECT human_feedback FROM rounds")]
        assert sorted(answers) == ['"Approved."'] * 3 + ['"Shorter."']
        assert stack.has_records()
