"""Decides who may see a tab, according to Airflow's permissions. Needs Airflow 3.1 or newer.

Airflow mounts a plugin's application without authentication. These dependencies read the bearer token or the session
cookie, and ask the auth manager about the DAG whose id is the path's ``dag_id``.
"""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag

# A tab shows XComs and review questions, which some roles that may read the DAG may not read.
ENTITIES = (DagAccessEntity.XCOM, DagAccessEntity.HITL_DETAIL)
MAY_SEE = [requires_access_dag("GET", entity) for entity in ENTITIES]
