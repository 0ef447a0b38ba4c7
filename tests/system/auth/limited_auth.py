"""Airflow's simple auth manager, with a user who has the DAGs without their XComs and one who has no DAG at all."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

LACKS: dict[str, set[DagAccessEntity | None]] = {
    "no-xcoms": {DagAccessEntity.XCOM},
    "no-dag": {None, *DagAccessEntity},
}


class LimitedAuthManager(SimpleAuthManager):
    """Refuses what a user of `LACKS` lacks."""

    def is_authorized_dag(self, *, user: Any, access_entity: Any = None, **asked: Any) -> bool:
        """Return whether a user may do what is asked."""
        lacks = LACKS.get(user.get_id(), set())
        return access_entity not in lacks and super().is_authorized_dag(user=user, access_entity=access_entity, **asked)
