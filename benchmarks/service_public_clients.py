"""Runs an unmodified public client against `--dialect live`: `python benchmarks/service_public_clients.py`.

Creates an environment with the crewai-tools package (takes a few minutes), has its kickoff-and-wait tool run a crew
that succeeds and one that fails, and exits with code 0 if the tool understood both.
`--python PATH` uses the interpreter of an environment that already has crewai-tools.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from crew_service.local import running_service

TOKEN = "a-token-for-public-clients"
SUCCEEDS = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "agent": "Researcher", "seconds": 1.5, "output": "Notes on {topic}"},
        {"id": "write_task", "agent": "Writer", "seconds": 1.5, "output": "An article on {topic}"},
    ],
}
FAILS = {"inputs": ["topic"], "tasks": [{"id": "t", "seconds": 1, "error": "ValueError: no luck with {topic}"}]}
CLIENT = """
import sys
from crewai_tools import InvokeCrewAIAutomationTool
from pydantic import Field
tool = InvokeCrewAIAutomationTool(
    crew_api_url=sys.argv[1], crew_bearer_token=sys.argv[2], crew_name="crew", crew_description="a crew",
    crew_inputs={"topic": Field(..., description="the topic")}, max_polling_time=60)
print("ANSWER", tool.run(topic="AI"))
"""


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "crewai-tools"], check=True)
    return python


def answer(python: Path, scenario: dict) -> str:
    quiet = {**os.environ, "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    with running_service(scenario=scenario, dialect="live", token=TOKEN) as service:
        run = subprocess.run(
            [python, "-c", CLIENT, service.url, service.token],
            capture_output=True,
            text=True,
            timeout=180,
            env=quiet,
            check=False,
        )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
    return lines[-1].removeprefix("ANSWER ") if lines else f"no answer: {run.stderr[-2000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path)
    given = parser.parse_args().python
    with tempfile.TemporaryDirectory() as folder:
        python = given or environment(Path(folder))
        good, bad = answer(python, SUCCEEDS), answer(python, FAILS)
    print(f"a crew that succeeds: {good}")
    print(f"a crew that fails:    {bad}")
    understood = good == "An article on AI" and "ValueError: no luck with AI" in bad
    print("understood" if understood else "NOT understood")
    return 0 if understood else 1


if __name__ == "__main__":
    sys.exit(main())
