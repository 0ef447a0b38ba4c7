"""Kills processes at random moments, and starts those that have ended again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random

from topology import Cluster

from scripts.stack.background import BackgroundWork

PAUSE = (20.0, 40.0)  # a process that starts again takes some ten seconds of a core
SHORT_PAUSE = (10.0, 20.0)
TICK = 0.5
WEIGHTS = {"worker": 5, "triggerer": 3, "scheduler": 2, "api-server": 1, "crew service": 4, "redis": 1}
POSTGRES = "postgres restarted"
KINDS = [*WEIGHTS, POSTGRES]


class Killer(BackgroundWork):
    """:param kinds: kill this many kinds once each, and no more; None kills on, each kind once at first"""

    def __init__(self, cluster: Cluster, seed: int, *, kinds: int | None) -> None:
        super().__init__()
        self.kills: Counter[str] = Counter()
        self.revived: Counter[str] = Counter()
        self.last_kill = time.monotonic()
        self._cluster, self._random, self._kills_on = cluster, Random(seed), kinds is None
        self._pause = PAUSE if self._kills_on else SHORT_PAUSE
        self._first = self._random.sample(KINDS, kinds or len(KINDS))
        self._kills_over = threading.Event()

    @property
    def killed_what_it_had_to(self) -> bool:
        return not self._first

    def stop_killing(self) -> None:
        """Kill nothing more; what ends by itself is still started again."""
        self._kills_over.set()

    def work(self) -> None:
        next_kill = time.monotonic() + self._random.uniform(*self._pause)
        while not self.over.wait(TICK):
            self.revived.update(self._cluster.revive())
            if time.monotonic() >= next_kill and not self._kills_over.is_set():
                self._kill_one()
                next_kill = time.monotonic() + self._random.uniform(*self._pause)

    def _kill_one(self) -> None:
        if self._first:
            kind = self._first.pop()
        elif not self._kills_on:
            return
        else:
            kind = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind == POSTGRES:
            self._cluster.postgres.restart()
        else:
            self._cluster.kill(self._random.choice(self._cluster.names[kind]))
        self.kills[kind] += 1
        self.last_kill = time.monotonic()
