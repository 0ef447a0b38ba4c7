"""Run by Alembic to apply the migrations on the connection, and in the transaction, of `schema.bring_up_to_date`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
