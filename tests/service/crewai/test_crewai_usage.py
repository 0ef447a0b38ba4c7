"""Tokens by task and model, of real crews and Flows: they equal what the models' server has reported."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from engine_stub import CREWS, EngineStub
from openai_server import USAGE, OpenAI, environment

from crew_service.engine.crew import Completed, TokensUsed

Start = Callable[..., Command]
TOKEN = "a-token-of-20-letters"
CALL = USAGE["total_tokens"]
SHARED = ("costly", "CostlyFlow", "silent", "SilentFlow", "Each", "retried", "converted", "hidden")


@pytest.fixture(scope="module")
def only_server() -> Iterator[OpenAI]:
    server = OpenAI()
    yield server
    server.close()


@pytest.fixture
def server(only_server: OpenAI) -> OpenAI:
    """The models' server, as if nobody had asked it anything yet."""
    only_server.__dict__.update(answer="All that there is to say.", usage=USAGE, first=[], tools={}, asked=[])
    return only_server


@pytest.fixture(scope="module")
def service(only_server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """One service for all crews that nobody kills: to import CrewAI takes seconds."""
    served = [part for name in SHARED for part in ("--crew", f"{name.lower()}={CREWS / 'costly.py'}:{name}")]
    service = Command(tmp_path_factory.mktemp("usage"), "--token", TOKEN, *served, environment=environment(only_server))
    yield service
    service.kill()


def client_of(service: Command, crew: str) -> Client:
    return service.client(TOKEN, crew.lower())


def details(client: Client, some_id: str) -> dict[str, Any]:
    return client.get(f"/executions/{some_id}").json()


def reached(client: Client, some_id: str, state: str) -> dict[str, Any]:
    return eventually(lambda: (found := details(client, some_id))["state"] == state and found, state)


def by_task(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {
        task["task_id"]: {name: used["total_tokens"] for name, used in task["usage"].get("by_model", {}).items()}
        for task in found["tasks"]
        if task["usage"]
    }


def asked(server: OpenAI) -> dict[str, int]:
    """What the server has reported of each model."""
    models = [request["model"] for request in server.asked]
    return {model: models.count(model) * CALL for model in set(models)}


def counted(found: dict[str, Any]) -> dict[str, int]:
    return {name: used["total_tokens"] for name, used in found["usage"]["by_model"].items()}


def test_usage_by_task_and_model_covers_a_revision_and_tools(service: Command, server: OpenAI) -> None:
    server.tools = {"add": {"a": 3, "b": 4}}
    client = client_of(service, "costly")
    kickoff_id = client.kickoff()
    reached(client, kickoff_id, "pending")
    client.resume(kickoff_id, approve=False, feedback="shorter", task_id="draft")
    eventually(lambda: len(details(client, kickoff_id)["rounds"]) == 2, "the second round")
    client.resume(kickoff_id, task_id="draft")
    found = reached(client, kickoff_id, "completed")
    assert counted(found) == asked(server)
    assert found["usage"]["total_tokens"] == len(server.asked) * CALL
    assert "uncounted_calls" not in found["usage"]
    tasks = by_task(found)
    assert list(tasks) == ["left", "right", "draft", "last"]
    assert tasks["left"] == tasks["right"] == tasks["last"] == {"gpt-4o-mini": 2 * CALL}
    assert tasks["draft"] == {"gpt-4o": asked(server)["gpt-4o"]}
    assert json.loads(client.get(f"/status/{kickoff_id}").headers["Crew-Usage"]) == found["usage"]


def test_calls_of_models_without_figures_are_counted_as_calls(service: Command, server: OpenAI) -> None:
    server.usage = None
    client = client_of(service, "CostlyFlow")
    kickoff_id = client.kickoff()
    reached(client, kickoff_id, "pending")
    client.post("/resume", {"execution_id": kickoff_id, "task_id": "check", "outcome": "yes"})
    used = reached(client, kickoff_id, "completed")["usage"]
    assert (used["total_tokens"], used["uncounted_calls"]) == (0, len(server.asked))
    assert {name: model["uncounted_calls"] for name, model in used["by_model"].items()} == {
        "gpt-4o-mini": 2,
        "gpt-4o": 1,
    }


def test_a_call_only_model_is_counted_in_calls_without_figures(service: Command, server: OpenAI) -> None:
    client = client_of(service, "silent")
    used = reached(client, client.kickoff(), "completed")["usage"]
    assert counted({"usage": used}) == {**asked(server), "quiet": 0, "behind": 0}
    calls = {name: model.get("uncounted_calls") for name, model in used["by_model"].items()}
    assert calls == {"gpt-4o": None, "quiet": 1, "behind": 1}
    assert (used["total_tokens"], used["uncounted_calls"]) == (len(server.asked) * CALL, 2)


def test_a_flows_call_only_model_is_counted_in_calls_too(service: Command, server: OpenAI) -> None:
    client = client_of(service, "SilentFlow")
    used = reached(client, client.kickoff(), "completed")["usage"]
    calls = {name: model.get("uncounted_calls") for name, model in used["by_model"].items()}
    assert (calls, used["uncounted_calls"]) == ({"quiet": 1, "late": 1}, 2)


def test_calls_hidden_by_crewai_are_counted_or_reported_missing(service: Command, server: OpenAI) -> None:
    def used(crew: str) -> dict[str, tuple[int, int]]:
        server.asked.clear()
        client = client_of(service, crew)
        found = reached(client, client.kickoff(), "completed")["usage"]
        return {
            name: (model["total_tokens"], model.get("uncounted_calls", 0)) for name, model in found["by_model"].items()
        }

    assert used("each") == {"gpt-each": (2 * CALL, 0)} == {name: (n, 0) for name, n in asked(server).items()}
    assert used("hidden") == {"mixed": (0, 1), "gpt-cascade": (CALL, 0), "cascade": (0, 1)}
    server.first, server.answer = ['{"topic": 1}'], '{"topic": "tea"}'
    assert used("retried") == {"gpt-retried": (CALL, 1)}
    assert asked(server) == {"gpt-retried": 2 * CALL}
    server.answer, server.tools = "Prose.", {"Topic": {"topic": "tea"}}
    assert used("converted") == {"gpt-converted": (asked(server)["gpt-converted"], 0)}
    assert len(server.asked) == 2


def test_tokens_of_a_thread_or_a_failed_call_count_once(play: Callable[..., EngineStub]) -> None:
    crew = play("odd", "costly.py")
    outcome = crew.segment()
    assert isinstance(outcome, Completed)
    assert crew.used["total_tokens"] == 2 * CALL  # the first call failed after its tokens were used


def test_nothing_is_counted_twice_or_lost_over_a_kill_9(command: Start, server: OpenAI, tmp_path: Path) -> None:
    interrupted = ("--token", TOKEN, "--crew", f"{CREWS / 'costly.py'}:interrupted")
    running = command(*interrupted, environment=environment(server))
    kickoff_id = running.client(TOKEN).kickoff()
    eventually(
        lambda: (
            by_task(details(running.client(TOKEN), kickoff_id))
            == {"first": {"gpt-4o": CALL}, "second": {"gpt-4o": CALL}}
        ),
        "the answer of the second task",
    )
    with sqlite3.connect(tmp_path / "crew-service.db") as database:
        eventually(lambda: database.execute("SELECT answer FROM journal").fetchall(), "its record")
    running.kill()
    (tmp_path / "go").touch()
    client = command(*interrupted, environment=environment(server)).client(TOKEN)
    found = reached(client, kickoff_id, "completed")
    assert counted(found) == asked(server) == {"gpt-4o": 2 * CALL}
    assert by_task(found) == {"first": {"gpt-4o": CALL}, "second": {"gpt-4o": CALL}}


@pytest.mark.long
def test_methods_and_models_of_a_flow_with_a_crew_inside(service: Command, server: OpenAI) -> None:
    client = client_of(service, "CostlyFlow")
    kickoff_id = client.kickoff()
    reached(client, kickoff_id, "pending")
    answer = client.post("/resume", {"execution_id": kickoff_id, "task_id": "check", "outcome": "yes"})
    assert answer.status_code == 200, answer.text
    found = reached(client, kickoff_id, "completed")
    assert counted(found) == asked(server) == {"gpt-4o-mini": 2 * CALL, "gpt-4o": CALL}
    assert by_task(found) == {"research": {"gpt-4o-mini": 2 * CALL}, "check": {}, "write": {"gpt-4o": CALL}}
    assert (found["rounds"][0]["outcome"], found["rounds"][0]["is_approve"]) == ("yes", None)
    assert found["rounds"][0]["outcomes"] == ["yes", "no"]
    assert found["rounds"][0]["question"] == "Go on?"


def test_a_model_that_only_counts_itself_is_counted(play: Callable[..., EngineStub]) -> None:
    crew = play("two_gates")
    crew.segment()
    crew.revise("shorter")
    crew.approve()
    crew.approve()
    used: dict[str, int] = {}
    for progress in crew.seen:
        for name, models in progress.by_task.items() if isinstance(progress, TokensUsed) else ():
            assert list(models) == ["scribe"]
            used[name] = used.get(name, 0) + models["scribe"]["total_tokens"]
    assert used == {"outline": 22, "draft": 11, "final": 11}
