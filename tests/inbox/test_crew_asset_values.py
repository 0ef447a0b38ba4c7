"""The asset that a connection stands for, the secret of its webhook, and the one id that is read of it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_crew_provider.client.deployment import webhook_secret
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox.messages import completed_asset, completed_id
from airflow_crew_provider.models import total_tokens


@pytest.mark.parametrize(
    ("conn_id", "uri"),
    [
        ("newsroom", "crew://newsroom/completed"),
        ("crew_default", "crew://crew_default/completed"),
        ("team/a", "crew://team%2Fa/completed"),
    ],
)
def test_the_asset_is_named_after_the_connection(conn_id: str, uri: str) -> None:
    assert completed_asset(conn_id) == uri


@pytest.mark.parametrize("secret", ["a" * 32, "Z9_-" * 25])
def test_a_long_secret_that_fits_into_a_path_is_taken(secret: str) -> None:
    assert webhook_secret({"crew_webhook_secret": secret}) == secret


@pytest.mark.parametrize("secret", [None, "", "a" * 31, "a" * 101, "a" * 32 + "/", "ä" * 32, 10**40, "a" * 32 + "\n"])
def test_a_guessable_or_path_unsafe_secret_counts_as_none(secret: Any) -> None:
    assert webhook_secret({"crew_webhook_secret": secret}) is None
    assert webhook_secret({}) is None


def test_of_a_webhook_the_id_alone_is_read() -> None:
    assert completed_id({"kickoff_id": "k-1", "result": "a text"}) == "k-1"


@pytest.mark.parametrize("body", [None, [], "k-1", {}, {"kickoff_id": None}])
def test_a_webhook_without_an_id_says_so(body: Any) -> None:
    with pytest.raises(CrewProtocolError, match=r"^The webhook lacks kickoff_id$"):
        completed_id(body)


def test_a_webhook_whose_id_cannot_be_polled_is_refused() -> None:
    with pytest.raises(CrewProtocolError, match=r"^The webhook's kickoff_id is not an id$"):
        completed_id({"kickoff_id": ".."})


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [(None, None), ({}, None), ({"total_tokens": True}, None), ({"total_tokens": "5"}, None), ({"total_tokens": 5}, 5)],
)
def test_tokens_are_a_number_or_unknown(usage: Any, tokens: int | None) -> None:
    assert total_tokens(usage) == tokens
