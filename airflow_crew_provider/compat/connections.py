"""A connection looked up without blocking the event loop. Tried on 2.11.2, 3.0.6, 3.1.8, 3.2.2 and 3.3.2.

Airflow has an awaitable look-up since 3.1, which fails in a busy triggerer before 3.3.2; the compat provider
works around that.
"""

from __future__ import annotations

from typing import Any


async def aget_connection(conn_id: str) -> Any:
    """Return a connection; raises what Airflow raises."""
    from airflow.providers.common.compat.connection import get_async_connection

    return await get_async_connection(conn_id)
