"""Several crews in one service, each below its own path with the whole API; and machines that only run crews."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from crew_client import PLAIN, Client, Command, Receiver, eventually
from stand_in_crew import StandInCrew

from crew_service.cli import main
from crew_service.engine.crew import Crew
from crew_service.http import login_limit
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
REPORT = {
    "inputs": ["topic"],
    "tasks": [{"id": "draft_task", "human_input": True, "output": "Report on {topic}"}],
}
BRIEF = {"inputs": ["subject"], "tasks": [{"id": "brief_task", "output": "Brief on {subject}"}]}
OF_A_SECOND = {**PLAIN, "tasks": [{**PLAIN["tasks"][0], "seconds": 1.0}, *PLAIN["tasks"][1:]]}
COMMON, OWN, ANN, EVE = "token-for-all-crews", "token-of-the-brief", "anns-token", "eves-token"
FIGURES_OF_REPORT = {
    'crew_service_executions{crew="report",state="waiting"} 1.0',
    'crew_service_workers{crew="report"} 32.0',
    'crew_service_webhooks_total{crew="report",kind="step",outcome="delivered"} 1.0',
    'crew_service_webhooks_waiting{crew="report"} 0.0',
    'crew_service_webhooks_given_up{crew="report"} 0.0',
    'crew_service_request_seconds_count{code="200",crew="report",path="/crews/report/kickoff"} 1.0',
}
FIGURES_OF_BRIEF = {
    'crew_service_executions{crew="brief",state="completed"} 1.0',
    *(line.replace("report", "brief") for line in FIGURES_OF_REPORT if "state=" not in line),
}
CREWS = ("--crew", "report=report.json", "--crew", "brief=brief.json")


def test_the_test_double_has_every_member_of_a_crew() -> None:
    assert {name for name in vars(Crew) if not name.startswith("_")} <= set(dir(StandInCrew))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, scenario in (("report", REPORT), ("brief", BRIEF), ("plain", PLAIN), ("second", OF_A_SECOND)):
        (tmp_path / f"{name}.json").write_text(json.dumps(scenario))
    return tmp_path


@pytest.fixture
def crews(folder: Path, command: Callable[..., Command]) -> tuple[Client, Client]:
    tokens = ("--token", COMMON, "--user-token", f"ann={ANN}")
    own = ("--crew-token", f"brief={OWN}", "--crew-token", f"brief/eve={EVE}")
    service = command(*CREWS, *tokens, *own)
    base = service.url.removesuffix("/crews/report")
    return Client(f"{base}/crews/report", COMMON), Client(f"{base}/crews/brief", OWN)


def test_each_crew_has_the_whole_api_below_its_path(crews: tuple[Client, Client]) -> None:
    report, brief = crews
    assert report.get("/inputs").json()["inputs"] == ["topic"]
    assert brief.get("/inputs").json()["inputs"] == ["subject"]
    one, other = report.kickoff("AI"), brief.post("/kickoff", {"inputs": {"subject": "AI"}}).json()["kickoff_id"]
    report.until(one, "pending")
    assert brief.until(other, "completed")["result"]["output"] == "Brief on AI"
    assert report.resume(one).status_code == 200
    report.until(one, "completed")
    for client, ids in ((report, [one]), (brief, [other])):
        assert [each["kickoff_id"] for each in client.get("/executions").json()["executions"]] == ids
        for path in ("/docs", "/openapi.json", "/healthz"):
            assert requests.get(client.url + path, timeout=PATIENCE).status_code == 200
        document = client.get("/openapi.json").json()
        assert document["servers"] == [{"url": "/crews/" + client.url.rpartition("/")[2]}]
        assert client.get("/", headers={"Accept": "text/html"}).status_code == 200


def test_probes_at_the_root_may_be_head_requests(crews: tuple[Client, Client]) -> None:
    for client in crews:
        for base in (client.url, client.url.rpartition("/crews/")[0]):
            answers = [requests.head(base + path, timeout=PATIENCE) for path in ("/healthz", "/livez", "/readyz")]
            assert [answer.status_code for answer in answers] == [200, 200, 200], base


def test_a_crew_may_have_several_tokens_of_the_organization(folder: Path, command: Callable[..., Command]) -> None:
    service = command(*CREWS, "--token", COMMON, "--crew-token", f"brief={OWN}", "--crew-token", "brief=the-next-token")
    assert [
        service.client(token, "brief").get("/metrics").status_code for token in (OWN, "the-next-token", COMMON)
    ] == [200, 200, 401]


HTML = {"Accept": "text/html"}


def test_the_front_page_links_each_crew_the_token_opens(crews: tuple[Client, Client]) -> None:
    report, _ = crews
    front = report.url.removesuffix("crews/report")
    report.kickoff("a secret topic")
    browser = requests.Session()
    browser.headers.update(HTML)
    locked = browser.get(front, timeout=PATIENCE)
    assert (locked.status_code, "report" in locked.text, 'name="token"' in locked.text) == (401, False, True)
    assert browser.post(f"{front}login", data={"token": "wrong"}, timeout=PATIENCE).status_code == 401
    page = browser.post(f"{front}login", data={"token": COMMON}, timeout=PATIENCE)
    assert re.findall('href="(crews/[^"]*)"', page.text) == ["crews/report/"]
    assert "1 more needs a different token" in page.text
    assert "a secret topic" in browser.get(f"{front}crews/report/", timeout=PATIENCE).text, "signed in there too"
    assert browser.get(f"{front}crews/brief/", timeout=PATIENCE).status_code == 401
    for cookie in browser.cookies:
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert COMMON not in str(cookie.value)
    form_key = re.findall('name="form_key" value="([^"]+)"', page.text)[0]
    assert browser.post(f"{front}logout", data={"form_key": "x"}, timeout=PATIENCE).status_code == 403
    kept = browser.cookies.copy()
    assert browser.post(f"{front}logout", data={"form_key": form_key}, timeout=PATIENCE).status_code == 401
    for path in ("", "crews/report/"):
        assert requests.get(front + path, headers=HTML, cookies=kept, timeout=PATIENCE).status_code == 401
    own = requests.get(front, headers={**HTML, "Authorization": f"Bearer {EVE}"}, timeout=PATIENCE)
    assert re.findall('href="(crews/[^"]*)"', own.text) == ["crews/brief/"]


@pytest.mark.row("S44")
def test_front_page_form_keys_need_cookies_and_open_no_crew(folder: Path, command: Callable[..., Command]) -> None:
    service = command("--crew", "form=plain.json", "--crew", "brief=brief.json", "--token", COMMON)
    front = service.url.removesuffix("crews/form")
    browser = requests.Session()
    browser.headers.update(HTML)
    page = browser.post(f"{front}login", data={"token": COMMON}, timeout=PATIENCE)
    form_key = re.findall('name="form_key" value="([^"]+)"', page.text)[0]
    assert form_key != {cookie.path: cookie.value for cookie in browser.cookies}["/crews/form/"]
    stolen = {"crew_session": form_key}
    assert requests.get(f"{front}crews/form/", headers=HTML, cookies=stolen, timeout=PATIENCE).status_code == 401
    by_token = {**HTML, "Authorization": f"Bearer {COMMON}"}
    assert 'name="form_key" value=""' in requests.get(front, headers=by_token, timeout=PATIENCE).text
    for headers in (HTML, by_token):
        answer = requests.post(f"{front}logout", data={"form_key": ""}, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 403


def test_who_asks_for_no_html_finds_no_front_page(crews: tuple[Client, Client]) -> None:
    front = crews[0].url.removesuffix("crews/report")
    headers = {"Authorization": f"Bearer {COMMON}"}
    for method, path in (("GET", ""), ("POST", ""), ("POST", "login"), ("POST", "logout")):
        answer = requests.request(method, front + path, headers=headers, timeout=PATIENCE)
        assert (answer.status_code, list(answer.json())) == (404, ["detail"])


def test_the_front_page_does_not_help_to_guess_tokens(crews: tuple[Client, Client]) -> None:
    front = crews[0].url.removesuffix("crews/report")
    codes = [
        requests.post(f"{front}login", data={"token": "x"}, headers=HTML, timeout=PATIENCE).status_code
        for _ in range(login_limit.TRIES + 1)
    ]
    assert codes == [401] * login_limit.TRIES + [429]


def test_an_execution_of_one_crew_is_unknown_to_another(crews: tuple[Client, Client]) -> None:
    report, brief = crews
    kickoff_id = report.kickoff()
    report.until(kickoff_id, "pending")
    assert brief.get(f"/status/{kickoff_id}").status_code == 404
    assert brief.resume(kickoff_id).status_code == 404
    assert brief.post(f"/stop/{kickoff_id}").status_code == 404
    assert report.status(kickoff_id)["status"] == "pending"


def test_the_page_of_one_crew_shows_nothing_of_another(crews: tuple[Client, Client]) -> None:
    report, brief = crews
    draft = report.kickoff("rivals")
    report.until(draft, "pending")
    text = brief.post("/kickoff", {"inputs": {"subject": "rivals"}}).json()["kickoff_id"]
    brief.until(text, "completed")
    for client, own, foreign, part in ((report, draft, text, "output"), (brief, text, draft, "draft")):
        for path in ("/", "/?q=rivals", f"/?q={foreign}", "/?state=waiting", "/?state=completed"):
            assert f"view?id={foreign}" not in client.get(path).text, path
        assert f"view?id={own}" in client.get("/?q=rivals").text
        for path in (f"/view?id={foreign}", f"/text?id={foreign}&part={part}"):
            assert client.get(path).status_code == 404, path


def test_a_crew_with_its_own_tokens_takes_no_others(crews: tuple[Client, Client]) -> None:
    report, brief = crews
    codes = {
        token: [client.holding(token).get("/inputs").status_code for client in (report, brief)]
        for token in (COMMON, OWN, ANN, EVE)
    }
    assert codes == {COMMON: [200, 401], OWN: [401, 200], ANN: [200, 401], EVE: [401, 200]}


def test_the_same_idempotency_key_means_something_else_to_each_crew(crews: tuple[Client, Client]) -> None:
    report, brief = crews
    key, body = {"Idempotency-Key": "k"}, {"inputs": {"topic": "x", "subject": "x"}}
    first, second = (client.post("/kickoff", body, headers=key).json()["kickoff_id"] for client in crews)
    assert first != second
    assert report.post("/kickoff", body, headers=key).json()["kickoff_id"] == first
    assert brief.post("/kickoff", body, headers=key).json()["kickoff_id"] == second


def test_the_root_reports_health_and_refuses_all_else_as_json(crews: tuple[Client, Client]) -> None:
    root = crews[0].url.removesuffix("/crews/report")
    assert requests.get(f"{root}/healthz", timeout=PATIENCE).json() == {"status": "ok"}
    for path in ("/inputs", "/crews/none/inputs", "/status/x"):
        answer = requests.get(root + path, timeout=PATIENCE)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_a_wrong_name_is_answered_with_the_tokens_crews(crews: tuple[Client, Client]) -> None:
    root = crews[0].url.removesuffix("/crews/report")
    told = {
        token: requests.get(f"{root}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
        for token, path in ((COMMON, "/crews/reprot/inputs"), (OWN, "/inputs"), ("nobodys", "/crews/reprot/inputs"))
    }
    assert {answer.status_code for answer in told.values()} == {404}
    assert {token: answer.json()["detail"] for token, answer in told.items()} == {
        COMMON: "Nothing is here. The crews are at /crews/report",
        OWN: "Nothing is here. The crews are at /crews/brief",
        "nobodys": "Not Found",
    }


def test_a_crews_own_token_reads_only_its_crews_labelled_metrics(
    crews: tuple[Client, Client], receiver: Receiver
) -> None:
    report, brief = crews
    hooks = {"stepWebhookUrl": receiver.url}
    report.until(report.kickoff(**hooks), "pending")
    answer = brief.post("/kickoff", {"inputs": {"subject": "AI"}, **hooks}).json()
    brief.until(answer["kickoff_id"], "completed")

    def told(client: Client, crew: str) -> set[str]:
        return {line for line in client.get("/metrics").text.splitlines() if f'crew="{crew}"' in line}

    eventually(lambda: told(report, "report") >= FIGURES_OF_REPORT, "the figures of the report")
    eventually(lambda: told(brief, "brief") >= FIGURES_OF_BRIEF, "the figures of the brief")
    assert told(report, "brief") >= FIGURES_OF_BRIEF
    assert told(brief, "report") == set()
    figures = [line for line in brief.get("/metrics").text.splitlines() if not line.startswith("#")]
    assert [line for line in figures if 'crew="brief"' not in line] == []
    assert [line for line in told(brief, "brief") if "/crews/report" in line] == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--crew", "report.json", "--crew", "brief.json"), "distinct names, as NAME=TARGET"),
        (("--crew", "a=report.json", "--crew", "a=brief.json"), "distinct names, as NAME=TARGET"),
        (("--crew", "a=report.json", "--crew", "brief.json"), "'brief.json' has no name"),
        (("--crew", "a=report.json", "--crew-token", "b=x"), "a token for the crew 'b', which is not served"),
        (("--crew", "a=absent.json"), "'absent.json' cannot be read"),
    ],
)
def test_same_named_crews_end_the_start_with_one_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["serve", "--port", "0", *options]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert told in sentence


@pytest.fixture
def worker(folder: Path, postgresql: str) -> Iterator[subprocess.Popen[str]]:
    options = ("work", "--db", postgresql, "--crew", "second.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "crew_service", *options],
        cwd=folder,
        stderr=(folder / "worker.log").open("w"),
        text=True,
    )
    yield process
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_a_machine_that_only_works_runs_what_another_service_takes(
    folder: Path, command: Callable[..., Command], worker: subprocess.Popen[str], postgresql: str
) -> None:
    busy = command("--db", postgresql, "--crew", "second.json", "--token", COMMON, "--workers", "1")
    client = busy.client(COMMON)
    eventually(lambda: "Running crews" in (folder / "worker.log").read_text(), "the worker's start")

    def the_worker_has_run_one() -> bool:
        ids = [client.kickoff() for _ in range(3)]  # the service runs one of them; the others wait for a second
        for kickoff_id in ids:
            assert client.until(kickoff_id, "completed")["result"]["output"] == "All on AI"
        return any(kickoff_id in (folder / "worker.log").read_text() for kickoff_id in ids)

    eventually(the_worker_has_run_one, "an execution on the worker")


def test_work_on_a_sqlite_file_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["work", "--crew", "plain.json"]) == 2
    assert "`work` needs a PostgreSQL database that services share" in capsys.readouterr().err
