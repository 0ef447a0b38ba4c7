"""What a crew's own webhook does, whoever started the crew: one event of the asset that its connection stands for."""

from __future__ import annotations

from airflow_crew_provider.compat import crew_assets, crew_senders
from airflow_crew_provider.core.crew_assets import completed_asset, webhook_secret
from airflow_crew_provider.core.inbox_addresses import digest, matches
from airflow_crew_provider.inbox.receiving import Result

RESULTS = {True: Result.TAKEN, False: Result.KNOWN, None: Result.NO_ASSET}


def is_proven(crew_conn_id: str, capability: str) -> bool:
    """Whether an address holds the secret of a connection that takes such webhooks."""
    found = crew_senders.connection_of(crew_conn_id)
    secret = webhook_secret(found[1]) if found else None
    return matches(capability, digest(secret) if secret else "")


def take(crew_conn_id: str, kickoff_id: str) -> Result:
    """Store that an execution is completed, once."""
    extra = {"crew_conn_id": crew_conn_id, "kickoff_id": kickoff_id}
    return RESULTS[crew_assets.add_event(completed_asset(crew_conn_id), kickoff_id, extra)]
