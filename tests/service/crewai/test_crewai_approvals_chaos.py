"""Kills while people approve tool calls (CREW_CHAOS_SIZE, CREW_CHAOS_SEED); see `asks_chaos`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import SystemRandom

import pytest
from asks_chaos import POINTS, Case, Service, Services, model, play_all, table
from crew_client import Command
from engine_stub import CREWS
from openai_server import environment

SIZE = int(os.environ.get("CREW_CHAOS_SIZE", "100"))
SEED = int(os.environ.get("CREW_CHAOS_SEED") or SystemRandom().randrange(1_000_000))
BOUND = 720.0  # seconds, after which no case begins
AT_ONCE = 8
TOKEN, USER_TOKEN = "the-token-of-the-organization", "the-token-of-somebody-else"


@pytest.mark.long
@pytest.mark.timeout(BOUND + 360)
@pytest.mark.row("S1", "S19")
def test_chaos_runs_no_call_without_its_approval_or_twice(
    command: Callable[..., Command], postgresql: str, tmp_path: Path
) -> None:
    server = model()
    words = ["--token", TOKEN, "--user-token", f"other={USER_TOKEN}", "--db", postgresql, "--workers", str(AT_ONCE)]
    words += ["--tool", "pay=approve", "--crew", f"{CREWS / 'approved.py'}:crew"]
    services = Services(
        [
            Service(name, partial(command, *words, environment={**environment(server), "SERVICE": name}))
            for name in ("first", "second")
        ],
        TOKEN,
        USER_TOKEN,
    )
    cases = [Case(number, SEED, services, tmp_path / "effects") for number in range(SIZE)]
    played = play_all(cases, at_once=AT_ONCE, until=time.monotonic() + BOUND)
    server.close()
    sys.stdout.write(f"SEED={SEED}, two services on PostgreSQL\n\n{table(played, services)}\n")
    wrong = [each for case in played for each in case.wrong]
    assert not wrong, f"SEED={SEED}\n" + "\n".join(wrong)
    assert services.kills.keys() >= set(POINTS[: len(played)]), "something was killed at each point"
