"""The webhook that reports a crew's success, no matter who started the crew, and adds an event to an asset."""

from __future__ import annotations

from typing import Annotated, Any

from airflow.assets.manager import asset_manager
from airflow.models.asset import AssetEvent, AssetModel
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Path
from sqlalchemy import select, update

from airflow_crew_provider.client.deployment import webhook_secret
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox.app import KNOWN, TAKEN, Answer, Body, answered, unknown
from airflow_crew_provider.inbox.messages import completed_asset, completed_id, digest, matches
from airflow_crew_provider.inbox.store import connection_of, mentions
from airflow_crew_provider.models import Json


def add_event(uri: str, kickoff_id: str, extra: Json) -> bool | None:
    """Store one event for an execution; return False if it is already stored, None if no DAG uses the asset."""
    with create_session(scoped=False) as session:
        mine = (AssetModel.uri == uri, AssetModel.active.has())
        # Write first: this locks the asset on every database, so that later reads are not stale.
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
    extras = session.scalars(select(AssetEvent.extra).where(*of_asset))
    return any((extra or {}).get("kickoff_id") == kickoff_id for extra in extras)


NO_ASSET = Answer(404, "no DAG uses this connection's asset; nothing was stored")
ANSWERS = {True: TAKEN, False: KNOWN, None: NO_ASSET}

router = APIRouter()


def crew_sender(
    connection: Annotated[str, Path(max_length=250)], capability: Annotated[str, Path(max_length=100)]
) -> str:
    """Return the id of the connection in the address, if the address also contains its webhook secret."""
    sender = connection_of(connection)
    secret = webhook_secret(sender[1]) if sender else None
    if not matches(capability, digest(secret) if secret else ""):
        raise unknown()
    return connection


@router.post("/crew/{connection}/{capability}")
def crew_completed(crew_conn_id: Annotated[str, Depends(crew_sender)], body: Body) -> dict[str, str]:
    """Add one event for a crew that succeeded, no matter who started it."""
    try:
        kickoff_id = completed_id(body)
    except CrewProtocolError as error:
        raise HTTPException(422, str(error)) from None
    extra = {"crew_conn_id": crew_conn_id, "kickoff_id": kickoff_id}
    return answered(ANSWERS[add_event(completed_asset(crew_conn_id), kickoff_id, extra)])
