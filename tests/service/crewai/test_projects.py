"""A project is found by its folder or by any target in it, and runs as `crewai run` would run it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from engine_stub import CREWS, EngineStub

from crew_service.engine.crew import BadTarget
from crew_service.targets import load

FLOW = """
import os
from pathlib import Path
from crewai.flow import Flow, start

class TellFlow(Flow):
    @start()
    def tell(self):
        Path("told.txt").write_text("told")
        return f"{os.getcwd()} {os.environ['OF_THE_PROJECT']} {os.environ.get('OF_BOTH')}"
"""


def project(folder: Path, settings: str, **files: str) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(textwrap.dedent(settings))
    (folder / ".env").write_text("OF_THE_PROJECT=project\nOF_BOTH=project\n")
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.mark.parametrize("inside", ["", "src/teller/main.py:TellFlow"])
def test_a_project_runs_in_its_own_folder_with_its_variables(tmp_path: Path, inside: str) -> None:
    folder = project(tmp_path / "teller", '[tool.crewai]\ntype = "flow"\n', src__teller__main_dot_py=FLOW)
    target = str(folder / inside) if inside else str(folder)
    run = EngineStub(load(target), tmp_path / "log")
    run.inputs = {}
    assert run.segment().output.startswith(f"{folder} project ")
    assert (folder / "told.txt").exists()


def test_a_scenario_and_a_crew_are_distinguished_by_their_content(tmp_path: Path) -> None:
    scenario = tmp_path / "crew.json"
    scenario.write_text(json.dumps({"inputs": ["topic"], "tasks": [{"id": "one", "output": "done"}]}))
    assert load(str(scenario)).isolation == "inline"
    (tmp_path / "agents").mkdir()
    agent = {"role": "Writer of {topic}", "goal": "g", "backstory": "in {style}", "llm": "openai/gpt-4o"}
    (tmp_path / "agents/writer.json").write_text(json.dumps(agent))
    task = {"name": "one", "description": "Write on {topic}.", "expected_output": "text", "agent": "writer"}
    crew = {"agents": ["writer"], "tasks": [task], "inputs": {"style": "brief"}}
    declared = tmp_path / "other.json"
    declared.write_text(json.dumps(crew))
    served = load(str(declared))
    assert served.isolation == "process"
    assert (served.inputs, served.required) == (["style", "topic"], ["topic"])


@pytest.mark.parametrize(
    ("settings", "files", "reason"),
    [
        ('[tool.crewai]\ntype = "flow"\n', {}, "type 'flow', and no module main.py"),
        ('[tool.crewai]\ntype = "tool"\n', {}, "type 'tool'; it must be crew, flow or agent"),
        ('[tool.crewai]\ntype = "agent"\n', {"agent_dot_jsonc": "{}"}, "missing required field 'role'"),
        ('[tool.crewai]\ntype = "agent"\n', {}, "type 'agent', and no agent.jsonc, file in the folder agents"),
        (
            '[tool.crewai]\ntype = "agent"\ndefinition = "agent.yaml"\n',
            {"agent_dot_yaml": "role: Clerk"},
            "agent.yaml describes an agent, which CrewAI 1.",
        ),
        ('[tool.crewai]\ntype = "crew"\n', {"crew_dot_jsonc": '{"agents": ["a"'}, "crew.jsonc is not valid JSON: "),
        (
            '[tool.crewai]\ntype = "crew"\ndefinition = "gone.jsonc"\n',
            {},
            "'gone.jsonc', which is not a file in the project",
        ),
        ("[project]\nname = 'other'\n", {"notes_dot_txt": ""}, "the folder contains notes.txt, pyproject.toml"),
        (
            '[tool.crewai]\ntype = "flow"\n',
            {"src__two__main_dot_py": FLOW + FLOW.replace("TellFlow", "OtherFlow")},
            "has 2 (OtherFlow, TellFlow); specify which one to serve, as in two.main:NAME",
        ),
        ("tool = [", {}, "not valid TOML"),
    ],
)
def test_an_unservable_folder_is_refused_naming_what_can_be_served(
    tmp_path: Path, settings: str, files: dict[str, str], reason: str
) -> None:
    folder = project(tmp_path / "it", settings, **files)
    with pytest.raises(BadTarget) as refusal:
        load(str(folder))
    assert reason in str(refusal.value)
    assert str(folder) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_wrong_name_is_answered_with_the_existing_names() -> None:
    with pytest.raises(BadTarget, match=r"has no 'Nothing'; it has .*BriefingFlow"):
        load(f"{CREWS / 'flows.py'}:Nothing")


@pytest.mark.parametrize("target", ["no-such-folder", "notes.txt"])
def test_an_invalid_target_is_refused_with_the_accepted_kinds(target: str) -> None:
    with pytest.raises(BadTarget, match="expected demo, a scenario"):
        load(target)
