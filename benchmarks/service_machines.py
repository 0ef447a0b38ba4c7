"""Runs several services on one PostgreSQL database: `python -m benchmarks.service_machines`.

`kickoffs` measures kickoffs per second with one, two and three services; `latencies` measures how long 16 clients wait
for the response to a kickoff, on SQLite and on PostgreSQL; `statuses` measures how many of their status requests are
answered per second, and `polls` the cost of reading a status with few and with many stored executions, also on both;
`claimed` the cost of a claim with 10,000 queued executions, of one owner and of 100.
Prints figures in benchmarks/README.md. Needs a server on which databases may be created.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from sqlalchemy import func, select, text

from benchmarks.harness import turns
from benchmarks.harness.turns import Figures
from benchmarks.service_load import Side, ask, burst, request, settled
from benchmarks.traces import serving
from crew_service.http.dialects.spec import SpecDialect
from crew_service.storage import claims, queries
from crew_service.storage.database import Database
from crew_service.storage.states import OVER
from crew_service.storage.tables import executions
from scripts.find_postgres import WANTED, server_url
from scripts.stack.database import ThrowAwayDatabase

CLIENTS = 24
FEW_CLIENTS = 16
SECONDS = 8.0
ROUNDS = 3
SIZES = (100, 1_000_000)
POLLS = 500  # per turn
POLL_ROUNDS = 11
IDS = 100
QUEUED, OWNERS, CLAIMED = 10_000, (1, 100), 4
SCENARIO = {"inputs": ["topic"], "tasks": [{"id": "only_task", "output": "All on {topic}"}]}
FILL = """
INSERT INTO executions (id, kickoff_id, crew, state, segment, writes, created_at, due_at, updated_at, ended_at,
                        work_seconds, tokens, inputs, completed_tasks, asked, tasks, output)
SELECT id, id, '', 'completed', 1, 3, n, n, n, n, 1.5, 0, '{"topic": "x"}', 1, '[]',
       '[{"task_id": "only_task", "output": "All on x", "agent": "Agent", "execution_time": 1.5}]', '"All on x"'
FROM """
SERIES = {
    "postgresql": "(SELECT gen_random_uuid()::text AS id, n FROM generate_series(1, :size) AS n) AS made",
    "sqlite": """(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < :size)
                  SELECT lower(hex(randomblob(16))) AS id, n FROM s)""",
}


async def kick_off(port: int, until: float) -> list[float]:
    """Return the seconds that each kickoff took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, times = request("POST", "/kickoff", {"inputs": {"topic": "x"}}), []
    while (began := time.perf_counter()) < until:
        code, _ = await ask(reader, writer, sent)
        assert code == 200, code
        times.append(time.perf_counter() - began)
    writer.close()
    return times


async def kicked_off(ports: list[int], clients: int = CLIENTS) -> list[float]:
    until = time.perf_counter() + SECONDS
    found = await asyncio.gather(*(kick_off(ports[i % len(ports)], until) for i in range(clients)))
    return [each for times in found for each in times]


def completed(database: Database, number: int) -> None:
    """Return once that many executions have ended."""
    query = select(func.count()).select_from(executions).where(executions.c.state.in_(OVER))
    while True:
        with database.reading() as connection:
            if connection.execute(query).scalar_one() >= number:
                return
        time.sleep(0.05)


def rates(server: str, folder: Path, number: int) -> Figures:
    """Return the kickoffs answered per second, and the executions completed per second."""
    database = ThrowAwayDatabase(server)
    with ExitStack() as stack:
        stack.callback(database.drop)
        services = [stack.enter_context(serving(folder, SCENARIO, "--db", database.url)) for _ in range(number)]
        stored = Database(database.url)
        stack.callback(stored.close)
        began = time.perf_counter()
        answered = len(asyncio.run(kicked_off([port for _, port in services])))
        completed(stored, answered)
        return {"answered": answered / SECONDS, "completed": answered / (time.perf_counter() - began)}


def kickoffs(server: str, folder: Path) -> str:
    found = turns.in_turn({str(n): partial(rates, server, folder, n) for n in (1, 2, 3)}, ROUNDS)
    turns.keep("service_kickoffs", found.of)
    rows = [[case, found.shown(case, "answered"), found.shown(case, "completed")] for case in found.of]
    return turns.table(["services on one PostgreSQL", "kickoffs/s", "completed/s"], rows)


def waited(folder: Path, *options: str) -> Figures:
    """Return the milliseconds that clients wait for the response to a kickoff while the service runs the executions."""
    with serving(folder, SCENARIO, *options) as (_, port):
        asyncio.run(kicked_off([port], 1))  # its first requests are slower
        times = sorted(asyncio.run(kicked_off([port], FEW_CLIENTS)))
    shares = {"p50": 0.5, "p99": 0.99}
    return {name: times[int(share * len(times))] * 1000 for name, share in shares.items()} | {"number": len(times)}


def latencies(server: str, folder: Path) -> str:
    def on_sqlite() -> Figures:
        return waited(folder)

    def on_postgresql() -> Figures:
        database = ThrowAwayDatabase(server)
        try:
            return waited(folder, "--db", database.url)
        finally:
            database.drop()

    found = turns.in_turn({"SQLite": on_sqlite, "PostgreSQL": on_postgresql}, ROUNDS)
    turns.keep("service_latencies", found.of)
    rows = [[case, *(found.shown(case, name) for name in ("p50", "p99", "number"))] for case in found.of]
    return turns.table([f"kickoffs of {FEW_CLIENTS} clients", "p50 ms", "p99 ms", f"in {SECONDS:.0f} s"], rows)


def statuses(server: str, folder: Path) -> str:
    """Both services run at once and are asked in turn; each turn is half a second."""
    database = ThrowAwayDatabase(server)
    with ExitStack() as stack:
        stack.callback(database.drop)
        cases = {}
        for case, options in {"SQLite": (), "PostgreSQL": ("--db", database.url)}.items():
            process, port = stack.enter_context(serving(folder, SCENARIO, *options))
            ids = asyncio.run(burst(port, FEW_CLIENTS))[0]
            asyncio.run(settled(port, ids, "completed"))
            side = Side(process, port, [request("GET", f"/status/{each}") for each in ids])
            cases[case] = partial(answered, side)
        found = turns.in_turn(cases, POLL_ROUNDS)
    turns.keep("service_statuses", found.of)
    rows = [
        [case, found.shown(case, "rate"), found.ratio(case, "SQLite", "rate"), found.shown(case, "us")]
        for case in found.of
    ]
    return turns.table([f"statuses for {FEW_CLIENTS} clients", "per second", "relative to SQLite", "CPU us"], rows)


def answered(side: Side) -> Figures:
    before = side.cpu, side.answers
    asyncio.run(side.turn())
    return {"rate": side.rates[-1], "us": (side.cpu - before[0]) / (side.answers - before[1]) * 1e6}


def filled(url: str, size: int) -> Database:
    database = Database(url)
    kind = "sqlite" if database.is_sqlite else "postgresql"
    with database.writing() as connection:
        connection.execute(text(FILL + SERIES[kind]), {"size": size})
        connection.execute(text("ANALYZE"))
    return database


def some_ids(database: Database) -> list[str]:
    """Return the ids of executions from all parts of the table."""
    with database.reading() as connection:
        query = select(executions.c.kickoff_id).order_by(func.random()).limit(IDS)
        return list(connection.execute(query).scalars())


def cost(database: Database, ids: list[str]) -> Figures:
    """Return the median time to read a status, in microseconds."""
    query, times = queries.status_query(SpecDialect.columns), []
    for number in range(POLLS):
        began = time.perf_counter()
        assert database.peek(query, ids[number % len(ids)])
        times.append(time.perf_counter() - began)
    return {"us": statistics.median(times) * 1e6}


def compared(
    name: str, cases: Mapping[str, Callable[[], Figures]], what: str, figure: str, title: str, *, digits: int = 0
) -> str:
    """Measure cases in turn; return a table of a figure, beside the first case's."""
    found = turns.in_turn(cases, POLL_ROUNDS)
    turns.keep(name, found.of)
    first = next(iter(cases))
    rows = [[case, found.shown(case, figure, digits), found.ratio(case, first, figure)] for case in cases]
    return turns.table([what, title, "relative to the first"], rows)


def polls(kind: str, urls: list[str]) -> str:
    with ExitStack() as stack:
        cases = {}
        for size, url in zip(SIZES, urls, strict=True):
            database = filled(url, size)
            stack.callback(database.close)
            cases[f"{size:,}, {kind}"] = partial(cost, database, some_ids(database))
        return compared(f"service_polls_{kind.lower()}", cases, "stored executions", "us", "us to read a status")


def queued(url: str, owners: int) -> Database:
    """Fill a database with queued executions whose owners take turns."""
    database = Database(url)
    times = dict.fromkeys(("created_at", "due_at", "updated_at"), 1.0)
    with database.writing() as connection:
        claims.register(connection, "process", host="", alone=False, now=1.0)
        for number in range(QUEUED):
            values = {"id": f"{number}", "kickoff_id": f"{number}", "crew": "", "inputs": {}, **times}
            queries.create(connection, owner=f"owner {number % owners}", **values)
        connection.execute(text("ANALYZE"))
    return database


def claim(database: Database) -> Figures:
    """Return the milliseconds of a claim, which is then undone."""
    with suppress(_Undone), database.writing() as connection:
        began = time.perf_counter()
        found = claims.claim_due(connection, "process", "", now=database.now(), limit=CLAIMED)
        took = time.perf_counter() - began
        assert found is not None
        assert len(found) == CLAIMED
        raise _Undone
    return {"ms": took * 1000}


class _Undone(Exception):
    pass


def claimed(kind: str, urls: list[str]) -> str:
    with ExitStack() as stack:
        cases = {}
        for owners, url in zip(OWNERS, urls, strict=True):
            database = queued(url, owners)
            stack.callback(database.close)
            cases[f"{owners}, {kind}"] = partial(claim, database)
        head = f"owners of {QUEUED:,} queued", "ms", f"ms to claim {CLAIMED}"
        return compared(f"service_claims_{kind.lower()}", cases, *head, digits=1)


def main() -> None:
    server = server_url() or sys.exit(WANTED)
    wanted, tables = sys.argv[1:] or ["kickoffs", "latencies", "statuses", "polls", "claimed"], []
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        if "kickoffs" in wanted:
            tables.append(kickoffs(server, folder))
        if "latencies" in wanted:
            tables.append(latencies(server, folder))
        if "statuses" in wanted:
            tables.append(statuses(server, folder))
        for name, sizes, measure in (("polls", SIZES, polls), ("claimed", OWNERS, claimed)):
            if name in wanted:
                databases = [ThrowAwayDatabase(server) for _ in sizes]
                for database in databases:
                    stack.callback(database.drop)
                tables.append(measure("SQLite", [str(folder / f"{name}-{size}.db") for size in sizes]))
                tables.append(measure("PostgreSQL", [database.url for database in databases]))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
