"""Pytest fixtures for testing your own DAGs: they run a scripted crew and create a connection to it.

Add ``pytest_plugins = ["airflow_crew_provider.testing"]`` to ``conftest.py``. Requires the extra ``service``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_crew_provider.models import Json


def scenario(*outputs: str, inputs: tuple[str, ...] = ("topic",), review_last: bool = False, **last: Any) -> Json:
    """Return a scenario whose tasks return these outputs immediately; the last output is the crew's.

    :param outputs: the tasks' outputs; ``{name}`` is replaced by the input of that name
    :param inputs: names of the crew's inputs
    :param review_last: whether a person reviews the last task's output
    :param last: further fields of the last task, e.g. ``error="out of credit"``, ``revised="After {feedback}"`` or
        ``files={"report.md": "All on {topic}"}``
    """
    tasks: list[Json] = [
        {"id": f"task_{n}", "agent": f"Agent {n}", "output": text} for n, text in enumerate(outputs, 1)
    ]
    tasks[-1] |= {"human_input": review_last, **last}
    return {"inputs": list(inputs), "tasks": tasks}


def recorded(record: Json, inputs: tuple[str, ...] = ()) -> Json:
    """Return a scenario that replays a completed record immediately, with the same tasks, agents and output.

    :param record: the return value of a sensor, or of a kickoff with ``wait_for_completion``
    :param inputs: names of the crew's inputs
    """
    if record.get("state") != "completed":
        raise ValueError(f"Only a completed record can be replayed; this one is {record.get('state')!r}")
    tasks = [
        {"id": each["task_id"] or f"task_{n}", "agent": each["agent"] or "Agent", "output": _literal(each["output"])}
        for n, each in enumerate(record["tasks"], 1)
    ]
    output = _literal(record["output"])
    if not tasks or tasks[-1]["output"] != output:
        tasks.append({"id": "result", "agent": "Agent", "output": output})
    return {"inputs": list(inputs), "tasks": tasks}


def _literal(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


try:
    from crew_service.local import LocalService, running_service
except ModuleNotFoundError as error:
    if error.name != "crew_service":
        raise
    raise ModuleNotFoundError(
        "airflow_crew_provider.testing starts the crew service, which is not installed; "
        "install it with: pip install 'airflow-crew-provider[service]'",
        name=error.name,
    ) from None

__all__ = ["LocalService", "crew_service", "recorded", "running_service", "scenario", "scripted_crew"]


@pytest.fixture
def scripted_crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalService]]:
    """Return a function that starts a real crew service with a scenario and points a connection at it.

    It takes the scenario (None for the demo crew), and optionally ``crew_conn_id``, ``dialect`` (``spec`` or ``live``),
    the connection's ``extra``, and settings of the service. Everything stops when the test ends.
    """
    with ExitStack() as services:

        def start(
            script: Json | None = None,
            *,
            crew_conn_id: str = "crew_default",
            dialect: str = "spec",
            extra: Json | None = None,
            **settings: Any,
        ) -> LocalService:
            service = services.enter_context(running_service(scenario=script, dialect=dialect, **settings))
            connection = {"conn_type": "crew", "host": service.url, "password": service.token, "extra": extra or {}}
            monkeypatch.setenv(f"AIRFLOW_CONN_{crew_conn_id.upper()}", json.dumps(connection))
            return service

        yield start


@pytest.fixture
def crew_service(scripted_crew: Callable[..., LocalService]) -> LocalService:
    """Start the demo crew, with the connection ``crew_default``."""
    return scripted_crew()
