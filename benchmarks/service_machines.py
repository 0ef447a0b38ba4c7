"""Several services on one PostgreSQL: `python -m benchmarks.service_machines`. Prints figures of service_load.md.

`kickoffs` measures kickoffs per second with one, two and three services; `polls` what a status costs with few and with
many stored executions, on SQLite and on PostgreSQL. Needs a server on which databases may be made.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import text

from airflow_crew_provider.service.http.dialects.spec import SpecDialect
from airflow_crew_provider.service.storage import queries
from airflow_crew_provider.service.storage.database import Database
from benchmarks.service_load import TOKEN, ask, free_port, request, started
from scripts.find_postgres import CANDIDATES, usable
from scripts.stack.database import ThrowAwayDatabase

CLIENTS = 24
SECONDS = 8.0
SIZES = (100, 1_000_000)
POLLS = 2000
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


async def kick_off(port: int, until: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, count = request("POST", "/kickoff", {"inputs": {"topic": "x"}}), 0
    while time.perf_counter() < until:
        code, _ = await ask(reader, writer, sent)
        assert code == 200, code
        count += 1
    writer.close()
    return count


async def rate(ports: list[int]) -> float:
    until = time.perf_counter() + SECONDS
    return sum(await asyncio.gather(*(kick_off(ports[i % len(ports)], until) for i in range(CLIENTS)))) / SECONDS


def kickoffs(server: str, folder: Path) -> None:
    scenario = folder / "crew.json"
    scenario.write_text(json.dumps(SCENARIO))
    for number in (1, 2, 3):
        database = ThrowAwayDatabase(server)
        with ExitStack() as stack:
            ports = [free_port() for _ in range(number)]
            for port in ports:
                command = ["-m", "airflow_crew_provider.service", "serve", "--port", str(port), "--token", TOKEN]
                stack.enter_context(started(*command, "--db", database.url, "--crew", str(scenario), port=port))
            print(f"{number} services: {asyncio.run(rate(ports)):.0f} kickoffs/s, each run to its end meanwhile")
        database.drop()


def polls(url: str) -> None:
    database = Database(url)
    kind = "sqlite" if database.is_sqlite else "postgresql"
    stored = 0
    for size in SIZES:
        with database.writing() as connection:
            connection.execute(text(FILL + SERIES[kind]), {"size": size - stored})
            connection.execute(text("ANALYZE"))
        stored = size
        print(f"{kind}, {size:,} stored: {cost(database):.0f} us a status")
    database.close()


def cost(database: Database) -> float:
    """Microseconds of the read that a status makes, the median."""
    query = queries.status_query(SpecDialect.columns)
    with database.reading() as connection:
        ids = list(connection.execute(text("SELECT kickoff_id FROM executions LIMIT 100")).scalars())
    times = []
    for number in range(POLLS):
        began = time.perf_counter()
        assert database.peek(query, ids[number % len(ids)])
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def main() -> None:
    server = next(filter(usable, CANDIDATES))
    wanted = sys.argv[1:] or ["kickoffs", "polls"]
    with tempfile.TemporaryDirectory() as folder:
        if "kickoffs" in wanted:
            kickoffs(server, Path(folder))
        if "polls" in wanted:
            polls(str(Path(folder) / "many.db"))
            database = ThrowAwayDatabase(server)
            polls(database.url)
            database.drop()


if __name__ == "__main__":
    main()
