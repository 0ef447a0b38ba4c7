"""A CA file that is replaced in place while waits go on, as an operator rotates it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.certificates import self_signed
from faults.dialects import SPEC
from faults.server import FaultServer
from faults.wire import CLOSE, Reply
from simulated_airflow import PATHS, Connect, wait

from airflow_crew_provider.wait.watch import COMPLETED, GAVE_UP
from scripts.stack.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
POLL = "GET /status/k-1"
path = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    return self_signed(tmp_path / "old")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    return self_signed(tmp_path / "new")


@pytest.fixture
def ca_file(tmp_path: Path, old: Path) -> Path:
    """The CA file of the connection; at first it trusts the old certificate."""
    return Path(shutil.copy(old, tmp_path / "ca.pem"))


@pytest.fixture
def tls_server(old: Path, ca_file: Path, connect: Connect) -> Iterator[FaultServer]:
    with FaultServer(certificate=old) as server:
        connect(server.url, verify=str(ca_file))
        yield server


def then(server: FaultServer, *actions: Any) -> Any:
    """Answer that the execution runs, close the connection, and do something."""

    def answer(request: Any) -> Reply:
        for action in actions:
            action()
        return Reply(body=SPEC.running, end=CLOSE)

    return answer


def failures_counted(server: FaultServer, expected: int) -> int:
    """Return how many handshakes failed; the server's own thread may count one after the client has given up."""
    wait_until(lambda: server.handshakes_failed >= expected, "the failed handshakes", pause=0.005)
    return server.handshakes_failed


@pytest.mark.row("N24")
@path
def test_a_ca_file_that_is_replaced_is_read_again(path: str, tls_server: FaultServer, ca_file: Path, new: Path) -> None:
    rotate = then(tls_server, lambda: tls_server.use_certificate(new), lambda: shutil.copy(new, ca_file))
    tls_server.on(POLL, rotate, SPEC.completed)
    assert wait(path).kind == COMPLETED
    assert tls_server.handshakes_failed == 0


@pytest.mark.row("N24")
@path
def test_a_wait_forgives_one_failure_during_ca_file_replacement(
    path: str, tls_server: FaultServer, ca_file: Path, new: Path
) -> None:
    tls_server.on(POLL, then(tls_server, lambda: tls_server.use_certificate(new)), SPEC.completed)

    def rotate() -> None:
        failures_counted(tls_server, 1)
        shutil.copy(new, ca_file)

    rotating = threading.Thread(target=rotate)
    rotating.start()
    assert wait(path, poll_interval=0.5).kind == COMPLETED
    rotating.join()
    assert failures_counted(tls_server, 1) == 1


@pytest.mark.row("N24")
@path
def test_a_ca_file_that_stays_wrong_ends_the_wait(path: str, tls_server: FaultServer, new: Path) -> None:
    tls_server.on(POLL, then(tls_server, lambda: tls_server.use_certificate(new)), SPEC.completed)
    outcome = wait(path)
    assert outcome.kind == GAVE_UP
    assert "certificate" in outcome.message.lower()
    assert failures_counted(tls_server, 2) == 2
