"""Measures many waits of one kind in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import kinds, peers
from benchmarks.harness.server import Running
from benchmarks.harness.turns import Figures

ROOT = Path(__file__).resolve().parents[2]


def measured(kind: str, count: int, interval: float, server: Running, seconds: float, settle: float = 3.0) -> Figures:
    """Run the waits in a process; return what it measures for ``seconds`` after ``settle`` intervals."""
    python = peers.python(kind) if kind in peers.PROVIDERS else sys.executable
    command = [python, "-m", "benchmarks.harness.one_loop", kind, str(count), str(interval), server.url]
    command += [f"--seconds={seconds}", f"--settle={settle}"]
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        env = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING"}
        env |= kinds.connections(server.url, server.ca_file)
        if server.ca_file:
            env |= {"SSL_CERT_FILE": server.ca_file}
        limit = 120 + seconds + 5 * settle * interval
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind} failed: {done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures
