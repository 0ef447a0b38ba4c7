"""`Crew-Usage`: what an execution has used so far, beside the body of its status, in every state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, Serve, eventually

import crew_service
from crew_service.cli import main
from crew_service.engine.crew import Completed, Job, PendingReview, Report, TokensUsed
from crew_service.engine.usage import MOST
from crew_service.prices import Prices
from crew_service.scripted_crew import ScriptedCrew

pytestmark = pytest.mark.waits
FIRST = {"id": "research_task", "tokens": 400, "output": "x"}
ENDS: dict[str, dict[str, Any]] = {
    "running": {"id": "draft_task", "seconds": 60, "output": "y"},
    "pending": {"id": "draft_task", "tokens": 100, "human_input": True, "output": "y"},
    "error": {"id": "draft_task", "tokens": 100, "error": "no paper"},
    "completed": {"id": "draft_task", "tokens": 100, "output": "y"},
}
USED = {"running": 400, "pending": 500, "error": 400, "completed": 500}


def used(client: Client, kickoff_id: str) -> dict[str, Any]:
    """What both kinds of polls say; they agree."""
    alone = json.loads(client.get(f"/status/{kickoff_id}").headers["Crew-Usage"])
    together = client.get("/statuses", params={"ids": kickoff_id}).json()["statuses"][kickoff_id]
    assert together["usage"] == alone
    return alone


def until_used(client: Client, kickoff_id: str, tokens: int) -> None:
    def has_used() -> bool:
        return json.loads(client.get(f"/status/{kickoff_id}").headers["Crew-Usage"])["total_tokens"] == tokens

    eventually(has_used, f"{tokens} tokens")


@pytest.mark.parametrize("state", ENDS)
def test_every_state_reports_usage_without_changing_the_specified_body(serve: Serve, state: str) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS[state]]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, state)
    until_used(client, kickoff_id, USED[state])
    assert used(client, kickoff_id) == {
        "total_tokens": USED[state],
        "prompt_tokens": 0,
        "completion_tokens": USED[state],
    }
    assert "usage" not in client.status(kickoff_id)


def test_a_stop_and_the_status_after_it_report_usage(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS["running"]]})
    kickoff_id = client.kickoff()
    until_used(client, kickoff_id, 400)
    assert json.loads(client.post(f"/stop/{kickoff_id}").headers["Crew-Usage"])["total_tokens"] == 400
    assert client.status(kickoff_id)["status"] == "error"
    assert used(client, kickoff_id)["total_tokens"] == 400


def revised_once(client: Client) -> str:
    """Play a crew whose draft is sent back once, and which has used 600 tokens by the second; return its id."""
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id, approve=False, feedback="shorter")
    until_used(client, kickoff_id, 600)
    client.until(kickoff_id, "pending")
    client.resume(kickoff_id)
    client.until(kickoff_id, "completed")
    return kickoff_id


def test_tokens_of_all_segments_are_counted_once(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS["pending"], {**FIRST, "id": "last_task"}]})
    kickoff_id = revised_once(client)
    assert used(client, kickoff_id)["total_tokens"] == 1000


def test_live_deployments_words_carry_it_too(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [FIRST, ENDS["completed"]]}, dialect="live")
    kickoff_id = client.kickoff()
    assert client.until(kickoff_id, "SUCCESS")["usage_metrics"] == used(client, kickoff_id)


class WithoutATotal(ScriptedCrew):
    """Its model tells the parts only."""

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        parts = {"prompt_tokens": 400, "completion_tokens": 100}
        report(TokensUsed(0, parts, {"t": {"large": {"total_tokens": 0, **parts}}}))
        return Completed("x")


def test_a_total_is_no_less_than_its_parts(serve: Serve, prices: Prices) -> None:
    client = serve(crew=WithoutATotal({"tasks": [FIRST]}), prices=prices)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    found = used(client, kickoff_id)
    assert (found["total_tokens"], found["by_model"]["large"]["total_tokens"]) == (500, 500)


class Silent(ScriptedCrew):
    """Some of its calls gave no figures."""

    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        for calls in (1, 2):
            report(TokensUsed(9, {}, {"t": {"small": {"total_tokens": 9, "uncounted_calls": calls}}}))
        return Completed("x")


def test_calls_without_usage_figures_are_counted_with_unknown_cost(serve: Serve, prices: Prices) -> None:
    client = serve(crew=Silent({"tasks": [FIRST]}), prices=prices)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    found = used(client, kickoff_id)
    assert (found["total_tokens"], found["uncounted_calls"], found["cost_usd"]) == (9, 2, None)
    assert found["by_model"]["small"]["cost_usd"] is None


class Boastful(ScriptedCrew):
    def run(self, job: Job, report: Report) -> Completed | PendingReview:
        models: Any = {f"a model named {number}": 10**300 for number in range(200)}
        report(TokensUsed(10**400, {**models, "prompt_tokens": -5, "completion_tokens": "\r\nX-Evil: 1"}))
        return Completed("x")


def test_the_header_is_small_whatever_a_crew_reports(serve: Serve) -> None:
    client = serve(crew=Boastful({"tasks": [FIRST]}))
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    assert used(client, kickoff_id) == {"total_tokens": MOST, "prompt_tokens": 0, "completion_tokens": 0}
    headers = client.get(f"/status/{kickoff_id}").headers
    assert len(headers["Crew-Usage"].encode("ascii")) <= 1024
    assert sum(len(name) + len(value) + 4 for name, value in headers.items()) < 2048


def test_an_unknown_execution_has_used_nothing_that_is_told(serve: Serve) -> None:
    assert "Crew-Usage" not in serve().get("/status/no-uuid").headers


PRICED = {"id": "research_task", "tokens": 400, "model": "large", "output": "x"}
CHEAP = {"id": "draft_task", "tokens": 100, "model": "provider/small", "output": "y"}
FREE = {"id": "last_task", "tokens": 50, "model": "unknown", "output": "z"}
PRICES = "[large]\ninput = 1\noutput = 10\n[small]\ninput = 0.5\ncached = 0.1\noutput = 2\n"


def by_model(tokens: int, **more: Any) -> dict[str, Any]:
    return {"total_tokens": tokens, "prompt_tokens": 0, "completion_tokens": tokens, **more}


def finished(client: Client) -> dict[str, Any]:
    kickoff_id = client.kickoff()
    eventually(lambda: client.status(kickoff_id).get("status") == "completed", "the end")
    return used(client, kickoff_id)


def test_tokens_are_counted_by_model(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [PRICED, CHEAP, {**PRICED, "id": "last_task"}]})
    assert finished(client) == by_model(900, by_model={"large": by_model(800), "provider/small": by_model(100)})


def test_the_models_of_all_segments_are_counted_once(serve: Serve) -> None:
    client = serve({"inputs": ["topic"], "tasks": [PRICED, {**CHEAP, "human_input": True}, {**FREE, "model": "large"}]})
    kickoff_id = revised_once(client)
    assert used(client, kickoff_id)["by_model"] == {"large": by_model(450), "provider/small": by_model(200)}


@pytest.fixture
def prices(tmp_path: Path) -> Prices:
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    return Prices.read(str(file))


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_a_cost_is_that_of_all_models(serve: Serve, prices: Prices, dialect: str) -> None:
    client = serve({"inputs": ["topic"], "tasks": [PRICED, CHEAP]}, prices=prices, dialect=dialect)
    kickoff_id = client.kickoff()
    last = client.until(kickoff_id, {"spec": "completed", "live": "SUCCESS"}[dialect])
    said = used(client, kickoff_id)
    assert said["cost_usd"] == pytest.approx(0.0042)
    assert said["by_model"]["large"]["cost_usd"] == pytest.approx(0.004)
    assert said["by_model"]["provider/small"]["cost_usd"] == pytest.approx(0.0002)
    assert last.get("usage_metrics", said) == said


def test_an_unpriced_model_has_unknown_cost_and_is_logged_once(
    serve: Serve, prices: Prices, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve({"inputs": ["topic"], "tasks": [PRICED, FREE]}, prices=prices)
    for said in (finished(client), finished(client)):
        assert said["cost_usd"] is None
        assert said["by_model"]["unknown"]["cost_usd"] is None
        assert said["by_model"]["large"]["cost_usd"] == pytest.approx(0.004)
    assert [record.getMessage() for record in caplog.records if "price" in record.getMessage()] == [
        "'unknown' has no price; its cost is unknown"
    ]


def test_tokens_that_no_model_accounts_for_have_no_price(serve: Serve, prices: Prices) -> None:
    client = serve({"inputs": ["topic"], "tasks": [PRICED, {**FIRST, "id": "draft_task"}]}, prices=prices)
    said = finished(client)
    assert (said["total_tokens"], said["cost_usd"], list(said["by_model"])) == (800, None, ["large"])


def test_what_costs_nothing_costs_nothing(serve: Serve, prices: Prices) -> None:
    assert finished(serve({"inputs": ["topic"], "tasks": [{"id": "a", "output": "x"}]}, prices=prices))["cost_usd"] == 0


def test_cached_tokens_have_a_price_of_their_own(prices: Prices) -> None:
    figures = {"total_tokens": 3000, "prompt_tokens": 2000, "completion_tokens": 1000, "cached_prompt_tokens": 500}
    assert prices.cost("small", figures) == pytest.approx((1500 * 0.5 + 500 * 0.1 + 1000 * 2) / 1e6)
    assert prices.cost("large", figures) == pytest.approx((2000 * 1 + 1000 * 10) / 1e6)
    assert prices.cost("small", {**figures, "total_tokens": 3001}) is None


def test_the_headers_of_a_status_stay_small_with_200_models(serve: Serve, prices: Prices) -> None:
    tasks = [{"id": f"task_{each}", "tokens": 2**40 + each, "model": f"m\N{SNOWMAN}{each}"} for each in range(200)]
    client = serve({"inputs": ["topic"], "tasks": tasks}, prices=prices)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    headers = client.get(f"/status/{kickoff_id}").headers
    said = json.loads(headers["Crew-Usage"])
    assert said["total_tokens"] == sum(task["tokens"] for task in tasks)
    assert len(said["by_model"]) > 3
    assert len(headers["Crew-Usage"].encode("ascii")) <= 1024
    assert sum(len(name) + len(value) + 4 for name, value in headers.items()) < 2048
    together = client.get("/statuses", params={"ids": kickoff_id}).json()["statuses"][kickoff_id]
    assert together is None or len(together["usage"]["by_model"]) == 200


@pytest.mark.parametrize("name", ["\r\nX-Evil: 1", "\x7f", "\ud800", "x" * 5000, '"}', "\x00"])
def test_a_model_may_have_any_name(serve: Serve, name: str) -> None:
    client = serve({"inputs": ["topic"], "tasks": [{**PRICED, "model": name}]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    headers = client.get(f"/status/{kickoff_id}").headers
    assert json.loads(headers["Crew-Usage"])["total_tokens"] == 400
    assert "X-Evil" not in headers


def test_the_metrics_have_tokens_and_costs_by_model(serve: Serve, prices: Prices) -> None:
    client = serve({"inputs": ["topic"], "tasks": [PRICED, FREE]}, prices=prices)
    finished(client)
    lines = client.get("/metrics").text.splitlines()
    assert 'crew_service_tokens_total{kind="completion",model="large"} 400.0' in lines
    assert 'crew_service_cost_usd_total{model="large"} 0.004' in lines
    assert not [line for line in lines if line.startswith("crew_service_cost") and "unknown" in line]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("missing.toml", None, "No such file or directory."),
        ("a.toml", "[large", "cannot be read"),
        ("a.json", "{", "cannot be read"),
        ("a.json", "[" * 100_000, "cannot be read"),
        ("a.json", "[]", "name no model."),
        ("a.toml", "", "name no model."),
        ("a.toml", "[large]\ninput = 1", "'large' must have input and output"),
        ("a.toml", "large = 1", "'large' must have input and output"),
        ("a.toml", "[large]\ninput = 1\noutput = -1", "a price for output that is not a number from 0 to 1,000,000."),
        ("a.json", f'{{"m": {{"input": 1, "output": 1{"0" * 400}}}}}', "not a number from 0 to 1,000,000."),
        ("a.json", '{"m": {"input": 1e308, "output": 1}}', "not a number from 0 to 1,000,000."),
        ("a.toml", '[""]\ninput = 0\noutput = 0', "cannot be used: a model has no name."),
        ("a.json", '{"m": {"input": 1, "output": 1}, "m": {"input": 0, "output": 0}}', "'m' occurs twice."),
        ("a.json", '{"large": {"input": "1", "output": 1}}', "a price for input"),
        ("a.toml", "[large]\ninput = nan\noutput = 1", "a price for input"),
        ("a.toml", "[large]\ninput = true\noutput = 1", "a price for input"),
    ],
)
def test_a_bad_prices_file_fails_startup_with_one_sentence(
    tmp_path: Path, name: str, text: str | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main(["serve", "--port", "0", "--prices", str(tmp_path / name)]) == 2
    printed = capsys.readouterr().err
    assert reason in printed
    assert name in printed
    assert printed.count("\n") == 1


def test_the_bundled_prices_and_json_price_files_are_readable(tmp_path: Path) -> None:
    delivered = Path(crew_service.__file__).with_name("prices.toml")
    assert "USD per million tokens" in delivered.read_text()
    assert Prices.read(str(delivered)).cost("openai/gpt-4o", by_model(1_000_000)) == 10
    (tmp_path / "x.json").write_text('{"large": {"input": 1, "output": 2}}')
    assert Prices.read(str(tmp_path / "x.json")).cost("large", by_model(1_000_000)) == 2


def test_the_environment_names_the_prices_too(command: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(PRICES)
    (tmp_path / "x.json").write_text(json.dumps({"inputs": ["topic"], "tasks": [PRICED]}))
    options = ("--token", "a-token-of-20-letters", "--crew", "x.json")
    client = command(*options, environment={"CREW_SERVICE_PRICES": "x.toml"}).client("a-token-of-20-letters")
    assert finished(client)["cost_usd"] == pytest.approx(0.004)


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_kickoff_and_status_name_the_page_of_the_execution(serve: Serve, dialect: str) -> None:
    client = serve(dialect=dialect)
    started = client.post("/kickoff", {"inputs": {"topic": "AI"}})
    view = started.headers["Crew-View"]
    assert view == f"/view?id={started.json()['kickoff_id']}"
    assert client.get(f"/status/{started.json()['kickoff_id']}").headers["Crew-View"] == view
    assert client.get(view).status_code == 200
    assert "Crew-View" not in client.get("/status/no-uuid").headers
