"""Print the URL of a PostgreSQL server on this machine on which databases may be made, or nothing."""

from __future__ import annotations

import os

import psycopg2

CANDIDATES = (
    "postgresql://postgres@127.0.0.1:5432/postgres",
    "postgresql://crew_tests:crew_tests@127.0.0.1:5432/postgres",
)


def usable(url: str) -> bool:
    try:
        connection = psycopg2.connect(url, connect_timeout=3)
    except psycopg2.OperationalError:
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user")
        row = cursor.fetchone()
    connection.close()
    return bool(row and row[0])


def server_url() -> str | None:
    """Return the server that CREW_TESTS_POSTGRES names, else one that is found."""
    return os.environ.get("CREW_TESTS_POSTGRES") or next(filter(usable, CANDIDATES), None)


if __name__ == "__main__":
    print(next(filter(usable, CANDIDATES), ""))
