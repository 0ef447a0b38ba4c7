"""Finds the crew that TARGET names; whatever is wrong with it is one sentence that names it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from .crews import Crew
from .scenario import DEMO, ScriptedCrew


class BadTarget(ValueError):
    """TARGET names no crew that can be served."""


def load(target: str) -> Crew:
    if target == "demo":
        return ScriptedCrew(DEMO)
    if target.endswith(".json"):
        return _scenario(target)
    if ":" in target:
        return _crewai(target)
    raise BadTarget(
        f"{target!r} is no crew: expected demo, a scenario file (*.json), package.module:NAME or file.py:NAME."
    )


def _scenario(target: str) -> Crew:
    try:
        return ScriptedCrew(json.loads(Path(target).read_text(encoding="utf-8")))
    except OSError as error:
        raise BadTarget(f"The scenario {target!r} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise BadTarget(f"The scenario {target!r} is not valid: it is nested too deeply.") from None
    except ValueError as error:
        raise BadTarget(f"The scenario {target!r} is not valid: {error}") from None


def _crewai(target: str) -> Crew:
    if find_spec("crewai") is None:
        raise BadTarget(
            f"{target!r} is a CrewAI crew, and CrewAI is not installed: pip install 'airflow-crew-provider[crewai]'."
        )
    from .crewai import load as load_crewai

    try:
        return load_crewai(target)
    except BadTarget:
        raise
    except Exception as error:
        raise BadTarget(f"The crew {target!r} cannot be loaded: {type(error).__name__}: {error}") from error
