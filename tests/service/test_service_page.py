"""The page at /: behind the token, safe against what stands in outputs and against forged forms."""

from __future__ import annotations

import html
import re
import time

import pytest
import requests
from crew_client import GATED, PLAIN, Client, Serve, eventually
from stand_in_crew import StandInCrew

from crew_service.engine.crew import Completed, Job, PendingReview, Report, TaskDone, TaskInfo, TokensUsed
from crew_service.http import html as pages
from crew_service.http import login_limit, markdown
from crew_service.prices import Price, Prices
from crew_service.targets import title
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits
HTML = {"Accept": "text/html"}
NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}"


class Browser:
    """A session that signs in and sends the forms of the page."""

    def __init__(self, client: Client, token: str | None = None) -> None:
        self.url = client.url
        self.session = requests.Session()
        self.session.headers.update(HTML)
        self.signed_in = self.session.post(f"{self.url}/login", data={"token": token or client.token}, timeout=PATIENCE)

    def page(self) -> str:
        return self.session.get(f"{self.url}/", timeout=PATIENCE).text

    def form(self) -> dict[str, str]:
        """The hidden fields of the first review form."""
        review = self.page().split('action="review"', 1)[1].split("</form>", 1)[0]
        return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', review))

    def decide(self, decision: str, feedback: str = "", **changed: str) -> requests.Response:
        form = {**self.form(), "decision": decision, "feedback": feedback, **changed}
        return self.session.post(f"{self.url}/review", data=form, timeout=PATIENCE)


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve(user_tokens=[("ann", "ann-token")])


def test_without_a_session_there_is_only_the_way_in(client: Client) -> None:
    client.kickoff("a secret topic")
    answer = requests.get(f"{client.url}/", headers=HTML, timeout=PATIENCE)
    assert (answer.status_code, "Token" in answer.text, "secret" in answer.text) == (401, True, False)
    for path in ("review", "logout"):
        assert requests.post(f"{client.url}/{path}", data={"form_key": "x"}, timeout=PATIENCE).status_code == 401


def test_a_wrong_token_opens_no_session(client: Client) -> None:
    browser = Browser(client, "wrong")
    assert (browser.signed_in.status_code, len(browser.session.cookies)) == (401, 0)


def test_following_a_link_leads_to_the_execution_after_signing_in(client: Client) -> None:
    kickoff_id = client.kickoff("a topic")
    browser = Browser(client, "wrong")
    asked = browser.session.get(f"{client.url}/view", params={"id": kickoff_id}, timeout=PATIENCE)
    assert asked.status_code == 401
    for token in ("wrong again", client.token):
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked.text))
        asked = browser.session.post(f"{client.url}/login", data={"token": token, **hidden}, timeout=PATIENCE)
    assert (asked.status_code, asked.url) == (200, f"{client.url}/view?id={kickoff_id}")
    evil = browser.session.post(
        f"{client.url}/login", data={"token": client.token, "back": "//evil.example/x"}, timeout=PATIENCE
    )
    assert evil.url.startswith(f"{client.url}/view?")


def test_the_cookie_is_no_token_and_scripts_cannot_read_it(client: Client) -> None:
    answer = requests.post(f"{client.url}/login", data={"token": client.token}, timeout=PATIENCE, allow_redirects=False)
    cookie = answer.headers["Set-Cookie"]
    assert client.token not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_the_cookie_opens_nothing_but_the_page(client: Client) -> None:
    browser = Browser(client)
    assert "Executions" in browser.page()
    for method, path in (("GET", "/inputs"), ("POST", "/kickoff"), ("GET", "/metrics")):
        assert browser.session.request(method, client.url + path, timeout=PATIENCE).status_code == 401


def test_the_page_shows_progress_and_drafts_and_an_approval_continues(client: Client) -> None:
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    browser = Browser(client)
    page = browser.page()
    assert all(text in page for text in (kickoff_id, "waiting", "1/3", "Draft 1 on AI"))
    assert "the crew continues" in browser.decide("approve").text
    client.until(kickoff_id, "completed")
    assert "3/3" in browser.page()


def test_a_revision_needs_feedback_and_runs_the_task_again(client: Client) -> None:
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    browser = Browser(client)
    assert "needs feedback" in browser.decide("revise", "  ").text
    browser.decide("revise", "shorter")
    eventually(lambda: client.status(kickoff_id).get("task_output") == "Draft 2 on AI, after: shorter", "draft 2")


def test_an_answer_to_an_older_draft_changes_nothing(client: Client) -> None:
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    browser = Browser(client)
    old = browser.form()
    client.resume(kickoff_id, approve=False, feedback="again")
    second = eventually(
        lambda: "Draft 2" in client.status(kickoff_id).get("task_output", "") and client.status(kickoff_id), "draft 2"
    )
    assert "Nothing was changed" in browser.decide("approve", round=old["round"]).text
    assert client.status(kickoff_id) == second


def test_a_form_of_another_session_is_refused(client: Client) -> None:
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    for forged in ("", Browser(client).form()["form_key"]):
        assert Browser(client).decide("approve", form_key=forged).status_code == 403
    assert client.status(kickoff_id)["status"] == "pending"


def test_html_in_outputs_becomes_text_and_scripts_are_forbidden(client: Client) -> None:
    client.until(client.kickoff(NASTY), "pending")
    answer = Browser(client).session.get(f"{client.url}/", timeout=PATIENCE)
    assert re.findall("<script[^>]*>", answer.text) == ['<script src="page.js" defer>']
    assert "<img" not in answer.text
    assert "&lt;script&gt;" in answer.text
    assert "{{ 7 * 7 }}" in answer.text
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'nonce-")


def test_a_user_sees_and_decides_only_what_that_user_started(client: Client) -> None:
    mine = client.kickoff("mine")
    anns = client.holding("ann-token").kickoff("anns")
    for kickoff_id in (mine, anns):
        client.until(kickoff_id, "pending")
    ann = Browser(client, "ann-token")
    page = ann.page()
    assert (anns in page, mine in page) == (True, False)
    assert "Nothing was changed" in ann.decide("approve", execution_id=mine).text
    assert client.status(mine)["status"] == "pending"


def test_signing_out_ends_the_session(client: Client) -> None:
    browser = Browser(client)
    client.until(client.kickoff(), "pending")
    cookies = browser.session.cookies.copy()
    browser.session.post(f"{client.url}/logout", data={"form_key": browser.form()["form_key"]}, timeout=PATIENCE)
    assert requests.get(f"{client.url}/", headers=HTML, cookies=cookies, timeout=PATIENCE).status_code == 401


def test_an_old_draft_is_shown_however_many_executions_follow(serve: Serve) -> None:
    client = serve()
    old = client.kickoff("the oldest")
    client.until(old, "pending")
    stopped = [client.kickoff() for _ in range(101)]
    for kickoff_id in stopped:
        client.post(f"/stop/{kickoff_id}")
    assert "Draft 1 on the oldest" in Browser(client).page()


@pytest.mark.parametrize("body", [b"\xff\xfe", b"token=%ff%fe", b"&" * 1000 + b"a=1&" * 50])
def test_a_form_that_cannot_be_read_is_a_400(serve: Serve, body: bytes) -> None:
    client = serve(PLAIN)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = requests.post(f"{client.url}/login", data=body, headers=headers, timeout=PATIENCE)
    assert (answer.status_code, "detail" in answer.json()) == (400, True)


def test_ten_failed_logins_in_a_minute_make_the_address_wait(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def login(token: str) -> requests.Response:
        return Browser(client, token).signed_in

    assert [login("wrong").status_code for _ in range(login_limit.TRIES - 1)] == [401] * 9
    assert login(client.token).status_code == 200, "a success forgives nothing: else its holder could guess on"
    assert login("wrong").status_code == 401
    refused = login(client.token)
    assert (refused.status_code, "Too many failures; try again in" in refused.text) == (429, True)
    assert client.get("/inputs").status_code == 200, "the API is not the login"
    now = time.monotonic()
    monkeypatch.setattr(login_limit.time, "monotonic", lambda: now + login_limit.SECONDS + 1)
    assert login(client.token).status_code == 200


def failed_login(client: Client, forwarded: str) -> int:
    headers = {"X-Forwarded-For": forwarded}
    return requests.post(f"{client.url}/login", data={"token": "x"}, headers=headers, timeout=PATIENCE).status_code


@pytest.mark.row("S29")
def test_a_forged_address_does_not_evade_the_login_limit(client: Client) -> None:
    codes = [failed_login(client, f"198.51.100.{number}") for number in range(login_limit.TRIES + 1)]
    assert codes == [401] * login_limit.TRIES + [429]


@pytest.mark.row("S29")
@pytest.mark.parametrize("proxies", ["127.0.0.1", "127.0.0.1,192.0.2.1", "*"])
def test_the_login_limit_uses_the_address_a_named_proxy_saw(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, proxies: str
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)
    client = serve()
    codes = [failed_login(client, f"10.0.0.{number}, 203.0.113.7") for number in range(login_limit.TRIES + 1)]
    assert codes == [401] * login_limit.TRIES + [429]
    assert failed_login(client, "203.0.113.7, 203.0.113.8") == 401, "another one is not kept out"


def test_a_local_proxy_tells_by_which_scheme_a_request_came(client: Client) -> None:
    answers = [
        requests.post(f"{client.url}/login", data={"token": client.token}, headers=headers, timeout=PATIENCE)
        for headers in ({}, {"X-Forwarded-Proto": "https"})
    ]
    cookies = [answer.history[0].headers["set-cookie"] for answer in answers]
    assert ["Secure" in cookie for cookie in cookies] == [False, True]


def test_the_list_is_searched_filtered_and_paged(serve: Serve) -> None:
    client = serve(PLAIN)
    ids = [client.kickoff(f"topic-{number:02}") for number in range(27)]
    for kickoff_id in ids:
        client.until(kickoff_id, "completed")

    def shown(query: str) -> list[str]:
        return re.findall(r'<a href="view\?id=([0-9a-f-]{36})"', client.get(f"/?{query}").text)

    assert shown("") == ids[:1:-1]
    older = re.findall(r'href="\./\?([^"]*before=[^"]*)"', client.get("/").text)
    assert [shown(html.unescape(query)) for query in older] == [[ids[1], ids[0]]]
    assert shown("q=topic-07") == shown(f"q={ids[7]}") == shown("q=topic-07&state=completed") == [ids[7]]
    assert shown("state=failed") == shown("q=topic-07&state=failed") == shown("q=nowhere") == []


def test_a_revised_draft_shows_changes_since_the_previous_version(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process of the tests may collect garbage during a page, for longer than a page may take.
    monkeypatch.setattr(markdown, "SECONDS", PATIENCE)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id, approve=False, feedback="Shorter")
    eventually(lambda: "Changes since version 1" in client.get("/").text, "the second version")
    for page in ("/", f"/view?id={kickoff_id}"):
        marked = re.findall("<(del|ins)>(.*?)</", client.get(page).text)
        assert marked == [("del", "1"), ("ins", "2"), ("ins", ", after: Shorter")]


def test_the_first_page_spends_no_time_compiling_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = pages.templates.overlay(cache_size=400)
    monkeypatch.setattr(pages, "templates", fresh)
    pages._compile_templates.cache_clear()
    pages.budget()
    compiled = []
    monkeypatch.setattr(fresh, "compile", lambda *what: compiled.append(what))
    for name in fresh.list_templates():
        fresh.get_template(name)
    assert compiled == []


def test_zero_characters_find_nothing_and_break_nothing_on_postgresql_either(serve: Serve, postgresql: str) -> None:
    client = serve(GATED, db=postgresql)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    found = {
        path: client.get(path).status_code
        for path in ("/?q=%00", "/?before=9e9,%00", "/view?id=%00", "/text?id=%00&part=1")
    }
    assert list(found.values()) == [200, 200, 404, 404]
    browser = Browser(client)
    form = {**browser.form(), "execution_id": "\0", "webhook_id": "\0", "decision": "approve"}
    for path in ("review", "cancel", "resend"):
        assert browser.session.post(f"{client.url}/{path}", data=form, timeout=PATIENCE).status_code == 200, path
    assert client.status(kickoff_id)["status"] == "pending"


class Loop(StandInCrew):
    """A Flow that writes again after a check: the same method asks twice, each time in its first round."""

    kind = "flow"
    tasks = (TaskInfo("write", "Writer", "", True), TaskInfo("check", "Checker", "", True))
    DRAFTS = (("write", "Draft one"), ("check", "One is wrong"), ("write", "Draft two"))

    def __init__(self, same: bool) -> None:
        self.same = same

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        done = len(job.done)
        if job.decision is not None and job.decision.state["number"] == done:
            output = {
                "task_id": job.decision.task_id,
                "agent": "",
                "output": job.decision.output,
                "execution_time": 0.0,
            }
            report(TaskDone(output))
            done += 1
        if done == len(self.DRAFTS):
            return Completed("Out.")
        task, draft = self.DRAFTS[done]
        return PendingReview(task, "Draft" if self.same else draft, "", {"number": done}, "Right?", ["yes", "no"])


@pytest.mark.parametrize("same", [False, True], ids=["other drafts", "the same text"])
def test_a_methods_earlier_question_form_answers_no_later_question(serve: Serve, same: bool) -> None:
    client = serve(crew=Loop(same))
    browser = Browser(client)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    old = browser.form()
    for number, (task, _) in enumerate(Loop.DRAFTS[:2], 1):
        answer = {"execution_id": kickoff_id, "task_id": task, "outcome": "no"}
        assert client.post("/resume", answer).ok
        eventually(lambda number=number: client.status(kickoff_id)["progress"]["completed_tasks"] == number, "a step")
        client.until(kickoff_id, "pending")
    assert (browser.form()["task_id"], browser.form()["round"]) == (old["task_id"], old["round"])
    late = browser.session.post(f"{client.url}/review", data={**old, "outcome": "yes"}, timeout=PATIENCE)
    assert "This draft no longer needs a decision. Nothing was changed." in html.unescape(late.text)
    assert client.status(kickoff_id)["status"] == "pending"
    browser.session.post(f"{client.url}/review", data={**browser.form(), "outcome": "yes"}, timeout=PATIENCE)
    client.until(kickoff_id, "completed")


AIRFLOW = {"dag_id": "etl & co", "run_id": "manual__2026-11-20T12:00:00+00:00", "task_id": "kickoff", "map_index": -1}
RUN = "/dags/etl%20%26%20co/runs/manual__2026-11-20T12%3A00%3A00%2B00%3A00"


def view(client: Client, kickoff_id: str) -> str:
    return client.get(f"/view?id={kickoff_id}").text


def test_the_page_leads_back_to_the_dag_run(client: Client) -> None:
    airflow = {**AIRFLOW, "base_url": "https://airflow.example.com/ui/"}
    kickoff_id = client.kickoff(meta={"airflow": airflow})
    client.until(kickoff_id, "pending")
    assert f'href="https://airflow.example.com/ui{RUN}"' in view(client, kickoff_id)


@pytest.mark.parametrize(
    "given",
    [
        None,
        1,
        {},
        "/ui",
        "javascript:alert(1)",
        "data:text/html,x",
        "https://",
        "https://me:secret@airflow.example.com",
        "https://a b",
        "https://airflow\\.example.com",
        "https://air\nflow",
        "http://[",
    ],
)
def test_an_address_of_another_kind_is_no_link(serve: Serve, given: object) -> None:
    client = serve(PLAIN)
    kickoff_id = client.kickoff(meta={"airflow": {**AIRFLOW, "base_url": given}})
    client.until(kickoff_id, "completed")
    page = view(client, kickoff_id)
    assert "etl &amp; co" in page
    assert not re.search('href="(?!view|text|docs|budgets|[.]/)[^"]*"', page.replace('href="data:,"', ""))


@pytest.mark.parametrize(
    "meta",
    [{"airflow": given} for given in (None, [], "x", {"dag_id": 1}, {"dag_id": "x" * 251}, {"dag_id": ""})]
    + [{"airflow": {"dag_id": "\0<b>", "run_id": {}, "review": given}} for given in (1, {}, {"task_id": []})],
)
def test_nothing_in_meta_breaks_a_kickoff_or_a_page(serve: Serve, postgresql: str, meta: dict[str, object]) -> None:
    client = serve(GATED, db=postgresql)
    kickoff_id = client.kickoff(meta=meta)
    client.until(kickoff_id, "pending")
    for page in (view(client, kickoff_id), client.get("/").text):
        assert "Draft 1 on AI" in page
        assert "<b>" not in page


def test_the_list_is_filtered_by_dag(serve: Serve) -> None:
    client = serve(PLAIN, user_tokens=[("ann", "ann-token")])
    ann = client.holding("ann-token")
    etl = client.kickoff(meta={"airflow": AIRFLOW})
    anns = ann.kickoff(meta={"airflow": AIRFLOW})
    other = client.kickoff(meta={"airflow": {**AIRFLOW, "dag_id": "other"}})
    client.kickoff()
    for kickoff_id in (etl, anns, other):
        client.until(kickoff_id, "completed")

    def shown(client: Client, query: str) -> list[str]:
        return re.findall(r'<a href="view\?id=([0-9a-f-]{36})"', client.get(f"/?{query}").text)

    (link,) = set(re.findall(r'href="\./\?(dag=etl[^"]*)"', client.get("/").text))
    assert shown(client, html.unescape(link)) == [anns, etl]
    assert shown(client, "dag=other") == shown(client, f"dag=other&q={other}") == [other]
    assert shown(client, "dag=etl+%26+co&state=completed") == [anns, etl]
    assert shown(ann, "dag=etl+%26+co") == [anns]
    assert (
        shown(client, f"dag=other&q={etl}") == shown(client, "dag=et") == shown(client, "dag=other&state=failed") == []
    )


@pytest.mark.parametrize(
    ("review", "said"),
    [
        (None, None),
        ({"task_id": "review", "approvals": 2, "named_people": False}, "needs 2 approvals"),
        ({"task_id": "review", "approvals": 1, "named_people": True}, "from the people assigned there"),
    ],
)
def test_where_airflow_asks_the_page_says_so_and_hides_buttons(
    client: Client, review: object, said: str | None
) -> None:
    kickoff_id = client.kickoff(meta={"airflow": {**AIRFLOW, "base_url": "http://localhost:8080", "review": review}})
    client.until(kickoff_id, "pending")
    for page in (view(client, kickoff_id), client.get("/").text):
        before, form = page.split('action="review"')
        assert (said or "Airflow asks") in page or said is None
        assert ("Decide here anyway" in before) == (said is not None)
        assert before.count("<details") - before.count("</details>") == (2 if said else 1)
        assert "Approve" in form
    assert "the crew continues" in Browser(client).decide("approve").text


def test_many_drafts_leave_the_list_where_it_is(client: Client) -> None:
    ids = [client.kickoff(f"topic {number}") for number in range(8)]
    for kickoff_id in ids:
        client.until(kickoff_id, "pending")
    above, below = client.get("/").text.split('<div id="rows"')
    assert above.count('action="review"') == 3
    assert "5 others are waiting" in above
    assert all(kickoff_id in above for kickoff_id in ids)
    assert "<details" in above
    assert not re.search("<details[^>]* open", above)
    assert all(kickoff_id in below for kickoff_id in ids)


def test_it_shows_duration_tokens_and_cost_where_they_are_known(serve: Serve) -> None:
    class Counting(Loop):
        kind, tasks = "crew", (TaskInfo("write", "Writer"),)

        def run(self, job: Job, report: Report) -> Completed:
            figures = {"total_tokens": 1_250_000, "prompt_tokens": 1_000_000, "completion_tokens": 250_000}
            report(TokensUsed(1_250_000, figures, {"write": {"gpt": figures}}))
            report(TaskDone({"task_id": "write", "agent": "Writer", "output": "Out.", "execution_time": 75.0}))
            return Completed("Out.")

    client = serve(crew=Counting(False), prices=Prices({"gpt": Price(input=2.0, cached=2.0, output=4.0)}))
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    for page in (view(client, kickoff_id), client.get("/").text):
        assert "1,250,000" in page
        assert "$3.00" in page
    assert "1 min 15 s" in view(client, kickoff_id)


def test_times_are_in_utc_and_convertible_by_a_script(client: Client) -> None:
    kickoff_id = client.kickoff()
    found = re.findall(r'<time datetime="([^"]+)">([^<]+)</time>', view(client, kickoff_id))
    assert found
    for machine, shown in found:
        assert machine.replace("T", " ").replace("+00:00", " UTC") == shown


def test_the_crew_is_called_by_its_name(serve: Serve) -> None:
    page = serve(PLAIN, title="Market report").get("/").text
    assert "<title>Market report</title>" in page
    assert "dialect" not in page
    named = {
        "demo": "demo",
        "pkg.mod:MyCrew": "MyCrew",
        "x/y.py:a_crew": "a crew",
        "/srv/market-report": "market report",
    }
    assert {target: title(target) for target in named} == named
