"""A database of the Airflow before, with an open registration and open forms, migrated by this one.

`CREW_TESTS_AIRFLOW_BEFORE` names the ``airflow`` of an environment with this provider and the Airflow before.
`make test-matrix` makes one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts.find_postgres import server_url
from scripts.stack import AirflowStack, CrewService, ProcessGroup, wait_until
from tests.system.conftest import HERE

BEFORE = os.environ.get("CREW_TESTS_AIRFLOW_BEFORE")
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research", "agent": "Researcher", "seconds": 30.0, "output": "Notes on {topic}."},
        {
            "id": "write",
            "agent": "Writer",
            "seconds": 0.5,
            "human_input": True,
            "output": "Draft {revision} on {topic}.",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        },
    ],
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.since_airflow("3.4"),
    pytest.mark.skipif(not BEFORE, reason="CREW_TESTS_AIRFLOW_BEFORE names no Airflow; make test-matrix does"),
]


@pytest.fixture
def crew(group: ProcessGroup) -> CrewService:
    return CrewService(CREW, dialect="live", name="crew-service-upgrade", group=group).start()


@pytest.mark.row("A24", "A26")
def test_registrations_and_forms_stay_open_while_the_database_is_migrated(crew: CrewService) -> None:
    with ProcessGroup() as group:
        stack = AirflowStack(dags=[HERE / "dags"], postgres=server_url(), group=group, command=Path(str(BEFORE)))
        stack.start_all()
        inbox = {"inbox_url": f"{stack.url}/crew-inbox"}
        stack.api.add_connection("crew_inbox", **crew.connection, extra=json.dumps(inbox))
        answered, cleared = stack.api.trigger("review_one"), stack.api.trigger("review_one", {"by_try": True})
        forms = [run.wait_for_review() for run in (answered, cleared)]
        asked = stack.api.trigger("inbox_review")
        asked.wait_for_task("crew.wait", {"deferred"})
        crew.kill()  # so that its question comes after the upgrade

        stack.upgrade()
        crew.start()
        answered.answer(forms[0], "approve", human_feedback="")
        answered.wait_for("success")
        assert answered.xcom("publish")["is_approve"] is True

        cleared.clear("wait", downstream=True)
        again = wait_until(
            lambda: next((each for each in cleared.reviews() if "Try 2." in each["body"]), None), "the new form"
        )
        cleared.answer(again, "approve", human_feedback="")
        cleared.wait_for("success")

        question = asked.wait_for_review()
        assert "Draft 1 on tea." in question["body"]
        asked.answer(question, "revise", human_feedback="Shorter.")
        second = wait_until(
            lambda: next((each for each in asked.reviews() if "Draft 2" in each["body"]), None), "the second draft"
        )
        asked.answer(second, "approve", human_feedback="")
        asked.wait_for("success")
        assert asked.xcom("crew.result")["output"] == "Draft 2 on tea, after: Shorter."
