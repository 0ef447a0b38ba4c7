"""The service, in a thread or as the command in a process of its own, always on a free port."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crew_client import GATED, Client, Command, Receiver, Serve
from databases import new_sqlite, on_postgresql

from crew_service.cli import main
from crew_service.local import running_service
from scripts.stack.database import ThrowAwayDatabase

if TYPE_CHECKING:  # its packages are there where its tests run
    from scripts.stack.collector import Collector

# Of the tests that start a service, those that `make check` runs: they find what was forgotten at a new endpoint.
IN_CHECK = ("test_service_endpoints.py", "test_service_bodies.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "serve" in getattr(item, "fixturenames", ()) and item.path.name not in IN_CHECK:
            item.add_marker(pytest.mark.waits)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{new_sqlite(tmp_path / 'x.db')}"
    return request.getfixturevalue("postgresql")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of either kind, without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/x.db"
        return
    with on_postgresql(is_empty=True) as database:
        yield database.url


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Receive the spans of services."""
    from scripts.stack.collector import Collector

    with contextlib.closing(Collector()) as collector:
        yield collector


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a service in a thread; it stops at the end of the test."""
    with contextlib.ExitStack() as stack:

        def start(scenario: dict[str, Any] | None = None, **settings: Any) -> Client:
            if "db" not in settings:
                settings["db"] = new_sqlite(tmp_path / "service.db")
            if "crew" not in settings:
                settings["scenario"] = scenario or GATED
            service = stack.enter_context(running_service(**settings))
            return Client(service.url, service.token)

        yield start


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command on the database of `serve`, and return what it prints."""

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main([*words, "--db", str(tmp_path / "service.db")]) == code
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*options: str, **more: Any) -> Command:
        started.append(Command(tmp_path, *options, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()
        assert one.process.stdout is not None
        one.process.stdout.close()


@pytest.fixture
def throw_away() -> Iterator[ThrowAwayDatabase]:
    """A new database on PostgreSQL."""
    with on_postgresql() as database:
        yield database


@pytest.fixture
def postgresql(throw_away: ThrowAwayDatabase) -> str:
    """Its URL."""
    return throw_away.url
