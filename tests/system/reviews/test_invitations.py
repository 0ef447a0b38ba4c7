"""A crew of CrewAI that needs people five times: two calls of a tool, a question, and a report in two rounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, expect

from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from scripts.stack.waiting import PATIENCE
from tests.service.crewai.openai_server import OpenAI, environment
from tests.system.reviews.browser import signed_in

pytestmark = [pytest.mark.since_airflow("3.1"), pytest.mark.long, pytest.mark.timeout(900)]
CREWS = Path(__file__).parents[2] / "service" / "crewai" / "crews"
TEXT = "Will you come to the tea tasting on Friday?\n\nThe host"
MAILS = [{"to": to, "subject": "Tea tasting", "text": TEXT} for to in ("ann@example.com", "everyone@example.com")]
ASKED = "On which floor is the tea tasting?"
REASON, ANSWER, FEEDBACK = "Not everyone: only the tea club.", "On the third.", "Name the <b>day</b> too."
CALLS = [*(("send_mail", mail) for mail in MAILS), ("ask_person", {"question": ASKED})]
REPORT = "## Invitations\n\n* {0}\n* {1}\n\nThe floor: {2}"
SAID = re.compile(r"Reason: (.*)")
REVISED = re.compile(r"User feedback: (.*?)\n", re.DOTALL)


def next_turn(body: dict[str, Any]) -> dict[str, Any]:
    """Call the tools in turn, then report what they returned; a revision names what the person has said."""
    turns = body["messages"]
    if wish := REVISED.findall(str(turns[-1]["content"])):
        return {"role": "assistant", "content": f"{turns[-2]['content']}\n\nThe day: Friday, since you said: {wish[0]}"}
    results = [turn["content"] for turn in turns if turn["role"] == "tool"]
    if len(results) == len(CALLS):
        return {"role": "assistant", "content": REPORT.format(results[0], SAID.findall(results[1])[0], results[2])}
    name, arguments = CALLS[len(results)]
    call = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call{len(results)}", "type": "function", "function": call}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@dataclass(frozen=True)
class Served:
    """The served crew, with what it did: the chats of its model and its mails."""

    service: CrewService
    model: OpenAI
    log: Path

    @property
    def mails(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def get(self, path: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.service.token}"}
        answer = requests.get(f"{self.service.url}/{path}", headers=headers, timeout=PATIENCE)
        assert answer.ok, answer.text
        return dict(answer.json())


@pytest.fixture
def served(airflow: AirflowStack, group: ProcessGroup, tmp_path: Path) -> Iterator[Served]:
    model = OpenAI()
    model.script = next_turn
    log = tmp_path / "mails"
    env = {**environment(model), "CREWAI_STORAGE_DIR": str(tmp_path), "MAILS": str(log)}
    crew, rules = f"{CREWS / 'invitations.py'}:crew", ("--tool", "send_mail=approve")
    service = CrewService(crew, name="crew-service-invitations", options=rules, env=env, group=group).start()
    airflow.api.add_connection("crew_invitations", **service.connection)
    yield Served(service, model, log)
    model.close()


class Reviewer:
    """Answers the forms of a run, in a browser."""

    def __init__(self, page: Page, airflow: AirflowStack, run: DagRun) -> None:
        self._page, self._airflow, self._run = page, airflow, run

    def read(self, number: int, subject: str) -> str:
        """Wait until a question is asked, open its form, and return the text that it shows."""

        def asked() -> dict[str, Any] | None:
            assert self._run.state in ("queued", "running"), self._run.failure_report()
            return next((each for each in self._run.reviews() if f"(round {number}" in each["subject"]), None)

        question = wait_until(asked, f"question {number}")
        assert question["subject"].startswith(f"{subject} (round ")
        task_id = question["task_instance"]["task_id"]
        path = f"dags/{self._run.dag_id}/runs/{self._run.run_id}/tasks/{task_id}/required_actions"
        self._page.goto(f"{self._airflow.url}/{path}")
        expect(self._page.get_by_text(question["subject"]).first).to_be_visible()
        expect(self._page.locator("textarea").first).to_be_editable()
        return self._page.locator("body").inner_text()

    def answer(self, button: str, feedback: str = "") -> None:
        self._page.locator("textarea").first.fill(feedback)
        with self._page.expect_response(lambda response: response.request.method == "PATCH") as answered:
            self._page.get_by_role("button", name=button, exact=True).click()
        assert answered.value.ok, answered.value.text()


@pytest.mark.row("S33")
@pytest.mark.parametrize(
    "dag_id",
    [
        "invitations_in_rounds",
        pytest.param("invitations_in_one_task", marks=pytest.mark.since_airflow("3.4")),
    ],
)
def test_one_person_decides_calls_answers_questions_and_reviews_reports(
    airflow: AirflowStack, served: Served, dag_id: str
) -> None:
    run = airflow.api.trigger(dag_id)
    with signed_in(airflow) as page:
        person = Reviewer(page, airflow, run)
        assert '"to": "ann@example.com"\n' in person.read(1, "Approve send_mail for Host")
        assert served.mails == []
        person.answer("approve")
        assert '"to": "everyone@example.com"\n' in person.read(2, "Approve send_mail for Host")
        assert served.mails == MAILS[:1]
        person.answer("deny", REASON)
        assert person.read(3, "Answer Host").count(ASKED) == 1
        person.answer("answer", ANSWER)
        assert REASON in person.read(4, "Review invite")
        person.answer("revise", FEEDBACK)
        assert f"since you said: {FEEDBACK}" in person.read(5, "Review invite")
        person.answer("approve")
        run.wait_for("success")

    report = REPORT.format("Sent to ann@example.com.", REASON, ANSWER)
    record = run.xcom("crew" if dag_id == "invitations_in_one_task" else "crew.result")
    assert record["output"] == f"{report}\n\nThe day: Friday, since you said: {FEEDBACK}"
    assert served.mails == MAILS[:1]
    assert len(served.model.asked) == len(CALLS) + 2
    assert len(served.get("executions")["executions"]) == 1
    rounds = served.get(f"executions/{record['execution_id']}")["rounds"]
    assert [((each.get("ask") or {}).get("kind"), each["outcome"], each["is_approve"]) for each in rounds] == [
        ("tool", "approve", True),
        ("tool", "deny", False),
        ("question", "answer", True),
        (None, None, False),
        (None, None, True),
    ]
