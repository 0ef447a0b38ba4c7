"""A secrets back end that counts: each look-up of a connection is a line in the file that COUNTED_LOOKUPS names."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import Connection
from airflow.secrets.base_secrets import BaseSecretsBackend


class CountedConnections(BaseSecretsBackend):
    """Knows the connection whose address is in COUNTED_URL."""

    def get_connection(self, conn_id: str, *_: Any, **__: Any) -> Connection | None:
        with open(os.environ["COUNTED_LOOKUPS"], "a") as file:
            file.write(f"{conn_id}\n")
        if conn_id != "crew_default":
            return None
        return Connection(conn_id=conn_id, conn_type="crew", host=os.environ["COUNTED_URL"], password="a-token")
