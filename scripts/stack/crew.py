"""The crew service as a process: `airflow-crew-service serve` on a free port, with a generated token."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scripts.stack.ports import free_port
from scripts.stack.processes import Component, ProcessGroup
from scripts.stack.rest import answers
from scripts.stack.waiting import wait_until

if TYPE_CHECKING:
    from typing import Self


class CrewService:
    """A running crew service, from ``start`` (or ``with``) to ``stop``.

    :param crew: a value for ``--crew`` (``demo``, a scenario file, ``package.module:NAME``) or a scenario itself; None
        if ``options`` contain it
    :param dialect: ``spec`` or ``live``
    :param name: name of the component, if a group has several services
    :param options: more arguments of ``airflow-crew-service serve``
    :param database: a SQLAlchemy URL; None means a separate SQLite file
    :param token: the organization's token; by default, a random one
    :param env: more environment variables; ``env`` may change before the next start
    :param group: the group whose watchdog stops the service; by default, a new one
    """

    def __init__(
        self,
        crew: str | Mapping[str, Any] | None = "demo",
        *,
        dialect: str = "spec",
        name: str = "crew-service",
        options: Sequence[str] = (),
        database: str | None = None,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self.name = name
        self.env = dict(env or {})
        self.group = group or ProcessGroup()
        self.folder = self.group.temporary_folder("crew-service-")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = token or secrets.token_hex(24)
        command = Path(sys.executable).with_name("airflow-crew-service")
        self._command = [
            *(str(command), "serve", "--port", str(self.port), "--dialect", dialect),
            *(("--crew", self._target(crew)) if crew else ()),
            *("--db", database or str(self.folder / "service.db")),
            *options,
        ]

    def _target(self, crew: str | Mapping[str, Any]) -> str:
        if isinstance(crew, str):
            return crew
        file = self.folder / "crew.json"
        file.write_text(json.dumps(crew))
        return str(file)

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow connection to this service."""
        return {"conn_type": "crew", "host": self.url, "password": self.token}

    def start(self) -> Self:
        """Start the service, for the first time or after a kill, with the same database; return once it responds."""
        env = {**os.environ, **self.env, "CREW_SERVICE_TOKEN": self.token}
        component = self.group.start(self.name, self._command, env, self.folder / "service.log")
        wait_until(lambda: self._ready(component), "the crew service")
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.group.components[self.name].kill(number)

    def stop(self) -> None:
        self.group.stop()

    def log(self) -> str:
        return (self.folder / "service.log").read_text(errors="replace")

    def _ready(self, component: Component) -> bool:
        if not component.alive:
            raise RuntimeError(f"the crew service exited during startup:\n{component.tail()}")
        return answers(f"{self.url}/healthz")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
