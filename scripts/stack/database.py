"""A temporary database on a PostgreSQL server, created for one stack and dropped with it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit


class ThrowAwayDatabase:
    """A temporary database.

    :param server: URL of a database whose user may create others, ``postgresql://user@host:port/name``
    :param scheme: of its URL, which may name a driver
    :param template: name of the database that it is a copy of; nobody may be connected to that
    """

    def __init__(self, server: str, scheme: str = "postgresql", template: str = "template1") -> None:
        self.server = server
        self._scheme = scheme
        self.name = f"crew_{secrets.token_hex(6)}"
        self._execute(f'CREATE DATABASE "{self.name}" TEMPLATE "{template}"')

    @property
    def url(self) -> str:
        parts = urlsplit(self.server)
        return urlunsplit(parts._replace(scheme=self._scheme, path=f"/{self.name}"))

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Close every connection, and refuse new ones until the block ends."""
        self._execute(f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS false')
        try:
            self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'")
            yield
        finally:
            self._execute(f'ALTER DATABASE "{self.name}" ALLOW_CONNECTIONS true')

    def drop(self) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        import psycopg2  # not required on machines that only use SQLite

        connection = psycopg2.connect(self.server)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()
