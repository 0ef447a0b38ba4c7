"""Whose an execution is, as columns and conditions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, and_, case, func
from sqlalchemy.engine import Row
from sqlalchemy.sql import ColumnElement

from crew_service.budgets import CREW, ORGANIZATION, Owner


def columns(owner: Owner) -> dict[str, Any]:
    return {"owner": owner.user, "crew_token": owner.has_crew_token}


def owner_of(row: Row[Any]) -> Owner:
    return Owner(row.owner, bool(row.crew_token))


def label(table: Table) -> ColumnElement[str | None]:
    """Return the owner as a budget names it, but null for the organization."""
    own = CREW + table.c.crew + "/" + func.coalesce(table.c.owner, ORGANIZATION)
    return case((table.c.crew_token.is_(True), own), else_=table.c.owner)


def is_of(table: Table, owner: Owner) -> ColumnElement[bool]:
    """Return the condition for an owner's rows; if the token is a crew's own, also select the crew."""
    is_own = table.c.crew_token.is_(True) if owner.has_crew_token else table.c.crew_token.is_not(True)
    return and_(table.c.owner.is_not_distinct_from(owner.user), is_own)
