"""All that an Airflow wrote down, as text: its files, and each row of its database with the triggers decrypted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from cryptography.fernet import Fernet

from scripts.stack import AirflowStack

TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "postgres": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
}


def database_text(airflow: AirflowStack) -> str:
    """Return every row of every table, and what the triggers' encrypted arguments say."""
    with closing(_connect(airflow)) as database:
        kind = "postgres" if airflow.database else "sqlite"
        tables = [name for (name,) in _rows(database, TABLES[kind])]
        assert {"xcom", "rendered_task_instance_fields", "trigger", "log", "task_instance"} <= set(tables)
        said = [f"{table}: {_text(row)}" for table in tables for row in _rows(database, f'SELECT * FROM "{table}"')]
        arguments = [row for (row,) in _rows(database, 'SELECT kwargs FROM "trigger"')]
    key = Fernet(airflow.env["AIRFLOW__CORE__FERNET_KEY"])
    return "\n".join([*said, *(f"trigger arguments: {_plain(key, each)}" for each in arguments)])


def _plain(key: Fernet, arguments: str) -> str:
    """Return arguments as they are, or decrypted: Airflow 3.3 stores those that a worker sends as they come."""
    return key.decrypt(arguments.encode()).decode() if arguments.startswith("gAAAA") else arguments


def files_text(airflow: AirflowStack) -> str:
    """Return all logs and whatever else lies in Airflow's home."""
    files = [path for path in sorted(airflow.home.rglob("*")) if path.is_file()]
    return "\n".join(f"{path}:\n{path.read_bytes().decode(errors='replace')}" for path in files)


def _connect(airflow: AirflowStack) -> Any:
    if not airflow.database:
        return sqlite3.connect(f"file:{airflow.home}/airflow.db?mode=ro", uri=True)
    import psycopg2  # a machine that runs on SQLite alone need not have it

    return psycopg2.connect(airflow.database.url.replace("+psycopg2", ""))


def _rows(database: Any, query: str) -> Iterator[tuple[Any, ...]]:
    with closing(database.cursor()) as cursor:
        cursor.execute(query)
        yield from cursor.fetchall()


def _text(row: tuple[Any, ...]) -> str:
    values = [bytes(value) if isinstance(value, memoryview | bytes) else value for value in row]
    return " | ".join(v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in values)
