"""A refusal is one clear error."""

from __future__ import annotations

from typing import Any

import pytest
from client_calls import KICKOFF, Ask
from faults.server import FaultServer
from faults.wire import Reply

from airflow_crew_provider.exceptions import (
    CrewBadRequest,
    CrewError,
    CrewMissingInputs,
    CrewNotFound,
    CrewQuotaExceeded,
    CrewRateLimited,
    CrewRefused,
    CrewServerError,
    CrewTooLarge,
    CrewUnauthorized,
)

NGINX = """<html>\r
<head><title>413 Request Entity Too Large</title></head>\r
<body>\r
<center><h1>413 Request Entity Too Large</h1></center>\r
<hr><center>nginx</center>\r
</body>\r
</html>\r
"""


@pytest.mark.row("N12")
@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (Reply(status=400, body={"error": "Bad", "message": "inputs must be an object"}), CrewBadRequest, "must be"),
        (Reply(status=401, body={"detail": "Invalid or missing authentication"}), CrewUnauthorized, "authentication"),
        (Reply(status=403, body={"detail": "not allowed"}), CrewUnauthorized, "not allowed"),
        (Reply(status=404, body="404 page not found"), CrewNotFound, "page not found"),
        (Reply(status=405, body={"detail": "Method Not Allowed"}), CrewRefused, "Method Not Allowed"),
        (Reply(status=413, body={"detail": "more than 10 bytes"}), CrewTooLarge, "more than 10 bytes"),
        (Reply(status=413, body=NGINX.encode()), CrewTooLarge, "413 Request Entity Too Large nginx$"),
        (Reply(status=422, body={"detail": "Missing inputs: topic, tone"}), CrewMissingInputs, "topic, tone"),
        (Reply(status=429, body={"detail": "too many"}), CrewRateLimited, "too many"),
        (Reply(status=403, body={"detail": "Monthly execution limit reached"}), CrewQuotaExceeded, "limit reached"),
        (Reply(status=200, body={"detail": "Monthly execution limit reached"}), CrewQuotaExceeded, "limit reached"),
        (Reply(status=500, body="Internal Server Error"), CrewServerError, "Internal Server Error"),
    ],
)
def test_a_refusal_is_one_clear_error(
    ask: Ask, server: FaultServer, fault: Reply, kind: type[CrewError], said: str
) -> None:
    server.on("POST /kickoff", fault)
    with pytest.raises(kind, match=said) as error:
        ask(KICKOFF)
    assert type(error.value) is kind


@pytest.mark.row("N12")
@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"detail": "Missing inputs: audience, topic"}, ["audience", "topic"]),
        ({"detail": "Missing required inputs: ['audience', 'topic']"}, ["audience", "topic"]),
        ({"error": "x", "message": "y", "details": {"missing_inputs": ["audience", "topic"]}}, ["audience", "topic"]),
        (
            {"detail": [{"loc": ["body", "inputs"], "msg": "Field required", "type": "missing"}]},
            ["inputs"],
        ),
        ({"detail": [{"loc": ["body", "inputs", "topic"]}, {"loc": ["inputs", "tone"]}]}, ["topic", "tone"]),
        ({"detail": [["body", "inputs", "topic"], ["body", "inputs", "tone"]]}, ["topic", "tone"]),
        ({"detail": [{"loc": ["body", "inputs"], "msg": "Input should be an object", "type": "dict_type"}]}, []),
        ({"detail": [{"loc": []}, {"loc": None}, {"loc": 5}, "x", 5]}, []),
        ({"detail": "something else"}, []),
        ([], []),
    ],
)
def test_a_422_names_the_inputs_that_are_missing(ask: Ask, server: FaultServer, body: Any, names: list[str]) -> None:
    server.on("POST /kickoff", Reply(status=422, body=body))
    with pytest.raises(CrewMissingInputs) as error:
        ask(KICKOFF)
    assert error.value.names == names


@pytest.mark.row("N12")
@pytest.mark.parametrize("item", [["body", "inputs", "topic"], {"loc": ["body", "inputs", "topic"]}])
def test_a_422_of_places_says_which_inputs_are_missing(ask: Ask, server: FaultServer, item: Any) -> None:
    server.on("POST /kickoff", Reply(status=422, body={"detail": [item]}))
    with pytest.raises(CrewMissingInputs, match=r"422: Missing inputs: topic \(body\.inputs\.topic"):
        ask(KICKOFF)
