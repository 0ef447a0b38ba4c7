"""Upgrades a database to this release's schema once, however many processes start at the same time.

On PostgreSQL, two consecutive releases may share a database during a rollout or rollback: migrations only add to
the schema, and the database records the last migration of the oldest release that may still use it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
BEFORE_MIGRATIONS = "0001"  # the schema of release 0.1, which did not record migrations
OLDEST = "0011"  # the last migration of the oldest release that may run alongside this one
WITH_RULES = "0012"  # the last migration of the oldest release with tool rules
WITH_CHAINS = "0014"  # likewise for executions that continue others
WITH_ASKS = "0015"  # likewise for questions in the middle of a task
WITH_PREPARE = "0021"  # likewise for the rule `prepare`
WITH_FLOW_ASKS = "0024"  # likewise for questions that a Flow's methods ask
SQLITE_VERSION = 2  # release 0.1 refuses any version but its own, which is 1
LOCK = 0x63726577  # PostgreSQL lock for the transaction that changes the schema


class OtherVersion(Exception):
    """The database was created by a release unknown to this one."""


class EarlierInUse(Exception):
    """The database has an earlier release's schema and is in use, perhaps by that release."""


def newest() -> str:
    return max(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def bring_up_to_date(connection: Connection, in_use: Callable[[], bool]) -> None:
    """Apply missing migrations in the caller's transaction, which on SQLite must already hold the write lock.

    :param in_use: returns whether a process that could not use the upgraded database may be running
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    revision = _revision(connection)
    if revision == newest():
        return
    if revision is not None and revision > newest():
        if not _may_work_beside(connection, revision):
            raise OtherVersion
        return
    if revision is not None and in_use():
        raise EarlierInUse
    _upgrade(connection, carried_over=revision == BEFORE_MIGRATIONS)
    connection.execute(text("DELETE FROM releases"))
    row = {"newest": newest(), "oldest": OLDEST}
    connection.execute(text("INSERT INTO releases (newest, oldest) VALUES (:newest, :oldest)"), row)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version={SQLITE_VERSION}")


def _revision(connection: Connection) -> str | None:
    """Return the newest migration that was applied, or None for an empty database."""
    if connection.dialect.name == "sqlite" and _sqlite_version(connection) > SQLITE_VERSION:
        raise OtherVersion
    tables = inspect(connection)
    if tables.has_table("alembic_version"):
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if not tables.has_table("executions"):
        return None
    if connection.dialect.name == "sqlite" and _sqlite_version(connection) != 1:
        raise OtherVersion
    return BEFORE_MIGRATIONS


def _may_work_beside(connection: Connection, revision: str) -> bool:
    """Return whether the newer release that upgraded the database allows this one to use it."""
    if connection.dialect.name == "sqlite" or not inspect(connection).has_table("releases"):
        return False
    query = text("SELECT oldest FROM releases WHERE newest = :found")
    oldest: str | None = connection.execute(query, {"found": revision}).scalar()
    return oldest is not None and oldest <= newest()


def keep_out_earlier(connection: Connection, oldest: str) -> bool:
    """Keep releases whose last migration is before `oldest` from starting here; return False if one is running."""
    connection.execute(text("UPDATE releases SET oldest = :oldest WHERE oldest < :oldest"), {"oldest": oldest})
    earlier = text("SELECT count(*) FROM processes WHERE release IS NULL OR release < :oldest")
    return connection.execute(earlier, {"oldest": oldest}).scalar() == 0


def _sqlite_version(connection: Connection) -> int:
    version: int = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    return version


def _upgrade(connection: Connection, *, carried_over: bool) -> None:
    from alembic import command  # imported only when needed, because the import is slow
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    if carried_over and not inspect(connection).has_table("alembic_version"):
        command.stamp(config, BEFORE_MIGRATIONS)
    command.upgrade(config, "head")
