"""A temporary PostgreSQL server on a free port, so that a test can restart or kill it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg2

from scripts.stack.ports import free_port
from scripts.stack.processes import ProcessGroup
from scripts.stack.waiting import wait_until

SYSTEM_USER = "postgres"  # the server refuses to run as root


class PostgresServer:
    """A database cluster in a temporary folder; ``url`` is that of its administrative database."""

    name = "postgres"

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.folder = group.temporary_folder("crew-postgres-")
        self.port = free_port()
        self.url = f"postgresql://{SYSTEM_USER}@127.0.0.1:{self.port}/postgres"
        self._data = self.folder / "data"

    def start(self) -> PostgresServer:
        """Start the cluster, and create it first if necessary; return once it accepts connections."""
        if not self._data.exists():
            self._initialise()
        options = ["-D", str(self._data), "-p", str(self.port), "-k", str(self.folder), "-h", "127.0.0.1"]
        settings = ["-c", "max_connections=300", "-c", "fsync=off"]
        command = [*_as_system_user(), str(_program("postgres")), *options, *settings]
        self._group.start(self.name, command, os.environ, self.folder / "postgres.log")
        wait_until(self._accepts, "PostgreSQL")
        return self

    def restart(self) -> None:
        """Restart as for an upgrade: connections are cut, but committed data is kept."""
        component = self._group.components[self.name]
        os.kill(component.processes()[0].pid, signal.SIGINT)
        wait_until(lambda: not component.alive, "PostgreSQL to stop")
        self.start()

    def _initialise(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, SYSTEM_USER)
        command = [str(_program("initdb")), "-D", str(self._data), "-U", SYSTEM_USER, "--auth=trust", "-E", "UTF8"]
        subprocess.run([*_as_system_user(), *command], check=True, stdout=subprocess.DEVNULL, timeout=120)

    def _accepts(self) -> bool:
        try:
            psycopg2.connect(self.url, connect_timeout=2).close()
        except psycopg2.OperationalError:
            return False
        return True


def _as_system_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={SYSTEM_USER}", f"--regid={SYSTEM_USER}", "--clear-groups"]


def _program(name: str) -> Path:
    """Find a server program; on Debian, these are not on the path but in a folder for each version."""
    found = shutil.which(name)
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not found and not candidates:
        raise RuntimeError(f"{name} is not installed; on Debian: apt-get install postgresql")
    return Path(found) if found else candidates[-1]
