"""Stops everything that a stack started once its pipe closes, whether on purpose or because its owner died.

Reads JSON lines: {"session": id}, {"folder": path}, {"database": name, "server": url}. When the input ends, it
terminates each session (TERM, then KILL), removes each folder and drops each database.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

import psutil

GRACE = 5.0


def members(session: int) -> list[psutil.Process]:
    """List the living processes of a session: a task leaves its process group, but not its session."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def signal_session(session: int, number: int) -> None:
    for process in members(session):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def end_sessions(sessions: Iterable[int], grace: float = GRACE) -> None:
    """Terminate all sessions, give them some time together, then kill them until no process is left."""
    left = [session for session in sessions if members(session)]
    for session in left:
        signal_session(session, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while left:
        time.sleep(0.05)
        left = [session for session in left if members(session)]
        if time.monotonic() > deadline:
            for session in left:
                signal_session(session, signal.SIGKILL)


def drop_database(server: str, name: str) -> None:
    import psycopg2

    try:
        connection = psycopg2.connect(server)
    except psycopg2.OperationalError:
        return  # the server was temporary and has already stopped
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    connection.close()


def main() -> None:
    orders = [json.loads(line) for line in sys.stdin]
    end_sessions([order["session"] for order in orders if "session" in order])
    for order in orders:
        if "folder" in order:
            shutil.rmtree(order["folder"], ignore_errors=True)
        if "database" in order:
            drop_database(order["server"], order["database"])


if __name__ == "__main__":
    main()
