"""Row S57: an approved call finds what earlier calls left in their process, or it is not made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from engine_stub import CREWS
from openai_server import OpenAI, environment
from test_crewai_asks import Mails, answer, asked, called, tool_call
from test_crewai_journal import TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.row("S57")]
NAMES = ("crew", "team", "Method", "two", "reviewed", "TwoTasks", "TwoMethods")
RULES = """
[tool.airflow-crew-service]
flow_tools = ["add", "add_later", "add_all", "fail", "pay"]
tools = {add = "prepare", "add_[el]*" = "prepare", pay = "approve"}
"""
ITEMS = ("tea", "milk", "tea")
PAY: tuple[str, dict[str, Any]] = ("pay", {})


def put_in(folder: Path, settings: str) -> None:
    for name in ("asking.py", "scribe.py", "shop.py"):
        (folder / name).write_text((CREWS / name).read_text())
    (folder / "pyproject.toml").write_text(settings)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAI]:
    server = OpenAI()
    yield server
    server.close()


@pytest.fixture(scope="module")
def shop(server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Client]]:
    folder = tmp_path_factory.mktemp("shop")
    put_in(folder, RULES)
    crews = [part for name in NAMES for part in ("--crew", f"{name.lower()}=shop.py:{name}")]
    service = Command(folder, "--token", TOKEN, *crews, environment=environment(server))
    yield lambda name: service.client(TOKEN, name.lower())
    service.kill()


def one_by_one(body: dict[str, Any]) -> dict[str, Any]:
    return called(body, [*(("add", {"item": item}) for item in ITEMS), PAY])


def later(body: dict[str, Any]) -> dict[str, Any]:
    return called(body, [*(("add_later", {"item": item}) for item in ITEMS), PAY])


def by_a_tool(body: dict[str, Any]) -> dict[str, Any]:
    return called(body, [("add_each", {"items": list(ITEMS)}), PAY])


def at_once(body: dict[str, Any]) -> dict[str, Any]:
    if any(turn["role"] == "tool" for turn in body["messages"]):
        return called(body, [PAY] * (len(ITEMS) + 1))
    calls = [tool_call(f"call{place}", "add", {"item": item}) for place, item in enumerate(ITEMS)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def by_another(body: dict[str, Any]) -> dict[str, Any]:
    if "delegate_work_to_coworker" not in json.dumps(body["tools"]):
        return called(body, [("add", {"item": item}) for item in ITEMS])
    work = {"task": "Fill the cart. Case: other .", "context": "c", "coworker": "Clerk"}
    return called(body, [("delegate_work_to_coworker", work), PAY])


@pytest.mark.long
@pytest.mark.parametrize(
    ("crew", "script"),
    [
        ("crew", one_by_one),
        ("crew", later),
        ("crew", at_once),
        ("crew", by_a_tool),
        ("team", by_another),
        ("Method", one_by_one),
    ],
)
def test_an_approved_call_finds_what_prepared_for_it(
    shop: Callable[[str], Client], server: OpenAI, tmp_path: Path, crew: str, script: Any
) -> None:
    server.script, server.asked = script, []
    case = Mails(shop(crew), tmp_path, f"{crew}-{script.__name__}")
    status = asked(case)
    assert (status["ask"]["tool"], status["ask"]["earlier_calls"]) == ("pay", 0)
    chats, first = len(server.asked), case.logged("put")
    assert sorted(first) == sorted(ITEMS)
    assert answer(case, status, "approve").ok
    assert case.ended()["status"] == "completed", case.ended()
    steps = case.client.get(f"/executions/{case.id}/steps").json()["steps"]
    given = [json.loads(step["arguments"]) for step in steps if step["kind"] == "tool"]
    begun = [arguments["item"] for arguments in given if "item" in arguments]
    again = case.logged("put")[len(first) :]
    assert again == begun, "the calls are made again in the order of their first start"
    assert case.logged("paid") == [again], "the approved call finds the whole cart, once"
    assert len(server.asked) == chats + 1, "no model is asked again"


@pytest.mark.long
def test_a_call_that_cannot_be_prepared_for_is_not_made(
    shop: Callable[[str], Client], server: OpenAI, tmp_path: Path
) -> None:
    server.script = lambda body: called(body, [("add", {"item": "the last one"}), PAY])
    raising = Mails(shop("crew"), tmp_path, "raising")
    status = asked(raising)
    assert answer(raising, status, "approve").ok
    ended = raising.ended()
    assert (ended["status"], raising.logged("paid")) == ("error", []), ended
    assert "The tool add prepares for later calls" in ended["error"], ended
    assert "LookupError: sold out" in ended["error"], ended
    server.script = lambda body: called(body, [("add_all", {"items": list(ITEMS)}), PAY])
    within = Mails(shop("crew"), tmp_path, "within")  # `add_all` has no rule, so it is not run again
    status = asked(within)
    assert answer(within, status, "approve").ok
    ended = within.ended()
    assert (ended["status"], within.logged("paid")) == ("error", []), ended
    assert "the call of add that prepared for it was not made again" in ended["error"], ended


def filled_first(body: dict[str, Any]) -> dict[str, Any]:
    """Fill the cart in the first task, which is the only one that has no context, and pay in the second."""
    is_first = "Fill. Case" in json.dumps(body["messages"])
    return called(body, [("add", {"item": item}) for item in ITEMS] if is_first else [PAY])


def killed_later(body: dict[str, Any]) -> dict[str, Any]:
    is_first = "Fill. Case" in json.dumps(body["messages"])
    return called(body, [("add", {"item": "tea"})] if is_first else [("fail", {}), PAY])


@pytest.mark.long
@pytest.mark.parametrize(
    ("crew", "script"),
    [("two", filled_first), ("two", killed_later), ("reviewed", filled_first), ("TwoTasks", filled_first)],
)
def test_an_approved_call_finds_what_a_finished_task_prepared(
    shop: Callable[[str], Client], server: OpenAI, tmp_path: Path, crew: str, script: Any
) -> None:
    server.script = script
    case = Mails(shop(crew), tmp_path, f"{crew}-{script.__name__}")
    if crew == "reviewed":
        draft = case.client.until(case.id, "pending")
        assert case.client.resume(case.id, task_id=draft["task_id"]).ok
    assert answer(case, asked(case, 2 if crew == "reviewed" else 1), "approve").ok
    assert case.ended()["status"] == "completed", case.ended()
    [found] = case.logged("paid")
    assert found == (["tea"] if script is killed_later else list(ITEMS)), "once each, in order"


def test_nothing_is_paid_when_a_finished_methods_calls_are_unrepeatable(
    shop: Callable[[str], Client], tmp_path: Path
) -> None:
    case = Mails(shop("TwoMethods"), tmp_path, "methods")
    assert answer(case, asked(case), "approve").ok
    ended = case.ended()
    assert (ended["status"], case.logged("paid")) == ("error", []), ended
    assert "the call of add that prepared for it was made by 'fill', which has finished" in ended["error"]


def test_a_round_finds_what_the_earlier_one_prepared(
    shop: Callable[[str], Client], server: OpenAI, tmp_path: Path
) -> None:
    def by_round(body: dict[str, Any]) -> dict[str, Any]:
        said = json.dumps(body["messages"])
        return called(body, [PAY] if "Buy. Case" in said or "Add no more" in said else [("add", {"item": "tea"})])

    server.script = by_round
    case = Mails(shop("reviewed"), tmp_path, "rounds")
    draft = case.client.until(case.id, "pending")
    assert case.client.resume(case.id, task_id=draft["task_id"], approve=False, feedback="Add no more, pay.").ok
    assert answer(case, asked(case, 2), "approve").ok
    assert eventually(lambda: case.logged("paid"), "the payment") == [["tea"]]


def test_a_preparing_call_that_raises_asks_nobody(
    shop: Callable[[str], Client], server: OpenAI, tmp_path: Path
) -> None:
    server.script = lambda body: called(body, [("add", {"item": "nothing"}), ("add", {"item": "tea"}), PAY])
    case = Mails(shop("crew"), tmp_path, "failing")
    status = asked(case)
    assert status["ask"]["tool"] == "pay"
    assert answer(case, status, "approve").ok
    assert case.ended()["status"] == "completed"
    assert case.logged("paid") == [["tea"]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ('{pay = "prepare", "p*" = "approve"}', "its rules pay=prepare and p*=approve are for the same tool (pay)"),
        ('{"*" = "prepare", add = "once"}', "its rules *=prepare and add=once are for the same tool (add)"),
    ],
)
@pytest.mark.parametrize("crew", ["crew", "Method"])
def test_a_preparing_tool_may_not_be_a_run_once_tool(
    tmp_path: Path, server: OpenAI, tools: str, reason: str, crew: str
) -> None:
    put_in(tmp_path, f'[tool.airflow-crew-service]\nflow_tools = ["add", "pay"]\ntools = {tools}\n')
    ended = Command.refused(tmp_path, "--token", TOKEN, "--crew", f"shop.py:{crew}", environment=environment(server))
    assert (ended.returncode, ended.stderr.count("\n"), reason in ended.stderr) == (2, 1, True), ended.stderr
