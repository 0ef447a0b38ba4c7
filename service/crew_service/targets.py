"""Load the crew or Flow that TARGET names; an error is one sentence that names it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crew_service.engine.crew import BadTarget, Crew
from crew_service.scripted_crew import DEMO, ScriptedCrew

EXPECTED = "demo, a scenario (*.json), a project folder, crew.jsonc, flow.yaml, package.module:NAME or file.py:NAME"
DECLARATIONS = (".jsonc", ".yaml", ".yml")


def load(target: str) -> Crew:
    if target == "demo":
        return ScriptedCrew(DEMO)
    path = Path(target)
    if path.suffix == ".json":
        return _json(target)
    if path.is_dir() or path.suffix in DECLARATIONS or ":" in target:
        return _crewai(target)
    found = "a file of another kind" if path.is_file() else "no file or folder of that name is here"
    raise BadTarget(f"{target!r} is no crew ({found}): expected {EXPECTED}.")


def title(target: str) -> str:
    """Return what to call a crew that was given no name: the last word of its target."""
    name = target.rpartition(":")[2] if ":" in target else Path(target).resolve().stem
    return name.replace("_", " ").replace("-", " ").strip() or target


def _json(target: str) -> Crew:
    """Distinguish a scenario from a crew of CrewAI by its content: only the latter has agents."""
    text = _text(target)
    try:
        content = json.loads(text)
    except RecursionError:
        raise BadTarget(f"The scenario {target!r} is not valid: it is nested too deeply.") from None
    except ValueError as error:
        if Path(target).name == "crew.json":  # CrewAI allows comments in it
            return _crewai(target)
        raise BadTarget(f"The scenario {target!r} is not valid: {error}") from None
    return _crewai(target) if isinstance(content, dict) and "agents" in content else _scenario(target, content)


def _text(target: str) -> str:
    try:
        return Path(target).read_text(encoding="utf-8")
    except OSError as error:
        raise BadTarget(f"The scenario {target!r} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise BadTarget(f"The scenario {target!r} is not valid: {error}") from None


def _scenario(target: str, content: Any) -> Crew:
    try:
        return ScriptedCrew(content)
    except ValueError as error:
        raise BadTarget(f"The scenario {target!r} is not valid: {error}") from None


def _crewai(target: str) -> Crew:
    found = find_spec("crewai")
    if found is None or found.origin is None:  # a folder of that name is no package of CrewAI
        raise BadTarget(
            f"{target!r} is a CrewAI crew, and CrewAI is not installed: pip install 'airflow-crew-service[crewai]'."
        )
    from crew_service.crewai import load as load_crewai

    try:
        return load_crewai(target)
    except BadTarget:
        raise
    except Exception as error:
        raise BadTarget(f"The crew {target!r} cannot be loaded: {type(error).__name__}: {error}") from error
