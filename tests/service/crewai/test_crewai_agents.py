"""An agent that is served without a crew, in each way that a target can name one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command
from engine_stub import CREWS
from openai_server import USAGE, OpenAI, environment
from test_crewai_asks import answer, asked
from test_crewai_journal import TOKEN, Case, check_steps, next_step

from crew_service.crewai import load
from crew_service.targets import BadTarget
from crew_service.targets import load as load_target

pytestmark = pytest.mark.slow
ALONE = CREWS / "alone.py"
CLERK = {
    "role": "Clerk",
    "goal": "Take notes.",
    "backstory": "b",
    "llm": "gpt-4o-mini",
    "tools": ["custom:take_note", "custom:sign"],
}
TOOLS = {
    "take_note": "import alone\nfrom durable import Note\nclass Own(Note):\n    pass\n",
    "sign": (
        "import alone\nfrom crewai.tools import BaseTool\nfrom durable import note\nclass Sign(BaseTool):\n"
        "    name: str = 'sign'\n    description: str = 'Sign the notes.'\n    result_as_answer: bool = True\n"
        "    def _run(self, text: str) -> str:\n        return note(text)\n"
    ),
}
KINDS = ("instance", "function", "file", "project")


class Alone(Case):
    """An execution of an agent; its inputs are in its messages, or fill in its texts."""

    def __init__(self, client: Client, place: Path, name: str, /, *, dies_after: float = 99, **inputs: Any) -> None:
        self.name, self.dies_after, self.client, self.log = name, dies_after, client, place / f"{name}.log"
        (place / f"{name}.kill").write_text(str(dies_after))
        started = client.post("/kickoff", {"inputs": inputs or {"messages": f"Case: {name} in {place} ."}})
        assert started.ok, started.text
        self.id = started.json()["kickoff_id"]


def project_in(folder: Path) -> Path:
    (folder / "agents").mkdir(parents=True)
    (folder / "tools").mkdir()
    (folder / "pyproject.toml").write_text('[tool.crewai]\ntype = "agent"\n')
    (folder / "agents/clerk.jsonc").write_text(f"// a clerk\n{json.dumps(CLERK)}\n")
    for name, code in TOOLS.items():
        (folder / f"tools/{name}.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAI]:
    server = OpenAI()
    server.script = next_step
    yield server
    server.close()


@pytest.fixture(scope="module")
def service(server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    project = project_in(tmp_path_factory.mktemp("alone") / "clerk")
    targets = {
        "instance": f"{ALONE}:clerk",
        "function": f"{ALONE}:hired",
        "file": f"{project}/agents/clerk.jsonc",
        "project": f"{project}",
        "reporter": f"{ALONE}:reporter",
        "telling": f"{ALONE}:telling",
        "method": f"{ALONE}:Method",
        "awaited": f"{ALONE}:Awaited",
    }
    crews = [part for name, target in targets.items() for part in ("--crew", f"{name}={target}")]
    folder = tmp_path_factory.mktemp("agents")
    service = Command(folder, "--token", TOKEN, *crews, environment=environment(server))
    yield service
    service.kill()


@pytest.mark.row("S1")
@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:-1]), KINDS[-1]]
)
def test_an_agent_killed_between_two_calls_makes_each_once(
    service: Command, server: OpenAI, tmp_path: Path, kind: str
) -> None:
    client = service.client(TOKEN, kind)
    for calls in (2, 5, 99):
        name = f"{kind}-{calls}"
        inputs = {"case": name, "folder": str(tmp_path)} if kind == "function" else {}
        case = Alone(client, tmp_path, name, dies_after=calls, **inputs)
        ended = case.ended()
        assert ended["status"] == "completed", ended
        assert (case.models(server), case.logged("tool")) == (3, [f"{number} of {name}" for number in range(3)])
        assert ended["result"]["output"] == f"noted 2 of {name}"
        assert [task["task_id"] for task in ended["result"]["tasks"]] == ["agent"]
        found = client.get(f"/executions/{case.id}").json()
        assert found["usage"]["total_tokens"] == 3 * USAGE["total_tokens"]
        if kind != "function":  # the role of that one has an input
            check_steps(found["tasks"][0], case, 0 if calls == 99 else calls)


@pytest.mark.long
@pytest.mark.row("S1")
@pytest.mark.parametrize("kind", ["method", "awaited"])
def test_a_flow_methods_agent_killed_between_calls_makes_each_once(
    service: Command, server: OpenAI, tmp_path: Path, kind: str
) -> None:
    for calls in (2, 5):
        name = f"{kind}-{calls}"
        case = Alone(
            service.client(TOKEN, kind), tmp_path, name, dies_after=calls, text=f"Case: {name} in {tmp_path} ."
        )
        ended = case.ended()
        assert ended["status"] == "completed", ended
        assert (case.models(server), case.logged("tool")) == (3, [f"{number} of {name}" for number in range(3)])


def test_it_says_what_it_takes(service: Command) -> None:
    told = {kind: service.client(TOKEN, kind).get("/inputs").json() for kind in ("instance", "function", "file")}
    assert {kind: (each["inputs"], each["required"]) for kind, each in told.items()} == {
        "instance": (["messages"], ["messages"]),
        "function": (["case", "folder", "messages"], ["case", "folder"]),
        "file": (["messages"], ["messages"]),
    }
    document = service.client(TOKEN, "instance").get("/openapi.json").json()
    body = document["components"]["schemas"]["KickoffBody"]["properties"]["inputs"]["properties"]["messages"]
    assert body["anyOf"][1]["items"]["additionalProperties"] is False


TURNS = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Yes?"}]
REFUSED: list[tuple[Any, str]] = [
    (None, "must be a string, or a list of objects with exactly role"),
    ("", "not empty"),
    ([], "not empty"),
    ({"role": "user", "content": "Hello"}, "must be a string, or a list"),
    (["Hello"], "'messages[0]' cannot be used, because it is not an object"),
    ([*TURNS, {"role": "user"}], "'messages[2]' cannot be used, because it has no 'content'"),
    ([{**TURNS[0], "files": {"a": "/etc/passwd"}}], "because it has 'files'"),
    ([TURNS[0], {**TURNS[1], "tool_calls": []}], "'messages[1]' cannot be used, because it has 'tool_calls'"),
    ([{"role": "tool", "content": "x"}], "because its role is 'tool'"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "because its content is not a string"),
]


@pytest.mark.parametrize(("messages", "reason"), REFUSED)
def test_other_messages_are_refused_in_words(service: Command, messages: Any, reason: str) -> None:
    refused = service.client(TOKEN, "instance").post("/kickoff", {"inputs": {"messages": messages}})
    assert (refused.status_code, reason in refused.json()["detail"]) == (400, True), refused.text


def test_it_needs_its_messages_or_its_inputs(service: Command) -> None:
    for kind, missing in (("instance", "messages"), ("function", "case, folder")):
        refused = service.client(TOKEN, kind).post("/kickoff", {"inputs": {}})
        assert (refused.status_code, refused.json()["detail"]) == (422, f"Missing inputs: {missing}")


def test_a_conversation_is_told_turn_by_turn(service: Command, server: OpenAI, tmp_path: Path) -> None:
    turns = [*TURNS, {"role": "user", "content": f"Case: turns in {tmp_path} ."}]
    case = Alone(service.client(TOKEN, "instance"), tmp_path, "turns", messages=turns)
    assert case.ended()["status"] == "completed"
    told = json.dumps(next(body for body in server.asked if "Case: turns in" in json.dumps(body["messages"])))
    assert told.index("One.") < told.index("Yes?") < told.index("Case: turns in")


@pytest.mark.parametrize("kind", ["reporter", "telling"])
def test_an_agents_json_or_model_answer_is_an_object(
    service: Command, server: OpenAI, tmp_path: Path, kind: str
) -> None:
    server.script = lambda body: {"role": "assistant", "content": '{"title": "On tea", "pages": 3}'}
    try:
        case = Alone(service.client(TOKEN, kind), tmp_path, "report")
        ended = case.ended()
    finally:
        server.script = next_step
    assert ended["status"] == "completed", ended
    assert json.loads(ended["result"]["output"]) == {"title": "On tea", "pages": 3}
    details = case.client.get(f"/executions/{case.id}").json()
    assert details["output_json"] == {"title": "On tea", "pages": 3}


def test_its_tools_have_rules_and_people_may_change_their_arguments(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path
) -> None:
    project = project_in(tmp_path / "ruled")
    with (project / "pyproject.toml").open("a") as file:
        file.write('[tool.airflow-crew-service.tools]\ntake_note = "approve"\n')
    client = command("--token", TOKEN, "--crew", str(project), environment=environment(server)).client(TOKEN)
    case = Alone(client, tmp_path, "ruled")
    first = asked(case)
    assert (first["task_id"], first["ask"]["agent"], first["ask"]["tool"]) == ("agent#1", "Clerk", "take_note")
    sha256 = client.get(f"/executions/{case.id}").json()["rounds"][-1]["output_sha256"]
    for changed, code in (('{"texts": "x"}', 400), ('{"text": "changed"}', 200)):
        edit = {"edited_output": {"text": changed, "output_sha256": sha256}}
        assert answer(case, first, "approve", **edit).status_code == code
    assert answer(case, asked(case, 2), "deny", "no").ok
    assert case.ended()["status"] == "completed"
    assert case.logged("tool") == ["changed", "2 of ruled"]
    assert case.models(server) == 3


def test_a_failed_one_is_continued_with_what_it_has_done(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path
) -> None:
    client = command("--token", TOKEN, "--crew", f"{ALONE}:clerk", environment=environment(server)).client(TOKEN)
    server.refuses = lambda body: sum(turn["role"] == "tool" for turn in body["messages"]) == 2
    try:
        case = Alone(client, tmp_path, "continued")
        assert case.ended()["status"] == "error"
    finally:
        server.refuses = lambda body: False
    asked_before = case.models(server)
    again = client.post(
        "/kickoff", {"inputs": {"messages": f"Case: continued in {tmp_path} ."}, "continueFrom": case.id}
    )
    assert again.ok, again.text
    case.id = again.json()["kickoff_id"]
    assert case.ended()["status"] == "completed"
    assert (case.models(server), case.logged("tool")) == (
        asked_before + 1,
        [f"{number} of continued" for number in range(3)],
    )


def test_a_rule_for_a_tool_the_agent_lacks_fails_it(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path
) -> None:
    words = ("--token", TOKEN, "--crew", f"{ALONE}:connected", "--tool", "take_notes=once")
    case = Alone(command(*words, environment=environment(server)).client(TOKEN), tmp_path, "connected")
    assert "The rule take_notes=once matches none of the crew's tools, some of which" in case.ended()["error"]
    assert (case.models(server), case.logged("tool")) == (0, [])


# --- what names an agent ---


def test_a_project_agent_may_be_a_module_or_single_file(tmp_path: Path) -> None:
    project = tmp_path / "made"
    (project / "src/made").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[tool.crewai]\ntype = "agent"\n')
    (project / "src/made/__init__.py").touch()
    text = "from crewai import Agent\nclerk = Agent(role='r', goal='g', backstory='On {topic}', llm='gpt-4o-mini')\n"
    (project / "src/made/agent.py").write_text(text)
    made = load(str(project))
    assert (made.kind, made.inputs, made.required) == ("agent", ["messages", "topic"], ["topic"])
    (project / "agents").mkdir()
    told = {**CLERK, "tools": [], "input": "Write on {topic}."}
    (project / "agents/one.json").write_text(json.dumps(told))
    assert (load(str(project)).inputs, load_target(str(project / "agents/one.json")).kind) == (
        ["messages", "topic"],
        "agent",
    )
    shutil.copy(project / "agents/one.json", project / "agents/two.json")
    with pytest.raises(BadTarget, match=r"has several files \(one\.json, two\.json\); specify which one"):
        load(str(project))


def test_an_agent_file_crewai_refuses_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "clerk.jsonc").write_text('{"role": "Clerk", "gaol": "g"}')
    with pytest.raises(BadTarget, match=r"unsupported field\(s\): gaol.*missing required field 'goal'"):
        load(str(tmp_path / "clerk.jsonc"))
