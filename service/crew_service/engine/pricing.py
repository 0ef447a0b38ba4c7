"""Default prices: of all catalogues that the machines of a service have had, the newest release's counts."""

from __future__ import annotations

import logging

from crew_service.prices import Prices, version_of
from crew_service.storage import price_tables
from crew_service.storage.database import Database

log = logging.getLogger(__name__)


def settle(database: Database, prices: Prices) -> None:
    """Store this machine's catalogue if it is the newest, and use the newest for what is used from now on."""
    if prices.default is None:
        return
    with database.reading() as connection:
        stored = price_tables.sources(connection)
    newest = max(stored, key=version_of, default="")
    own = prices.default
    if version_of(newest) < version_of(own.source) and (table := own.read()):
        with database.writing() as connection:
            price_tables.put(connection, own.source, table)
        newest = own.source
    if newest in ("", prices.source):
        return
    with database.reading() as connection:
        prices.take(newest, price_tables.entries(connection, newest))
    log.info("prices of %s", newest)
