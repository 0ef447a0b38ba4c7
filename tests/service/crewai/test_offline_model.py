"""An unchanged crew of any kind runs to its end on the offline model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crew_service.offline.answers import ANSWER
from scripts.stack.waiting import PATIENCE

ANSWERS = {"Search": {"text": "Found.", "tools": [{"name": "search", "arguments": {"query": "tea"}}]}}
MODEL = {"title": ANSWER, "score": 1, "note": None}
EXPECTED: dict[str, tuple[Any, list[str]]] = {
    "plain": (ANSWER, []),
    "tools": ("Found.", ["tea"]),
    "output_model": (MODEL, []),
    "planned": (ANSWER, []),
    "hierarchical": (ANSWER, []),
    "reasoning": (ANSWER, []),
    "text_guardrail": (ANSWER, []),
    "memory": (ANSWER, []),
    "streamed": (ANSWER, []),
    "streamed_tools": ("Found.", ["tea"]),
    "responses": ("Found.", ["tea"]),
    "streamed_responses": (MODEL, []),
    "agent_alone": (MODEL, []),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, list[str]]]:
    """All crews in one process, since importing CrewAI takes most of the time."""
    folder = tmp_path_factory.mktemp("offline")
    (folder / "answers.json").write_text(json.dumps(ANSWERS))
    command = [sys.executable, "-m", "crew_service", "offline-model", "--port", "0", "--answers", "answers.json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as model:
        assert model.stdout
        told = model.stdout.readline() + model.stdout.readline()
        named = dict(re.findall(r"(OPENAI_\w+)=(\S+)", told))
        script = Path(__file__).with_name("every_kind.py")
        off = {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
        environment = {**os.environ, **named, **off, "CREWAI_STORAGE_DIR": str(folder / "storage")}
        try:
            done = subprocess.run(
                [sys.executable, str(script)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=10 * PATIENCE,
            )
        finally:
            model.terminate()
    lines = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: (result, searched) for name, result, searched in lines}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_crew_of_each_kind_ends(name: str, results: dict[str, tuple[Any, list[str]]]) -> None:
    assert results[name] == EXPECTED[name]
