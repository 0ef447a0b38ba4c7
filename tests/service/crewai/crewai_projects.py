"""Projects as `crewai create` makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.stack.waiting import PATIENCE


def created(folder: Path, *options: str) -> Path:
    """Make a project with the installed CrewAI, without questions."""
    environment = {**os.environ, "CREWAI_DMN": "true", "CREWAI_DISABLE_TELEMETRY": "true", "HOME": str(folder)}
    command = [str(Path(sys.executable).with_name("crewai")), "create", *options, "--skip_provider"]  # in every version
    made = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder / options[1]
