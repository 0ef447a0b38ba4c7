"""``GET /statuses``: many polls in one request. Of our own crew service only, which offers it in a header. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from airflow_crew_provider.core import responses
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.core.request_parts import path_segment
from airflow_crew_provider.core.responses import HttpResponse, Mask
from airflow_crew_provider.core.status_parser import USAGE_FIELD
from airflow_crew_provider.exceptions import CrewProtocolError

OFFER = "Crew-Batch-Status"  # a header of the answer to a poll; its value is the path
PATH = "/statuses"
MOST_IDS = 200
LONGEST_IDS = 7000  # characters of them all; proxies refuse a request line of more than 8 KiB


def statuses(kickoff_ids: Collection[str]) -> Call[dict[str, HttpResponse]]:
    """Ask for many; the answer has for each id what a poll of its own would have been answered, or nothing."""
    ids = ",".join(path_segment(each) for each in kickoff_ids)
    return Call("GET", f"{PATH}?ids={ids}", _read)


def portions(kickoff_ids: Collection[str]) -> Iterator[list[str]]:
    """Divide ids into as many as one request may carry."""
    portion: list[str] = []
    length = 0
    for each in kickoff_ids:
        size = len(path_segment(each)) + 1
        if portion and (len(portion) == MOST_IDS or length + size > LONGEST_IDS):
            yield portion
            portion, length = [], 0
        portion.append(each)
        length += size
    if portion:
        yield portion


def _read(answer: HttpResponse, mask: Mask) -> dict[str, HttpResponse]:
    body = responses.json_of(answer, f"GET {PATH}", mask)
    found = body.get("statuses") if isinstance(body, dict) else None
    if not isinstance(found, dict):
        raise CrewProtocolError(f"GET {PATH} gave no object under 'statuses'")
    return {
        kickoff_id: HttpResponse(each["code"], {}, b"", each["body"], each.get(USAGE_FIELD))
        for kickoff_id, each in found.items()
        if _is_answer(each)
    }


def _is_answer(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("code")) is int and isinstance(value.get("body"), dict)
