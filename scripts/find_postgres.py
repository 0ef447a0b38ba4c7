"""Print the URL of a PostgreSQL server on which databases may be created, or nothing."""

from __future__ import annotations

import os
from functools import cache

import psycopg2

VARIABLE = "CREW_TESTS_POSTGRES"
CANDIDATES = (
    "postgresql://postgres@127.0.0.1:5432/postgres",
    "postgresql://crew_tests:crew_tests@127.0.0.1:5432/postgres",
)
WANTED = f"needs PostgreSQL on this machine, or {VARIABLE}=postgresql://user@host:port/name"


@cache
def server_url() -> str | None:
    """Return the server in CREW_TESTS_POSTGRES or, if that is unset, one that is found; None if it is empty."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE] or None
    return next(filter(_usable, CANDIDATES), None)


def _usable(url: str) -> bool:
    try:
        connection = psycopg2.connect(url, connect_timeout=3)
    except psycopg2.OperationalError:
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user")
        row = cursor.fetchone()
    connection.close()
    return bool(row and row[0])


if __name__ == "__main__":
    print(server_url() or "")
