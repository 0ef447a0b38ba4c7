"""Loads the crew, Flow or agent that TARGET names. Each error is one sentence that includes the target."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crew_service.crewai.project import is_agent
from crew_service.crewai.world import Place
from crew_service.engine.crew import BadTarget, Crew
from crew_service.engine.tool_rules import JournalOptions
from crew_service.scripted_crew import DEMO, ScriptedCrew

EXPECTED = (
    "demo, a scenario (*.json), a project folder, crew.jsonc, agents/NAME.jsonc, flow.yaml, package.module:NAME or "
    "file.py:NAME"
)
DECLARATIONS = (".jsonc", ".yaml", ".yml")


def load(target: str, options: JournalOptions | None = None, place: Place | None = None) -> Crew:
    options = options or JournalOptions()
    if target == "demo":
        return _scenario(target, DEMO, options)
    path = Path(target)
    if path.suffix == ".json":
        return _json(target, options, place)
    if path.is_dir() or path.suffix in DECLARATIONS or ":" in target:
        return _crewai(target, options, place)
    kind = "another kind of file" if path.is_file() else "no file or folder has this name"
    raise BadTarget(f"{target!r} is not a crew ({kind}): expected {EXPECTED}.")


def title(target: str) -> str:
    """Return a title for a crew without a name, from the last part of its target."""
    name = target.rpartition(":")[2] if ":" in target else Path(target).resolve().stem
    return name.replace("_", " ").replace("-", " ").strip() or target


def _json(target: str, options: JournalOptions, place: Place | None) -> Crew:
    """Load a scenario or a CrewAI crew, depending on the content: only the latter has agents, or is one."""
    text = _text(target)
    try:
        content = json.loads(text)
    except RecursionError:
        raise BadTarget(f"The scenario {target!r} is not valid: it is nested too deeply.") from None
    except ValueError as error:
        if Path(target).name == "crew.json":  # CrewAI allows comments in it
            return _crewai(target, options, place)
        raise BadTarget(f"The scenario {target!r} is not valid: {error}") from None
    is_crew = is_agent(content) or (isinstance(content, dict) and "agents" in content)
    return _crewai(target, options, place) if is_crew else _scenario(target, content, options)


def _text(target: str) -> str:
    try:
        return Path(target).read_text(encoding="utf-8")
    except OSError as error:
        raise BadTarget(f"The scenario {target!r} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise BadTarget(f"The scenario {target!r} is not valid: {error}") from None


def _scenario(target: str, content: Any, options: JournalOptions) -> Crew:
    try:
        return ScriptedCrew(content, options)
    except BadTarget as problem:
        raise BadTarget(f"The crew {target!r} cannot be served: {problem}") from None
    except ValueError as error:
        raise BadTarget(f"The scenario {target!r} is not valid: {error}") from None


def _crewai(target: str, options: JournalOptions, place: Place | None) -> Crew:
    spec = find_spec("crewai")
    if spec is None or spec.origin is None:  # a folder with that name is not CrewAI
        raise BadTarget(
            f"{target!r} is a CrewAI crew, but CrewAI is not installed: pip install 'airflow-crew-service[crewai]'."
        )
    from crew_service.crewai import load as load_crewai

    try:
        return load_crewai(target, options, place)
    except BadTarget:
        raise
    except Exception as error:
        raise BadTarget(f"The crew {target!r} cannot be loaded: {type(error).__name__}: {error}") from error
