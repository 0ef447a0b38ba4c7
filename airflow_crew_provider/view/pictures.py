"""Fetches pictures that the tab shows: PNG, JPEG and WebP files of an execution, each of at most 1 MiB.

The API server fetches a picture from the deployment with the connection's token, and passes it on only if its content
is that of the listed file and begins as a picture does. No other file reaches a browser on Airflow's origin: HTML and
SVG could run scripts there.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.models import WrittenFile
from airflow_crew_provider.view.deployment import TIMEOUT, hook_of

SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Where a picture comes from."""

    crew_conn_id: str
    execution_id: str
    file: WrittenFile
    direction: str


@dataclass(frozen=True)
class Picture:
    """A fetched picture.

    :param content: None if it could not be fetched, or is none
    """

    content: bytes | None
    content_type: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it is known."""
        return self.content is not None


def fetched(source: Source, before: Picture | None) -> Picture:
    """Fetch a picture from its deployment."""
    content = bytearray()

    def take(piece: bytes) -> None:
        content.extend(piece)
        if len(content) > source.file.size:
            raise ValueError("more than the file's size")

    call = endpoints.written_file(source.execution_id, source.file, source.direction)
    try:
        hook_of(source.crew_conn_id).client.send(call, timeout=TIMEOUT, sink=take)
    except (CrewError, ValueError) as error:
        log.warning("A picture of execution %s was not fetched for the Crew tab: %s", source.execution_id, error)
        return Picture(None)
    kind = type_of(bytes(content[:12]))
    is_same = hashlib.sha256(content).hexdigest() == source.file.sha256
    return Picture(bytes(content), kind) if kind and is_same else Picture(None)


def type_of(head: bytes) -> str:
    """Return the type of the picture that begins with these bytes; empty for any other content."""
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return next((name for signature, name in SIGNATURES.items() if head.startswith(signature)), "")
