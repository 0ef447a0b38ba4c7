"""Tests the crew service with several versions of CrewAI, each in a temporary virtual environment.

`make crewai-matrix` tests VERSIONS; `python -m scripts.crewai_matrix 1.15.7` tests others. test_crewai_seams.py renames
each name that the service uses although CrewAI does not document it. The results belong in docs/own-crew.md, the newest
version that passed in `crew_service.crewai.internals.NEWEST`, and the newest uvicorn, which the environments have, as
the end of the range in service/pyproject.toml.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from crew_service.crewai.internals import NEWEST, OLDEST

ROOT = Path(__file__).parents[1]
INDEX = "index"  # the newest version that there is now
VERSIONS = (OLDEST, "1.15.4", "1.15.15", NEWEST, INDEX)
TESTS = (
    *("test_flows.py", "test_flow_family.py", "test_crewai_gates.py", "test_crewai_kinds.py", "test_templates.py"),
    *("test_crewai_journal.py", "test_crewai_replay.py", "test_crewai_continued.py", "test_crewai_hidden_calls.py"),
    *("test_crewai_seams.py", "test_crewai_check.py", "../test_service_connections.py"),
    *("test_crewai_agents.py", "test_flow_asks.py"),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.crewai_matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=" ".join(VERSIONS))
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files in tests/service/crewai")
    arguments = parser.parse_args(argv)
    results = {version: _tried(version, arguments.tests) for version in arguments.versions}
    print("\n| CrewAI | result |\n|---|---|")
    for version, result in results.items():
        print(f"| {version} | {result} |")
    return int(any("passed" not in result or "failed" in result for result in results.values()))


def _tried(version: str, tests: list[str]) -> str:
    """Install the service with this version and run the tests; return the last line of pytest's output."""
    with tempfile.TemporaryDirectory(prefix="crewai-matrix-") as folder:
        python = Path(folder) / "bin" / "python"
        _run([_uv(), "venv", "--quiet", "--python", sys.executable, folder])
        crewai = "crewai" if version == INDEX else f"crewai=={version}"
        packages = ["--editable", f"{ROOT / 'service'}[dev,crewai,postgresql]", crewai]
        installed = _run([_uv(), "pip", "install", "--quiet", "--python", str(python), *packages])
        if installed.returncode:
            return f"cannot be installed: {installed.stderr.strip().splitlines()[-1]}"
        files = [f"tests/service/crewai/{name}" for name in tests]
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=600", *files]
        done = _run(command)
        print(done.stdout[-3000:])
        result = done.stdout.strip().splitlines()[-1].strip("= ") if done.stdout.strip() else done.stderr[-300:]
        found = _run([str(python), "-c", "from importlib.metadata import version; print(version('crewai'))"])
        return f"{result} ({found.stdout.strip()})" if version == INDEX else result


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv") or "uv"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
