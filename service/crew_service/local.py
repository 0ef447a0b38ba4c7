"""Runs the service on a free port, for tests: `with running_service(scenario=...) as service: ...`"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from crew_service.engine.crew import Crew
from crew_service.engine.paths import ROOT
from crew_service.http.server import server
from crew_service.http.starting import bind
from crew_service.scripted_crew import DEMO, ScriptedCrew
from crew_service.settings import Settings

START_SECONDS = 30.0


@dataclass(frozen=True)
class LocalService:
    url: str
    token: str = field(repr=False)


@contextmanager
def running_service(
    *,
    scenario: dict[str, Any] | None = None,
    crew: Crew | None = None,
    dialect: str = "spec",
    token: str | None = None,
    db: str | Path | None = None,
    **settings: Any,
) -> Iterator[LocalService]:
    """Serve a scenario or a crew (by default, the demo) in a thread until the block ends.

    :param db: the database for its executions; by default, a temporary one
    """
    token = token or token_hex(24)
    with ExitStack() as stack:
        if db is None:
            db = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "crew-service.db"
        chosen = Settings(token=token, dialect=dialect, database=str(db), **settings)
        listener = stack.enter_context(bind("127.0.0.1", 0))
        port = listener.getsockname()[1]
        chosen = replace(chosen, base_url=f"http://127.0.0.1:{port}")
        serving = server(chosen, {ROOT: crew or ScriptedCrew(scenario or DEMO)})
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        stack.callback(thread.join, 30)
        stack.callback(setattr, serving, "should_exit", True)
        _wait_until_started(serving, thread)
        yield LocalService(f"http://127.0.0.1:{port}", token)


def _wait_until_started(serving: Any, thread: threading.Thread) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not serving.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("The local crew service did not start; see its log.")
        time.sleep(0.01)
