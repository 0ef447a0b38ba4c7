"""Rows S39 and S44: what belongs to the organization or to one user is neither shown to nor changed by another."""

from __future__ import annotations

import html
import re
import sqlite3
from pathlib import Path

import pytest
import requests
from crew_client import GATED, PLAIN, Serve, eventually
from stand_in_crew import StandInCrew

from crew_service.engine import outbox
from crew_service.engine.browser_sessions import BrowserSessions
from crew_service.engine.crew import Completed, Job, PendingReview, Report
from crew_service.engine.flow_webhook import FlowWebhook
from crew_service.engine.principals import Principal, Tokens
from crew_service.engine.retention import forget_old
from crew_service.storage import browser_sessions
from crew_service.storage.database import Database
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits
ANN, BOB = ("ann", "ann-token-0123456789"), ("bob", "bob-token-0123456789")
FLOW_KEY = "the-key-of-the-flow-webhook"
HTML = {"Accept": "text/html"}


class Asking(StandInCrew):
    """A Flow that asks one question."""

    kind, tasks = "flow", ()

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        if job.decision is not None:
            return Completed("Out.")
        return PendingReview("review", "Draft", "", {}, "Right?", ["yes", "no"])


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(str(tmp_path / "service.db"))


@pytest.mark.row("S44")
def test_many_logins_of_a_user_end_no_other_session(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_sessions, "MOST", 5)
    users = [(Principal(name), token) for name, token in (ANN, BOB)]
    sessions = BrowserSessions(database, Tokens([(Principal(), "organizations-token"), *users]), "")
    organization, bob = sessions.open(Principal()), sessions.open(Principal("bob"))
    anns = [sessions.open(Principal("ann")) for _ in range(7)]
    assert sessions.find(organization.key)
    assert sessions.find(bob.key)
    assert [sessions.find(each.key) is not None for each in anns] == [False] * 2 + [True] * 5
    own = [sessions.open(Principal()) for _ in range(5)]
    assert sessions.find(organization.key) is None, "the bound holds for the organization as well"
    assert all(sessions.find(each.key) for each in [*own, *anns[2:]])


@pytest.mark.row("S44")
@pytest.mark.parametrize("name", ["organization", "user:bob", "bob", None])
def test_who_decided_is_named_by_the_token(serve: Serve, name: str | None) -> None:
    client = serve(crew=Asking(), user_tokens=[ANN, BOB])
    ann = client.holding(ANN[1])
    execution_id = ann.kickoff()
    client.until(execution_id, "pending")
    answer = {"flow_id": execution_id, "feedback": "yes", **({"source": name} if name else {})}
    answered = ann.post("/resume_feedback", answer)
    assert answered.json()["request"]["responded_by"] == "user:ann"
    assert client.get(f"/executions/{execution_id}").json()["rounds"][0]["by"] == "user:ann"
    assert "user:ann" in client.post("/resume_feedback", answer).json()["detail"]


@pytest.mark.row("S44")
@pytest.mark.parametrize(
    ("source", "by"),
    [("organization", "callback"), (" Organization ", "callback"), ("user:ann", "callback"), ("rita", "rita")],
)
def test_a_callback_answer_cannot_take_a_tokens_name(serve: Serve, source: str, by: str) -> None:
    webhook = FlowWebhook("http://127.0.0.1:9/", "a-secret-of-flow-webhooks", "")
    client = serve(crew=Asking(), flow_webhook=webhook.url, flow_webhook_secret=webhook.secret)
    execution_id = client.kickoff()
    client.until(execution_id, "pending")
    page = client.get(f"/view?id={execution_id}").text
    question = re.findall('name="question_id" value="([^"]+)"', page)[0]
    path = f"/human_feedback_requests/{question}/respond?token={webhook.response_token(question)}"
    assert client.post(path, {"feedback": "yes", "source": source}).json()["request"]["responded_by"] == by


SITES = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "https://other.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
]


@pytest.mark.row("S44")
@pytest.mark.parametrize("site", SITES, ids=str)
def test_a_form_of_another_site_signs_nobody_in(serve: Serve, site: dict[str, str]) -> None:
    client = serve()
    refused = requests.post(f"{client.url}/login", data={"token": client.token}, headers=site, timeout=PATIENCE)
    assert refused.status_code == 403
    assert "another site" in refused.text
    assert not refused.cookies


@pytest.mark.row("S44")
@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin", "Origin": "http://behind-a-proxy"}, None])
def test_the_pages_own_forms_are_taken_also_behind_a_proxy(serve: Serve, headers: dict[str, str] | None) -> None:
    client = serve()
    browser = requests.Session()
    browser.headers.update(headers or {"Origin": client.url})
    page = browser.post(f"{client.url}/login", data={"token": client.token}, timeout=PATIENCE)
    assert page.ok
    assert page.headers["Referrer-Policy"] == "same-origin", "with no-referrer its forms have the origin null"
    forwarded = {"Origin": "http://crews.example", "X-Forwarded-Host": "crews.example"}
    wrong = requests.post(f"{client.url}/login", data={"token": "x"}, headers=forwarded, timeout=PATIENCE)
    assert wrong.status_code == 401


@pytest.mark.parametrize("typed", [{"mark": "x"}, {"feedback": "x"}, {"mark": "x", "execution_id": ""}])
def test_a_login_that_names_no_execution_leads_to_the_page(serve: Serve, typed: dict[str, str]) -> None:
    client = serve()
    answer = requests.post(f"{client.url}/login", data={"token": client.token, **typed}, headers=HTML, timeout=PATIENCE)
    assert answer.status_code == 200
    assert answer.history[0].headers["Location"] == "./"


@pytest.mark.row("S39")
def test_the_address_of_the_flow_webhook_stands_on_no_page(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "IDLE", 0.02)
    hook = f"http://127.0.0.1:9/asked/{FLOW_KEY}?key={FLOW_KEY}"
    client = serve(
        crew=Asking(), user_tokens=[ANN], webhook_attempts=1, flow_webhook=hook, flow_webhook_secret="s" * 24
    )
    ann = client.holding(ANN[1])
    execution_id = ann.kickoff(humanInputWebhook={"url": "http://127.0.0.1:9/anns-own"})
    eventually(lambda: "crew_service_webhooks_given_up 2.0" in client.get("/metrics").text, "the dead letters")
    for caller in (ann, client):
        for path in (f"/view?id={execution_id}", "/"):
            page = caller.get(path).text
            assert "<code>http://127.0.0.1:9</code>" in page
            assert "<code>http://127.0.0.1:9/anns-own</code>" in page
            assert FLOW_KEY not in page


def test_an_answer_for_an_unknown_id_expires_as_executions_do(serve: Serve, database: Database, tmp_path: Path) -> None:
    client = serve(PLAIN, dialect="live")
    execution_id = client.kickoff()
    unknown = "0" * 8 + "-0000-4000-8000-" + "0" * 12
    body = {"executionId": unknown, "taskId": "x", "humanFeedback": "Approved.", "isApprove": True}
    assert client.post("/resume", body, headers={"Idempotency-Key": "one"}).ok
    kept = sqlite3.connect(tmp_path / "service.db")

    def count() -> int:
        return int(kept.execute("SELECT count(*) FROM answers").fetchone()[0])

    now = database.now()
    forget_old(database, before=now - 60)
    assert count() == 1
    forget_old(database, before=now + 60)
    assert count() == 0
    kept.close()
    assert client.status(execution_id)


RTL = "\u202e"


def test_a_direction_mark_does_not_reverse_a_links_address(serve: Serve) -> None:
    draft = f"Read {RTL}[the report](https://evil.example/moc.elpmaxe) and ![{RTL}pixel](https://evil.example/x.png)"
    client = serve({**GATED, "tasks": [{"id": "t", "agent": "", "human_input": True, "output": draft}]})
    execution_id = client.kickoff()
    client.until(execution_id, "pending")
    page = html.unescape(client.get(f"/view?id={execution_id}").text)
    assert '(<bdi dir="ltr">https://evil.example/moc.elpmaxe</bdi>)' in page
    assert f'![<bdi>{RTL}pixel</bdi>](<bdi dir="ltr">https://evil.example/x.png</bdi>)' in page
