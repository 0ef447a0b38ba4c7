"""Asset events for crews that Airflow did not start. Internal to Airflow."""

from __future__ import annotations

from typing import Any

from airflow.assets.manager import asset_manager
from airflow.models.asset import AssetEvent, AssetModel
from airflow.utils.session import create_session
from sqlalchemy import select, update

from airflow_crew_provider.compat.json_column import mentions
from airflow_crew_provider.models import Json


def add_event(uri: str, kickoff_id: str, extra: Json) -> bool | None:
    """Store the one event of an execution; False if it is known already, None if no DAG uses the asset."""
    with create_session(scoped=False) as session:
        mine = (AssetModel.uri == uri, AssetModel.active.has())
        # A write comes first: it locks the asset on every database, and nothing that is read after it is stale.
        lock = update(AssetModel).where(*mine).values(uri=uri).execution_options(synchronize_session=False)
        session.execute(lock)
        asset = session.scalars(select(AssetModel).where(*mine)).one_or_none()
        if asset is None:
            return None
        if _is_known(session, asset.id, kickoff_id):
            return False
        asset_manager.register_asset_change(asset=asset, extra=extra, session=session, source_is_api=True)
    return True


def _is_known(session: Any, asset_id: int, kickoff_id: str) -> bool:
    of_asset = (AssetEvent.asset_id == asset_id, mentions(AssetEvent.extra, kickoff_id))
    found = session.scalars(select(AssetEvent.extra).where(*of_asset))
    return any((extra or {}).get("kickoff_id") == kickoff_id for extra in found)
