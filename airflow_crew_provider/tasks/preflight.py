"""Compares a kickoff's inputs with what the crew asks for, before anything is started and money is spent.

A Flow lists inputs that it does not require. So a missing name fails here only where it is known to be required;
otherwise the service decides, and its refusal is worded in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_crew_provider.exceptions import (
    CrewError,
    CrewInvalidInput,
    CrewMissingInputs,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.hooks.connection import CREW
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import CrewInputs, Json


def check_inputs(hook: CrewHook, inputs: Json, log: Any) -> CrewInputs | None:
    """Request the crew's inputs and compare; return them, None if the service does not report them.

    :raises CrewMissingInputs: a required input is missing
    :raises CrewUnauthorized: the token is refused
    :raises CrewWebPage: there is no crew at this address
    """
    try:
        asked = hook.inputs()
    except (CrewUnauthorized, CrewInvalidInput, CrewWebPage):
        raise
    except CrewError as error:
        log.warning("The crew's inputs could not be checked (%s); starting it anyway", error)
        return None
    missing = [name for name in asked.names if name not in inputs]
    required = asked.required if asked.required is not None else asked.names if hook.connection.kind == CREW else []
    if lacking := [name for name in missing if name in required]:
        detail = hook.mask(missing_inputs(lacking, asked, inputs))
        raise CrewMissingInputs([hook.mask(name) for name in lacking], status_code=None, detail=detail)
    _warn(hook, asked, missing, inputs, log)
    return asked


def missing_inputs(names: Iterable[str], asked: CrewInputs, inputs: Json) -> str:
    """Return the message about missing inputs."""
    return f"Missing inputs: {_listed(names)} (the crew asks for {_listed(asked.names)}; given: {_listed(inputs)})"


def _warn(hook: CrewHook, asked: CrewInputs, missing: list[str], inputs: Json, log: Any) -> None:
    if missing and asked.required is None:
        log.warning("%s. The service decides whether they are required", hook.mask(_lacking(missing)))
    unasked = sorted(set(inputs) - set(asked.names))
    if unasked:
        warning = f"The crew did not ask for {_listed(unasked)}; it asks for {_listed(asked.names)}"
        log.warning("%s", hook.mask(warning))


def _lacking(missing: list[str]) -> str:
    return f"The crew asks for {_listed(missing)} too"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
