"""The sender of a POST: what of it is kept, and what counts as a change."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.client.deployment import Deployment
from airflow_crew_provider.kickoff.post_record import Sender
from airflow_crew_provider.models import HumanInputWebhook, Webhooks

DEPLOYMENT = Deployment("https://x", "token", headers=(("X-B", "2"), ("X-A", "1")))


def sender(
    deployment: Deployment = DEPLOYMENT,
    webhooks: Any = None,
    inbox_url: str | None = "https://i",
    before: str | None = None,
) -> Sender:
    connection: Any = SimpleNamespace(deployment=deployment, inbox_url=inbox_url)
    return Sender.of(connection, webhooks, before)


def human(**more: Any) -> Webhooks:
    return Webhooks(human_input=HumanInputWebhook("https://h", **more))


def test_what_is_kept_shows_no_secret() -> None:
    kept = sender(webhooks=human(token="webhook-token")).as_dict()
    assert set(kept) == {"base_url", "principal", "credentials"}
    assert kept["base_url"] == "https://x"
    assert {len(kept["principal"]), len(kept["credentials"])} == {32}
    assert "token" not in str(kept)


def test_header_order_does_not_change_the_sender() -> None:
    same = replace(DEPLOYMENT, headers=(("X-A", "1"), ("X-B", "2")), timeout=1.0)
    assert sender(same).changes(sender().as_dict()) == []
    assert not sender(same).is_another(sender().as_dict())


@pytest.mark.parametrize(
    ("other", "changed", "is_another"),
    [
        (sender(replace(DEPLOYMENT, token="other")), ["the token (or an extra header)"], True),
        (sender(replace(DEPLOYMENT, headers=())), ["the token (or an extra header)"], True),
        (sender(webhooks=human(token="t")), ["the credential of a webhook (or the inbox's URL)"], False),
        (sender(webhooks="inbox"), ["the credential of a webhook (or the inbox's URL)"], False),
    ],
)
def test_each_change_is_named(other: Sender, changed: list[str], is_another: bool) -> None:
    kept = sender().as_dict()
    assert other.changes(kept) == changed
    assert other.is_another(kept) is is_another


def test_another_base_url_is_another_sender_in_every_part() -> None:
    other = sender(replace(DEPLOYMENT, base_url="https://y"))
    assert other.changes(sender().as_dict())[0] == "the base URL"
    assert other.is_another(sender().as_dict())
    assert len(set(other.as_dict().values()) & set(sender().as_dict().values())) == 0


def test_what_was_not_kept_counts_as_changed() -> None:
    assert len(sender().changes({})) == 3
    assert sender().is_another({})


def test_every_part_of_a_credential_counts() -> None:
    given = [human(), human(token="a"), human(username="a"), human(password="a"), human(username="a", password="b")]
    assert len({sender(webhooks=each).credentials for each in given}) == len(given)
    assert sender(webhooks=Webhooks()).credentials == sender(webhooks=None).credentials
    inboxes = {sender(webhooks="inbox", inbox_url=url).credentials for url in ("https://i", "https://j", None)}
    assert len(inboxes) == 3


def test_a_resent_request_keeps_its_earlier_inbox() -> None:
    moved = sender(webhooks="inbox", inbox_url="https://new", before="https://i")
    assert moved == sender(webhooks="inbox")
    assert sender(webhooks=human(token="t"), before="https://new") == sender(webhooks=human(token="t"))


def test_half_of_a_surrogate_pair_in_a_secret_counts() -> None:
    assert len({sender(replace(DEPLOYMENT, token=text)).principal for text in ("\ud800", "\udfff", "?")}) == 3
