"""A secrets backend that counts lookups: it writes a line to the file in COUNTED_LOOKUPS for each of them."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import Connection
from airflow.secrets.base_secrets import BaseSecretsBackend


class CountedConnections(BaseSecretsBackend):
    """Returns one connection, with the address in COUNTED_URL."""

    def get_connection(self, conn_id: str, *_: Any, **__: Any) -> Connection | None:
        with open(os.environ["COUNTED_LOOKUPS"], "a") as file:
            file.write(f"{conn_id}\n")
        if conn_id != "crew_default":
            return None
        return Connection(conn_id=conn_id, conn_type="crew", host=os.environ["COUNTED_URL"], password="a-token")
