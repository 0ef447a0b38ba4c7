"""A crew that has failed goes on from the task that failed: nothing that has finished is paid for again."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from engine_stub import CREWS
from four_tasks import asked_for, next_step
from openai_server import USAGE, OpenAI, environment
from sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.row("S61")]
TOKEN = "a-token-of-20-letters"


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAI]:
    server = OpenAI()
    server.script = next_step
    yield server
    server.close()


@pytest.fixture(scope="module")
def service(server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    crews = [f"{name.lower()}={CREWS / 'failing.py'}:{name}" for name in ("four", "reviewed", "Steps", "Locked")]
    given = [*(part for crew in crews for part in ("--crew", crew)), "--tool", "four/mail=once"]
    folder = tmp_path_factory.mktemp("continued")
    variables = {**environment(server), "CREWAI_STORAGE_DIR": str(folder / "stored")}
    service = Command(folder, "--token", TOKEN, *given, environment=variables)
    yield service
    service.kill()


class Case:
    """A chain of executions, whose crew fails in each of some ways once."""

    def __init__(self, client: Client, server: OpenAI, folder: Path, name: str, *fails: str) -> None:
        self.client, self.server, self.name = client, server, name
        self.log, trouble = folder / f"{name}.log", folder / f"{name}.trouble"
        trouble.write_text(" ".join(fails))
        self.inputs = {"case": name, "log": str(self.log), "trouble": str(trouble)}
        self.id = self.start()

    def start(self, **more: Any) -> str:
        answer = self.client.post("/kickoff", {"inputs": self.inputs, **more})
        assert answer.status_code == 200, answer.text
        self.id = answer.json()["kickoff_id"]
        return self.id

    def go_on(self) -> str:
        return self.start(continueFrom=self.id)

    def ended(self) -> dict[str, Any]:
        def over() -> dict[str, Any] | None:
            found = self.client.status(self.id)
            return found if found["status"] in ("completed", "error") else None

        return eventually(over, self.name)

    @property
    def models(self) -> Counter[str]:
        return Counter(name for name, case in map(asked_for, list(self.server.asked)) if case == self.name)

    @property
    def tools(self) -> list[str]:
        return [json.loads(line)["tool"].split()[0] for line in self.log.read_text().splitlines()]


ONCE_EACH = Counter(first=1, second=1, third=3, fourth=1)
# How the third task fails; how often its model was asked in all, and what its tools did in all.
FROM_OUTSIDE = [
    ("exit", "SystemExit: no licence", 3, ["look", "look", "mail"]),
    ("callback", "OSError: no one listens", 3, ["look", "mail"]),
    ("kill kill kill kill", "was killed by signal 9", 3, ["look", "mail"]),
]


@pytest.mark.long
@pytest.mark.parametrize(("fails", "error", "third", "tools"), FROM_OUTSIDE, ids=lambda value: str(value)[:4])
def test_an_externally_ended_task_continues_with_its_journal(
    service: Command, server: OpenAI, tmp_path: Path, fails: str, error: str, third: int, tools: list[str]
) -> None:
    case = Case(service.client(TOKEN, "four"), server, tmp_path, f"outside-{fails[:4]}", *fails.split())
    first = case.id
    assert error in case.ended()["error"]
    assert case.models["first"] == case.models["second"] == 1
    paid = case.models["third"]
    case.go_on()
    ended = case.ended()
    assert ended["status"] == "completed", ended
    assert [task["output"] for task in ended["result"]["tasks"]] == [f"{name} done" for name in ONCE_EACH]
    assert case.models == ONCE_EACH | {"third": third}
    assert case.tools == tools
    told = case.client.get(f"/executions/{case.id}").json()
    assert told["continued_from"] == first
    assert told["chain_usage"]["total_tokens"] == (3 + third) * USAGE["total_tokens"]
    kinds = Counter((step["kind"], step["from_journal"]) for step in told["tasks"][2]["steps"])
    assert kinds["model", True] == paid, "what was paid for before is seen, and where it comes from"
    assert kinds["model", False] == third - paid
    before = case.client.get(f"/executions/{first}").json()["usage"]["total_tokens"]
    assert before + told["usage"]["total_tokens"] == told["chain_usage"]["total_tokens"]


def test_a_failed_model_call_is_repeated_and_nothing_before_it(
    service: Command, server: OpenAI, tmp_path: Path
) -> None:
    def refuses(body: dict[str, Any]) -> bool:
        name, case = asked_for(body)
        return (name, case) == ("third", "model") and body["messages"][-1]["role"] == "tool"

    server.refuses = refuses
    case = Case(service.client(TOKEN, "four"), server, tmp_path, "model")
    assert "overloaded" in case.ended()["error"]
    server.refuses = lambda body: False
    paid = case.models
    case.go_on()
    assert case.ended()["status"] == "completed"
    assert case.models - paid == Counter(third=2, fourth=1), "the first answer of the third task is known"
    assert case.tools == ["look", "mail"]


def test_a_tool_whose_failure_ended_the_task_runs_again(service: Command, server: OpenAI, tmp_path: Path) -> None:
    from crewai import Agent

    if "tool_failure_policy" not in Agent.model_fields:
        pytest.skip("this CrewAI hands all failures of tools to the model")
    case = Case(service.client(TOKEN, "four"), server, tmp_path, "raise", "raise")
    assert "no connection" in case.ended()["error"]
    case.go_on()
    assert case.ended()["status"] == "completed"
    assert (case.models, case.tools) == (ONCE_EACH, ["look", "look", "mail"])


def test_a_refused_answer_restarts_its_task_except_run_once_tools(
    service: Command, server: OpenAI, tmp_path: Path
) -> None:
    case = Case(service.client(TOKEN, "four"), server, tmp_path, "refused", "refuse", "refuse")
    for _ in range(2):
        assert "too plain" in case.ended()["error"]
        case.go_on()
    assert case.ended()["status"] == "completed"
    assert case.models == ONCE_EACH | {"third": 9}
    assert case.tools == ["look", "mail", "look", "look"]


def test_feedback_on_a_draft_survives_when_its_task_restarts(service: Command, server: OpenAI, tmp_path: Path) -> None:
    case = Case(service.client(TOKEN, "reviewed"), server, tmp_path, "rounds")
    case.client.until(case.id, "pending")
    Path(case.inputs["trouble"]).write_text("refuse")
    case.client.resume(case.id, approve=False, feedback="Shorter.", task_id="third")
    assert "too plain" in case.ended()["error"]
    case.go_on()
    case.client.until(case.id, "pending")
    assert "Shorter." in json.dumps(server.asked[-1]["messages"])
    assert case.models["first"] == 1
    case.client.resume(case.id, task_id="third")
    assert case.ended()["status"] == "completed"


@pytest.mark.row("S61", "S55")
@pytest.mark.parametrize(
    ("fails", "third"),
    sampled([("exit", 3), ("method", 3), ("refuse", 6)], 3),
)
def test_a_flow_goes_on_from_its_last_finished_method(
    service: Command, server: OpenAI, tmp_path: Path, fails: str, third: int
) -> None:
    case = Case(service.client(TOKEN, "steps"), server, tmp_path, f"flow-{fails}", fails)
    assert case.ended()["status"] == "error"
    assert case.id in with_a_state(service)
    failed = case.id
    case.go_on()
    assert failed not in with_a_state(service), "it is handed on, not copied"
    ended = case.ended()
    assert ended["status"] == "completed", ended
    assert ended["result"]["output"] == f"{case.id} first second third fourth done", "the state is its own"
    assert case.models == ONCE_EACH | {"third": third}


def with_a_state(service: Command) -> set[str]:
    """Return the ids of the executions that have a Flow's state in the database."""
    with closing(sqlite3.connect(service.log.parent / "crew-service.db")) as connection:
        return {some_id for (some_id,) in connection.execute("SELECT execution_id FROM flow_states")}


def test_a_flow_that_cannot_continue_after_a_method_is_refused(service: Command) -> None:
    client = service.client(TOKEN, "locked")
    first = client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
    assert client.until(first, "error")["error"] == "OSError: no disk"
    refused = client.post("/kickoff", {"inputs": {}, "continueFrom": first})
    reason = "the return value (lock) of its finished method 'first' cannot be stored"
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        f"Execution {first} cannot be continued: {reason}.",
    )
