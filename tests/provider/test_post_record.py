"""The record of a POST, by itself: what each try writes down, and what it makes of what it finds."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_airflow import StateStore

from airflow_crew_provider.client import Deployment
from airflow_crew_provider.compat.attempt import Attempt
from airflow_crew_provider.compat.task_state import StoredTaskState, TaskStateUnavailable
from airflow_crew_provider.exceptions import CrewBadRequest, CrewError, CrewOutcomeUnknown, CrewUnauthorized
from airflow_crew_provider.hooks.connection import CrewConnection
from airflow_crew_provider.models import HumanInputWebhook, Json, Webhooks
from airflow_crew_provider.tasks import post_record
from airflow_crew_provider.tasks.post_record import KEPT, Earlier, PostRecord, fingerprint
from airflow_crew_provider.tasks.sender import Sender

NAME = "crew_kickoff"
SENDER = Sender("https://crew.example.com", "p", "c")
REFUSED = CrewBadRequest(400, "POST", "/kickoff", "no")
UNAUTHORIZED = CrewUnauthorized(401, "POST", "/kickoff", "no")


class Task:
    """A task instance and what is stored of it."""

    def __init__(self) -> None:
        self.store = StateStore()

    def attempt(self, number: int = 1, max_tries: int = 2, name: str = "r", retries: int = 2) -> PostRecord:
        return PostRecord(StoredTaskState(self.store, NAME), Attempt(number, max_tries, retries), name)

    @property
    def kept(self) -> Json:
        return StoredTaskState(self.store, NAME).recall()


@pytest.fixture
def task() -> Task:
    return Task()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; it stands still until the test moves it."""
    now = [1000.0]
    monkeypatch.setattr(post_record.time, "time", lambda: now[0])
    return now


def test_a_first_try_finds_nothing(task: Task) -> None:
    record = task.attempt()
    assert record.earlier is Earlier.NOTHING
    assert (record.posts, record.cleared, record.kickoff_id) == ([], False, None)


def test_an_intent_holds_who_sends_what_when_and_by_which_try(task: Task) -> None:
    key = task.attempt(2).intend(SENDER, draft="d")
    assert task.kept == {
        "fingerprint": "r",
        "base_url": "https://crew.example.com",
        "principal": "p",
        "credentials": "c",
        "max_tries": 2,
        "retries": 2,
        "clears": None,
        "try_number": 2,
        "idempotency_key": key,
        "first_at": 1000.0,
        "intended_at": 1000.0,
        "earlier": [],
        "draft": "d",
    }


def test_an_intent_without_an_id_is_unknown_to_the_next_try_and_with_one_it_is_done(task: Task) -> None:
    first = task.attempt()
    first.intend(SENDER)
    assert task.attempt(2).earlier is Earlier.UNKNOWN
    first.done("k-1")
    found = task.attempt(2)
    assert (found.earlier, found.kickoff_id, found.same_request) == (Earlier.DONE, "k-1", True)
    another = task.attempt(2, name="other")
    assert (another.earlier, another.same_request, another.cleared) == (Earlier.ANOTHER, False, False)


def test_the_same_post_keeps_its_key_and_its_first_time(task: Task, clock: list[float]) -> None:
    key = task.attempt().intend(SENDER)
    clock[0] = 1500.0
    assert task.attempt(2).intend(SENDER) == key
    assert (task.kept["first_at"], task.kept["intended_at"], task.kept["try_number"]) == (1000.0, 1500.0, 2)
    assert task.kept["earlier"] == []


@pytest.mark.parametrize(
    ("name", "sender", "keyed"),
    [
        ("other", SENDER, True),
        ("r", Sender("https://other.example.com", "p", "c"), True),
        ("r", Sender("https://crew.example.com", "other", "c"), True),
        ("r", Sender("https://crew.example.com", "p", "other"), True),
        ("r", SENDER, False),
    ],
)
@pytest.mark.parametrize("error", [REFUSED, UNAUTHORIZED])
def test_another_post_has_another_key_and_its_refusal_brings_the_first_back(
    task: Task, name: str, sender: Sender, keyed: bool, error: CrewError, clock: list[float]
) -> None:
    key = task.attempt().intend(SENDER)
    before = task.kept
    clock[0] = 1500.0
    second = task.attempt(2, name=name)
    assert second.intend(sender, keyed=keyed) != key
    assert [post["first_at"] for post in second.posts] == [1500.0, 1000.0]
    assert second.failed(error)
    assert [post["idempotency_key"] for post in second.posts] == [key]
    assert task.kept == before
    assert task.attempt(3).earlier is Earlier.UNKNOWN


def test_a_refusal_leaves_nothing_behind(task: Task) -> None:
    record = task.attempt()
    record.intend(SENDER)
    assert record.failed(UNAUTHORIZED)
    assert (record.posts, task.store.kept) == ([], {})


def test_what_is_unknown_stays(task: Task) -> None:
    record = task.attempt()
    record.intend(SENDER)
    assert not record.failed(CrewOutcomeUnknown("lost"))
    assert task.attempt(2).earlier is Earlier.UNKNOWN


@pytest.mark.parametrize(("error", "settles"), [(REFUSED, True), (UNAUTHORIZED, False)])
def test_only_a_refusal_that_honours_the_key_settles_what_was_sent_before(
    task: Task, error: CrewError, settles: bool
) -> None:
    task.attempt().intend(SENDER)
    second = task.attempt(2)
    second.intend(SENDER)
    assert second.failed(error) is settles
    assert task.attempt(3).earlier is (Earlier.NOTHING if settles else Earlier.UNKNOWN)


def test_a_record_that_cannot_be_removed_stays_open_and_the_refusal_is_reported(task: Task) -> None:
    record = task.attempt()
    record.intend(SENDER)
    task.store.delete = lambda key: 1 / 0  # type: ignore[method-assign, assignment]
    assert record.failed(UNAUTHORIZED)
    assert task.attempt(2).earlier is Earlier.UNKNOWN


def test_a_record_that_cannot_be_stored_is_an_error_before_the_post(task: Task) -> None:
    record = task.attempt()
    task.store.set = lambda key, value, retention: 1 / 0  # type: ignore[method-assign, assignment, misc]
    with pytest.raises(TaskStateUnavailable, match="could not be stored"):
        record.intend(SENDER)


def test_a_clear_is_written_down_at_once_and_stands_until_the_next_post(task: Task) -> None:
    first = task.attempt()
    first.intend(SENDER)
    first.done("k-1")
    first.over()
    assert task.kept["over"] is True
    cleared = task.attempt(2, max_tries=3)
    assert (cleared.earlier, cleared.cleared, cleared.kickoff_id) == (Earlier.ANOTHER, True, "k-1")
    assert (task.kept["cleared"], task.kept["over"], task.kept["max_tries"]) == (True, False, 3)
    assert task.attempt(3, max_tries=3).earlier is Earlier.ANOTHER
    task.attempt(3, max_tries=3).intend(SENDER)
    assert "cleared" not in task.kept
    assert task.attempt(4, max_tries=3).earlier is Earlier.UNKNOWN


def test_posts_that_may_still_run_are_kept_and_those_that_have_finished_are_not(task: Task) -> None:
    record = task.attempt()
    for name in ("a", "b", "c"):
        record.fingerprint = name
        record.intend(SENDER)
        record.done(f"k-{name}")
        if name == "b":
            record.note(finished=True)
    assert [post["kickoff_id"] for post in record.posts] == ["k-c", "k-a"]
    assert all("earlier" not in post for post in record.posts)


def test_a_record_names_so_many_posts_at_most(task: Task) -> None:
    record = task.attempt()
    for number in range(KEPT + 5):
        record.fingerprint = str(number)
        record.intend(SENDER)
    assert [post["fingerprint"] for post in record.posts] == [str(n) for n in range(KEPT + 4, 3, -1)]


def test_the_end_says_what_is_known(task: Task) -> None:
    record = task.attempt()
    record.intend(SENDER)
    record.over(finished=True)
    assert (task.kept["over"], task.kept["finished"]) == (True, True)


def test_a_fingerprint_is_of_the_content_alone() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1}) != fingerprint({"a": 1, "b": [3]})
    assert fingerprint({"half": "\ud800"})


def connection(**more: Any) -> CrewConnection:
    deployment = {"base_url": "https://crew.example.com", "token": "the-token", **more.pop("deployment", {})}
    return CrewConnection(Deployment(**deployment), **more)


HOOK = Webhooks(human_input=HumanInputWebhook("https://x", username="rita", password="the-password"))
OTHER = Webhooks(human_input=HumanInputWebhook("https://x", username="rita", password="another"))
TOKEN = Webhooks(human_input=HumanInputWebhook("https://x", token="the-password"))


def test_a_sender_shows_no_secret_and_is_the_same_every_time() -> None:
    sender = Sender.of(connection(deployment={"headers": (("X-Key", "the-header"),)}), HOOK)
    assert sender == Sender.of(connection(deployment={"headers": (("X-Key", "the-header"),)}), HOOK)
    for secret in ("the-token", "the-header", "the-password", "rita"):
        assert secret not in repr(sender)
    assert len(sender.principal) == len(sender.credentials) == 32


@pytest.mark.parametrize(
    ("other", "webhooks", "names", "is_another"),
    [
        (connection(), HOOK, [], False),
        (connection(deployment={"token": "rotated"}), HOOK, ["the token"], True),
        (connection(deployment={"headers": (("X-User", "rita"),)}), HOOK, ["the token"], True),
        (connection(), OTHER, ["the credential"], False),
        (connection(), TOKEN, ["the credential"], False),
        (connection(), None, ["the credential"], False),
        (connection(inbox_url="https://inbox"), "inbox", ["the credential"], False),
    ],
)
def test_a_sender_names_what_has_changed(
    other: CrewConnection, webhooks: Any, names: list[str], is_another: bool
) -> None:
    kept, now = Sender.of(connection(), HOOK).as_dict(), Sender.of(other, webhooks)
    assert [name[: len(want)] for name, want in zip(now.changes(kept), names, strict=True)] == names
    assert now.is_another(kept) is is_another


def test_another_base_url_is_another_sender_and_so_is_one_that_was_not_kept() -> None:
    kept = Sender.of(connection()).as_dict()
    moved = Sender.of(connection(deployment={"base_url": "https://other.example.com"}))
    assert "the base URL" in moved.changes(kept)
    assert moved.is_another(kept)
    assert len(Sender.of(connection()).changes({})) == 3
    assert Sender.of(connection()).is_another({})


def test_the_url_of_the_inbox_counts_for_the_word_alone() -> None:
    here, there = (connection(inbox_url=f"https://{name}") for name in ("here", "there"))
    assert Sender.of(here, "inbox") != Sender.of(there, "inbox")
    assert Sender.of(here, None) == Sender.of(there, None)
