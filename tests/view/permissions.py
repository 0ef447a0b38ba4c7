"""An auth manager with roles that have a DAG and lack some of what belongs to it, which the simple one has not."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from viewed_run import ONE_DAG

LACKS = {
    "sees-all": set(),
    "no-xcoms": {DagAccessEntity.XCOM},
    "no-forms": {DagAccessEntity.HITL_DETAIL},
    "no-dag": set(DagAccessEntity) | {None},
}


class TestAuthManager(SimpleAuthManager):
    """Knows the users of `LACKS`, and such as may see a single DAG."""

    __test__ = False

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        """Refuse what the user lacks."""
        name = user.get_id()
        if name.startswith(ONE_DAG):
            return bool(details and details.id == name.removeprefix(ONE_DAG))
        return method == "GET" and access_entity not in LACKS[name]
