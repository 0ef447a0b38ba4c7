"""Runs Airflow and the crew service until Ctrl-C or `make down`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from types import FrameType

import psutil

from scripts.demo_stack import CREWS, ROOT, both
from scripts.stack import AirflowStack, CrewService
from scripts.terminal import Story

NOTE = ROOT / ".demo" / "up.json"


def running() -> psutil.Process | None:
    """Find the process of an earlier `make up`, if it is still running."""
    try:
        note = json.loads(NOTE.read_text())
        process = psutil.Process(note["pid"])
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
    return process if process.create_time() == note["created"] else None


def show(service: CrewService, airflow: AirflowStack) -> None:
    password = airflow.passwords[airflow.api.user]
    print(f"""
  Airflow        {airflow.url}
                 user {airflow.api.user}, password {password}
  crew service   {service.url}  (API: {service.url}/docs)
                 token {service.token}
  logs           {airflow.home}

  Unpause a DAG and trigger it in Airflow; answer reviews there under Required Actions.
  Press Ctrl-C or run `make down` to stop everything.
""")


def leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crew", choices=sorted(CREWS), default="demo")
    crew = parser.parse_args().crew
    if other := running():
        sys.exit(f"already running as process {other.pid}; `make down` stops it")
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    NOTE.parent.mkdir(exist_ok=True)
    NOTE.write_text(json.dumps({"pid": os.getpid(), "created": psutil.Process().create_time()}))
    try:
        with both(crew, Story().report) as (service, airflow):
            show(service, airflow)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        print("\nStopped.")
    finally:
        NOTE.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
