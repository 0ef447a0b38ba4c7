"""A connection looked up without blocking the event loop.

Airflow has an awaitable look-up since 3.1, which fails in a busy triggerer before 3.3.2; the compat provider
works around that. In `dag.test()` of 3.3.2 it finds no connection of the database, since the supervisor that stands in
there cannot be awaited.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.supervisor import is_awaitable


async def aget_connection(conn_id: str) -> Any:
    """Return a connection; raises what Airflow raises."""
    from airflow.providers.common.compat.connection import get_async_connection
    from airflow.providers.common.compat.sdk import BaseHook

    look_up = get_async_connection if is_awaitable() else sync_to_async(BaseHook.get_connection)
    return await look_up(conn_id)
