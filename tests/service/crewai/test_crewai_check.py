"""`airflow-crew-service check` says before a deployment what `serve` would say at its start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from crew_client import ended
from crewai_projects import created
from engine_stub import CREWS

SECRET = "sk-a-key-of-a-model"


def checked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(CREWS), "HOME": str(folder), "OF_A_MODEL_API_KEY": SECRET}
    return ended(folder, ["check", *words], environment)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (["crew", "made"], ["crew (crew)", "tasks   research_task"]),
        pytest.param(["crew", "made", "--classic"], ["inputs  current_year", "reporting_task"], marks=pytest.mark.long),
        pytest.param(["flow", "made"], ["crew (flow)", "plan_content"], marks=pytest.mark.long),
        pytest.param(["flow", "made", "--declarative"], ["crew (flow)", "inputs  topic"], marks=pytest.mark.long),
    ],
)
def test_what_crewai_creates_is_described(tmp_path: Path, options: list[str], rows: list[str]) -> None:
    project = created(tmp_path, *options)
    before = {path.name for path in tmp_path.iterdir()}
    check = checked(tmp_path, str(project))
    assert check.returncode == 0, check.stderr
    assert [row for row in rows if row not in check.stdout] == []
    assert "  off     none" in check.stdout
    assert not {path.name for path in tmp_path.iterdir() if path.name.endswith(".db")} - before


def test_rules_and_tools_are_listed_and_secrets_are_masked(tmp_path: Path) -> None:
    (tmp_path / "shows.py").write_text(
        "from plain import crew\n"
        "import os\n"
        "def shown():\n"
        "    made = crew()\n"
        "    made.tasks[0].name = os.environ['OF_A_MODEL_API_KEY']\n"
        "    return made\n"
    )
    check = checked(tmp_path, "shows.py:shown", "--tool", "note=approve")
    assert check.returncode == 0, check.stderr
    assert "  inputs  topic (required)" in check.stdout
    assert "  tools   note" in check.stdout
    assert "  rules   note=approve\n" in check.stdout
    assert SECRET not in check.stdout + check.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["broken.py:crew"],
            "'broken.py:crew' cannot be loaded: ZeroDivisionError: division by zero (broken",
        ),
        (["looks.py:crew"], "cannot be loaded: StopIteration (looks.py, line 3: return next(each for each in roles if"),
        (["typo.py:crew"], "cannot be loaded: SyntaxError: '(' was never closed (typo.py, line 2)"),
        (
            ["needs.py:crew"],
            "No module named 'a_search_api' (needs.py, line 1); install the project's requirements: ",
        ),
        (["inside.py:crew"], "No module named 'own_tools' (inside.py, line 1), which is in the project, but not on"),
        (["later.py:crew"], "cannot be served: crew is an `async def`, but the function must return a Crew, a Flow or"),
        (["plain:crew", "--tool", "nota=approve"], "nota"),
        (["plain:crew", "--flow-webhook", "http://127.0.0.1/"], "--flow-webhook needs --flow-webhook-secret"),
        (["no_such.py:crew"], "The crew 'no_such.py:crew' cannot be served: there is no file"),
    ],
)
def test_what_cannot_be_served_ends_with_1_and_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    files = {
        "broken.py": "1 / 0\n",
        "looks.py": "def crew():\n    roles = ['a']\n    return next(each for each in roles if each == 'b')\n",
        "typo.py": "x = 1\ny = (\n",
        "needs.py": "import a_search_api\n",
        "inside.py": "import own_tools\n",
        "src/p/own_tools/__init__.py": "",
        "later.py": "async def crew():\n    return 1\n",
        "pyproject.toml": "[project]\nname = 'p'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    check = checked(tmp_path, *words)
    assert (check.returncode, check.stdout) == (1, "")
    (said,) = check.stderr.splitlines()
    assert sentence in said
    assert "uv pip install" not in said or f"uv pip install -r {tmp_path}/pyproject.toml" in said


def test_with_v_an_unloadable_crews_traceback_is_printed_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import os\nraise ValueError(os.environ['OF_A_MODEL_API_KEY'])\n")
    said = checked(tmp_path, "broken.py:crew", "-v").stderr
    assert said.startswith("Traceback (most recent call last):")
    assert "cannot be loaded: ValueError: *** (broken.py, line 2)" in said.splitlines()[-1]
    assert SECRET not in said
