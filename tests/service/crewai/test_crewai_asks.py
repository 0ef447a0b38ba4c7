"""A person in the middle of a task of CrewAI: approves a call, answers an agent, says what became of a call."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from crew_client import Client, Command, eventually
from engine_stub import CREWS
from openai_server import OpenAI, environment
from test_crewai_journal import FLOW_TOOLS, KINDS, TOKEN, Case, case_of, options

from crew_service.engine.drafts import draft_sha256

pytestmark = pytest.mark.slow
OBSERVED = re.compile(r"\nObservation: (?!\s*$)")
ASKING = CREWS / "asking.py"


def called(body: dict[str, Any], calls: list[tuple[str, dict[str, Any]]], answer: str = "All done") -> dict[str, Any]:
    """Return the next of the calls, in the way that the chat allows, by how many results it has; then the answer."""
    turns = body["messages"]
    done = sum(turn["role"] == "tool" for turn in turns)
    if not body.get("tools"):
        done = sum(len(OBSERVED.findall(str(turn["content"]))) for turn in turns if turn["role"] == "assistant")
    if done >= len(calls):
        return {"role": "assistant", "content": f"Thought: I know\nFinal Answer: {answer}"}
    name, arguments = calls[done]
    if not body.get("tools"):
        content = f"Thought: I go on\nAction: {name}\nAction Input: {json.dumps(arguments)}"
        return {"role": "assistant", "content": content}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call(f"call{done}", name, arguments)]}


def tool_call(some_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": some_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def notes(body: dict[str, Any]) -> dict[str, Any]:
    case = case_of(body)
    calls = [(name, {"text": f"{place} of {case}"}) for place, name in enumerate(("take_note", "take_note", "sign"))]
    return called(body, calls)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAI]:
    server = OpenAI()
    server.script = notes
    yield server
    server.close()


@pytest.fixture(scope="module")
def service(server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    rules = ("--tool", "take_*=approve", *FLOW_TOOLS)
    service = Command(tmp_path_factory.mktemp("asks"), *options(*KINDS), *rules, environment=environment(server))
    yield service
    service.kill()


def asked(case: Case, number: int = 1) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        status = case.client.status(case.id)
        assert status["status"] in ("running", "pending"), status
        return status if status.get("ask", {}).get("number") == number else None

    return dict(eventually(found, f"question {number}"))


def answer(case: Case, status: dict[str, Any], outcome: str, text: str = "", **more: Any) -> requests.Response:
    body = {"execution_id": case.id, "task_id": status["task_id"], "outcome": outcome, "human_feedback": text}
    return case.client.post("/resume", {**body, **more})


def told(case: Case, server: OpenAI) -> str:
    """Return all that the model was sent in the last chat of a case."""
    return json.dumps([body for body in server.asked if case_of(body) == case.name][-1]["messages"])


# `make test` tries each kind in one of two tests, and kills it at one point; `make long` tries all.
OFTEN = ("native", "words")
KILLED_OFTEN = {"beside": 3.5, "Async": 1}


@pytest.mark.row("S33")
@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS]
)
def test_an_approved_call_runs_and_the_agent_learns_of_denials(
    service: Command, server: OpenAI, tmp_path: Path, kind: str
) -> None:
    case = Case(service.client(TOKEN, kind.lower()), tmp_path, f"both-{kind}")
    first = asked(case)
    assert first["ask"] == {
        "kind": "tool",
        "agent": "Clerk",
        "tool": "take_note",
        "arguments": {"text": f"0 of {case.name}"},
        "number": 1,
        "earlier_calls": 0,
    }
    assert case.logged("tool") == []
    assert answer(case, first, "approve").ok
    second = asked(case, 2)
    assert case.logged("tool") == [f"0 of {case.name}"]
    assert answer(case, second, "deny", "Not this one.").ok
    assert case.ended()["status"] == "completed"
    assert case.logged("tool") == [f"0 of {case.name}", f"2 of {case.name}"]
    assert "denied this call of the tool take_note, so it was not run. Reason: Not this one." in told(case, server)
    assert case.models(server) == 3
    steps = case.client.get(f"/executions/{case.id}/steps").json()["steps"]
    assert [(step["name"], step["state"]) for step in steps if step["kind"] == "tool"] == [
        ("take_note", "done"),
        ("take_note", "done"),
        ("sign", "done"),
    ]


@pytest.mark.row("S1")
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        pytest.param(*case, marks=() if case in KILLED_OFTEN.items() else pytest.mark.long)
        for case in itertools.product(KINDS, (1, 3.5))
    ],
)
def test_a_killed_process_runs_no_call_unapproved_or_twice(
    service: Command, server: OpenAI, tmp_path: Path, kind: str, point: float
) -> None:
    """Before the first question, or in the second call, which was approved."""
    case = Case(service.client(TOKEN, kind.lower()), tmp_path, f"killed-{kind}-{point}", dies_after=point)
    notes = [f"{number} of {case.name}" for number in range(3)]
    assert answer(case, asked(case), "approve").ok
    assert answer(case, asked(case, 2), "approve").ok
    if point == 3.5:
        unknown = asked(case, 3)
        assert (unknown["ask"]["kind"], unknown["ask"]["arguments"]) == ("unknown_outcome", {"text": notes[1]})
        assert answer(case, unknown, "done", "noted by hand").ok
    assert case.ended()["status"] == "completed"
    assert case.logged("tool") == notes
    assert ("noted by hand" in told(case, server)) is (point == 3.5)
    assert case.models(server) == 3


@pytest.mark.parametrize("kind", ["native", "words"])
def test_a_call_that_raises_has_an_unknown_outcome(service: Command, server: OpenAI, tmp_path: Path, kind: str) -> None:
    case = Case(service.client(TOKEN, kind), tmp_path, f"raises-{kind}", fails="0")
    assert answer(case, asked(case), "approve").ok
    unknown = asked(case, 2)
    assert "it raised ValueError: no answer ***" in unknown["question"]
    assert server.environment["OPENAI_API_KEY"] not in json.dumps(unknown)
    assert answer(case, unknown, "run_again").ok
    again = asked(case, 3)
    assert again["ask"]["kind"] == "unknown_outcome"
    assert answer(case, again, "fail").ok
    assert ": it raised ValueError: no answer ***. It was not run again" in case.ended()["error"]
    assert case.logged("tool") == [f"0 of {case.name}"] * 2


# --- two crews and a Flow whose tools the model chooses ---


@pytest.fixture
def asking(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Client, Client]]:
    """Serve a crew and a Flow of a project that may let its agents ask; the model follows a script."""

    def start(
        script: Callable[[dict[str, Any]], dict[str, Any]],
        settings: str = "",
        served: tuple[str, str] = ("crew", "Method"),
    ) -> tuple[Client, Client]:
        for name in ("asking.py", "scribe.py"):
            (tmp_path / name).write_text((CREWS / name).read_text())
        (tmp_path / "pyproject.toml").write_text(f"[tool.airflow-crew-service]\n{settings}\n")
        monkeypatch.setattr(server, "script", script)  # other tests share the server, in any order
        names = [name.lower() for name in served]
        crews = [part for name in served for part in ("--crew", f"{name.lower()}=asking.py:{name}")]
        running = command("--token", TOKEN, *crews, environment=environment(server))
        return running.client(TOKEN, names[0]), running.client(TOKEN, names[1])

    return start


class Mails(Case):
    def __init__(self, client: Client, folder: Path, name: str) -> None:
        self.name, self.client, self.log = name, client, folder / f"{name}.log"
        self.id = client.post("/kickoff", {"inputs": {"case": name, "log": str(self.log)}}).json()["kickoff_id"]


APPROVE = 'tools = {"Send mail" = "approve"}\nflow_tools = ["send_mail", "Send mail"]'


@pytest.mark.long
def test_identical_and_parallel_calls_are_asked_one_after_another(
    asking: Callable[..., tuple[Client, Client]], server: OpenAI, tmp_path: Path
) -> None:
    def script(body: dict[str, Any]) -> dict[str, Any]:
        if "beside" not in case_of(body) or any(turn["role"] == "tool" for turn in body["messages"]):
            return called(body, [("send_mail", {"to": "ann"})] * 2)
        calls = [tool_call(f"call{name}", "send_mail", {"to": name}) for name in ("ann", "bob")]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    crew, method = asking(script, APPROVE)
    for client in (crew, method):
        for name, mails in (("twice", ["ann 1", "ann 1"]), ("beside", ["ann 1", "bob 1"])):
            case = Mails(client, tmp_path, f"{name}-{client.url.rpartition('/')[2]}")
            assert answer(case, asked(case), "approve").ok
            second = asked(case, 2)
            assert second["ask"]["kind"] == "tool", second["question"]
            assert answer(case, second, "approve").ok
            assert case.ended()["status"] == "completed", case.ended()
            assert sorted(case.logged("tool")) == mails


@pytest.mark.long
def test_changed_arguments_are_checked_while_pending_and_then_used(
    asking: Callable[..., tuple[Client, Client]], tmp_path: Path
) -> None:
    crew, method = asking(lambda body: called(body, [("send_mail", {"to": "ann"})]), APPROVE)
    case = Mails(crew, tmp_path, "changed")
    status = asked(case)

    def changed(arguments: Any) -> dict[str, Any]:
        return {"edited_output": {"text": json.dumps(arguments), "output_sha256": draft_sha256(status["task_output"])}}

    for wrong in ({"copies": 1}, {"to": "bob", "copies": "many"}, {"to": "bob", "coppies": 2}):
        refused = answer(case, status, "approve", **changed(wrong))
        assert (refused.status_code, "send_mail does not accept" in refused.json()["detail"]) == (400, True), wrong
        assert case.client.status(case.id) == status
    assert answer(case, status, "approve", **changed({"to": "bob", "copies": 2})).ok
    assert case.ended()["status"] == "completed"
    assert case.logged("tool") == ["bob 2"]
    nested = Mails(method, tmp_path, "nested")  # its tool is unknown until then: the question carries its schema
    status = asked(nested)
    for wrong in ({"copies": 1}, {"to": "bob", "copies": "many"}, {"to": "bob", "coppies": 2}):
        refused = answer(nested, status, "approve", **changed(wrong))
        assert (refused.status_code, "send_mail does not accept" in refused.json()["detail"]) == (400, True), wrong
        assert nested.client.status(nested.id) == status
    assert answer(nested, status, "approve", **changed({"to": "bob", "copies": 2})).ok
    assert nested.ended()["status"] == "completed"
    assert nested.logged("tool") == ["bob 2"]


@pytest.mark.long
@pytest.mark.row("S56")
@pytest.mark.parametrize(
    "settings",
    [
        'tools = {pay = "approve"}\nflow_tools = ["pay"]',
        # The rule is for the name that is declared: a tool with a similar name must not run without it.
        'tools = {"Send parcel" = "approve"}\nflow_tools = ["Send Mail", "Send parcel"]',
    ],
)
def test_a_flow_calls_no_tool_that_it_has_not_declared(
    asking: Callable[..., tuple[Client, Client]], tmp_path: Path, settings: str
) -> None:
    flows = asking(lambda body: called(body, [("send_mail", {"to": "ann"})]), settings, ("Method", "Parcel"))
    for flow, tool in zip(flows, ("send_mail", "send_parcel"), strict=True):
        case = Mails(flow, tmp_path, tool)
        ended = case.ended()
        assert (ended["status"], f"The tool {tool} was not run" in ended["error"]) == ("error", True), ended
        assert case.logged("tool") == []


def test_delegated_and_code_called_tools_run_only_what_was_approved(
    asking: Callable[..., tuple[Client, Client]], tmp_path: Path
) -> None:
    delegated = {"task": "Send mails. Case: delegated .", "context": "c", "coworker": "Clerk"}

    def script(body: dict[str, Any]) -> dict[str, Any]:
        if "send_mail" in json.dumps(body["tools"]):
            return called(body, [("send_mail", {"to": "ann"}), ("send_mail", {"to": "bob"})])
        return called(body, [("delegate_work_to_coworker", delegated)])

    team, parcel = asking(script, 'tools = {"*" = "approve"}\nflow_tools = ["send_parcel"]', ("team", "Parcel"))
    case = Mails(team, tmp_path, "delegated")
    for number, tool in enumerate(("delegate_work_to_coworker", "send_mail", "send_mail"), 1):
        status = asked(case, number)
        assert (status["ask"]["kind"], status["ask"]["tool"]) == ("tool", tool)
        assert len(case.logged("tool")) == max(0, number - 2)
        assert answer(case, status, "approve").ok
    assert case.ended()["status"] == "completed"
    assert case.logged("tool") == ["ann 1", "bob 1"]
    case = Mails(parcel, tmp_path, "parcel")
    status = asked(case)
    assert (status["ask"]["arguments"], case.logged("tool")) == ({"to": "ann", "copies": 3}, [])
    assert answer(case, status, "approve").ok
    assert case.ended()["status"] == "completed"
    assert case.logged("tool") == ["ann 3"]


@pytest.mark.parametrize("served", [("crew", "Method"), ("Alone", "Awaited")])
def test_each_agent_of_a_project_can_ask_a_person(
    asking: Callable[..., tuple[Client, Client]], server: OpenAI, tmp_path: Path, served: tuple[str, str]
) -> None:
    questions = [("ask_person", {"question": "Which tone?"})] * 2
    for client in asking(lambda body: called(body, questions), "ask_person = true", served):
        case = Mails(client, tmp_path, f"question-{client.url.rpartition('/')[2]}")
        for number, text in ((1, "Formal."), (2, "Short.")):
            status = asked(case, number)
            assert (status["ask"]["kind"], status["question"]) == ("question", "Which tone?")
            assert answer(case, status, "answer", text).ok
        assert case.ended()["status"] == "completed"
        assert all(text in told(case, server) for text in ("Formal.", "Short."))
        assert case.models(server) == 3, "none is asked again after an answer"


@pytest.mark.parametrize(
    ("settings", "given", "reason"),
    [
        (APPROVE, ["--dialect", "live"], "its rule Send mail=approve asks people"),
        ("ask_person = true", ["--dialect", "live"], "its tool ask_person asks people"),
        ("ask_person = true", ["--no-journal"], "its tool ask_person needs the journal"),
        ('ask_person = "yes"', [], "ask_person must be true or false"),
    ],
)
def test_a_crew_that_cannot_ask_does_not_start(
    tmp_path: Path, server: OpenAI, settings: str, given: list[str], reason: str
) -> None:
    for name in ("asking.py", "scribe.py"):
        (tmp_path / name).write_text((CREWS / name).read_text())
    (tmp_path / "pyproject.toml").write_text(f"[tool.airflow-crew-service]\n{settings}\n")
    words = ("--token", TOKEN, "--crew", "asking.py:crew", *given)
    ended = Command.refused(tmp_path, *words, environment=environment(server))
    assert (ended.returncode, ended.stderr.count("\n"), reason in ended.stderr) == (2, 1, True), ended.stderr


FLOW = ["--crew", "asking.py:Method"]
SHOP = ["--crew", "asking.py:crew"]
BOTH = ["--crew", "shop=asking.py:crew", "--crew", "flow=asking.py:Method"]
DECLARED = 'flow_tools = ["pay"]'


@pytest.mark.long
@pytest.mark.row("S56")
@pytest.mark.parametrize(
    ("served", "settings", "reason"),
    [
        ([*FLOW, "--tool", "pay=approve"], "", 'add flow_tools = ["pay", ...] to [tool.airflow-crew-service]'),
        (FLOW, 'tools = {"p*" = "once"}', "its rule p*=once needs the names of all its tools"),
        ([*FLOW, "--tool", "pays=approve"], DECLARED, "its rule pays=approve matches none of its tools (pay)."),
        ([*FLOW, "--tool", "pays=approve", "--flow-tool", "pay"], "", "pays=approve matches none of its tools (pay)."),
        ([*BOTH, "--tool", "shpo/pay=approve"], DECLARED, "there is no crew 'shpo' (shop, flow)."),
        ([*FLOW, "--tool", "shpo/pay=approve"], DECLARED, "there is no crew 'shpo' (the only crew has no name)."),
        ([*BOTH, "--flow-tool", "shpo/pay"], "", "there is no crew 'shpo' (shop, flow)."),
        ([*BOTH, "--tool", "pays=approve"], DECLARED, "none of the crews has such a tool"),
        ([*BOTH, "--flow-tool", "shop/pay"], "", "--flow-tool shop/pay: it names a tool of a Flow, but no Flow"),
        (["--flow-tool", "pay"], "", "--flow-tool pay: it names a tool of a Flow, but no Flow"),
        (FLOW, 'flow_tools = "pay"', "flow_tools must be a list of names"),
        (FLOW, 'tool = {pay = "approve"}', "[tool.airflow-crew-service] has no setting 'tool'"),
        (SHOP, 'rules = {pay = "approve"}', "[tool.airflow-crew-service] has no setting 'rules'"),
        (FLOW, '[tool.airflow_crew_service.tools]\npay = "approve"', "must be named [tool.airflow-crew-service]"),
    ],
)
def test_a_rule_that_a_flow_cannot_keep_ends_the_start(
    tmp_path: Path, server: OpenAI, served: list[str], settings: str, reason: str
) -> None:
    for name in ("asking.py", "scribe.py"):
        (tmp_path / name).write_text((CREWS / name).read_text())
    (tmp_path / "pyproject.toml").write_text(f"[tool.airflow-crew-service]\n{settings}\n")
    variables = {**environment(server), "CREWAI_STORAGE_DIR": str(tmp_path / "stored")}
    ended = Command.refused(tmp_path, "--token", TOKEN, *served, environment=variables)
    assert (ended.returncode, ended.stderr.count("\n"), reason in ended.stderr) == (2, 1, True), ended.stderr
