"""What we compare ourselves with, each in its own environment: providers with our Airflow and aiohttp, and DBOS."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

HOME = Path(__file__).resolve().parents[1] / ".peers"
PROVIDERS = {
    "databricks": "apache-airflow-providers-databricks",
    "http": "apache-airflow-providers-http",
}
DBOS = "dbos"


class NotInstalled(Exception):
    """A peer cannot be measured; the message gives the reason."""


@cache
def python(peer: str) -> str:
    """Return the interpreter of a peer's environment, which is created on first use."""
    interpreter = HOME / peer / "bin" / "python"
    stamp = HOME / peer / ".complete"
    if not stamp.exists():
        _run([sys.executable, "-m", "venv", str(HOME / peer)], peer)
        _run([str(interpreter), "-m", "pip", "install", "--quiet", "uv"], peer)
        uv = interpreter.with_name("uv")
        wanted = [DBOS]
        if peer in PROVIDERS:
            same = [f"{name}=={version(name)}" for name in ("apache-airflow-core", "aiohttp", "psutil")]
            wanted = [*same, "apache-airflow", PROVIDERS[peer], "requests"]
        _run([str(uv), "pip", "install", "--quiet", "--python", str(interpreter), *wanted], peer)
        stamp.touch()
    return str(interpreter)


def _run(command: list[str], peer: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    else:
        if done.returncode == 0:
            return
        problem = " ".join((done.stderr or done.stdout).split())[-300:]
    raise NotInstalled(f"{PROVIDERS.get(peer, peer)} could not be installed: {problem}")


def version_of(peer: str) -> str:
    code = f"from importlib.metadata import version; print(version({PROVIDERS.get(peer, peer)!r}))"
    return subprocess.run([python(peer), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
