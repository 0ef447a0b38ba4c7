"""The record of a POST as its own values: what is written down when, and what a later try makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_crew_provider.exceptions import (
    CrewBadRequest,
    CrewConnectionError,
    CrewError,
    CrewInvalidInput,
    CrewMissingInputs,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
)
from airflow_crew_provider.kickoff import post_record
from airflow_crew_provider.kickoff.post_record import (
    NAMES,
    CrewPostLost,
    Earlier,
    PostRecord,
    Sender,
    SendOnce,
    fingerprint,
)
from airflow_crew_provider.models import Resumed, Started
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.record import KEPT, OF_SENDER, StoredPost
from airflow_crew_provider.task.store import TaskStateUnavailable

SENDER = Sender("https://x", "principal", "credentials")
OTHER = Sender("https://x", "another", "credentials")
WHERE = ("POST", "/kickoff", "no")


class Memory:
    """Keeps a record as JSON, between tries."""

    def __init__(self) -> None:
        self.kept, self.ended, self.broken = "", "", False

    def recall(self) -> dict[str, Any]:
        return json.loads(self.kept) if self.kept else {}

    def keep(self, record: dict[str, Any]) -> None:
        if self.broken:
            raise TaskStateUnavailable("away")
        self.kept = json.dumps(record)

    def owe(self, record: dict[str, Any], failed: Any) -> None:
        try:
            self.keep(record)
        except TaskStateUnavailable as problem:
            failed(problem)

    def forget(self) -> None:
        if self.broken:
            raise TaskStateUnavailable("away")
        self.kept = ""

    def close(self, record: dict[str, Any]) -> None:
        self.ended = json.dumps(record)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(post_record.time, "time", lambda: now[0])
    return now


def record(memory: Memory, request: str = "one", **attempt: Any) -> PostRecord:
    return PostRecord(memory, Attempt(**{"max_tries": 2, "retries": 2, "clears": 0, **attempt}), request)


def test_without_a_record_nothing_was_done(memory: Memory) -> None:
    empty = record(memory)
    assert (empty.earlier, empty.newest.unsettled) == (Earlier.NOTHING, ())
    assert (empty.kickoff_id, empty.newest.cleared) == (None, False)
    assert not empty.same_request


@pytest.mark.parametrize(
    ("kept", "forgotten"),
    [
        ({"try_number": 3}, True),
        ({"try_number": 2, "run_started": 9.0}, False),
        ({"try_number": 2, "run_started": 5.0}, True),
        ({"try_number": 1}, False),
        ({"try_number": 1, "clears": 1, "run_started": 5.0}, True),
    ],
)
def test_a_deleted_runs_record_with_the_same_id_is_ignored(
    memory: Memory, caplog: pytest.LogCaptureFixture, kept: Any, forgotten: bool
) -> None:
    memory.keep({"fingerprint": "one", "max_tries": 2, "retries": 2, **kept})
    found = record(memory, try_number=2, run_started=9.0)
    found.begin_try()
    assert found.earlier is (Earlier.NOTHING if forgotten else Earlier.UNKNOWN)
    assert bool(memory.kept) is not forgotten
    said = "This task's record is from a deleted DAG run with the same id, so it is ignored"
    assert (said in caplog.messages) is forgotten
    assert found.intend(SENDER), "which is not taken for another try's"


def test_an_intent_is_stored_before_the_post(memory: Memory) -> None:
    key = record(memory).intend(SENDER, of_a_room={"id": 1})
    assert memory.recall() == {
        **{"fingerprint": "one", "base_url": "https://x", "principal": "principal", "credentials": "credentials"},
        **{"max_tries": 2, "retries": 2, "clears": 0, "try_number": 1, "idempotency_key": key, "keyed": True},
        **{"first_at": 100.0, "intended_at": 100.0, "of_a_room": {"id": 1}},
    }
    assert len(key) == 36
    again = record(memory, try_number=2)
    assert (again.earlier, again.same_request) == (Earlier.UNKNOWN, True)
    assert [post.to_json() for post in again.newest.unsettled] == [memory.recall()]
    assert record(memory, "two").earlier is Earlier.UNKNOWN


@pytest.mark.parametrize("answered", [False, True])
def test_a_try_that_overlaps_with_another_one_sends_nothing(memory: Memory, answered: bool) -> None:
    killed, next_try = record(memory), record(memory, try_number=2, max_tries=3)
    next_try.intend(SENDER)
    if answered:
        next_try.record_id("k-1")
    with pytest.raises(TaskStateUnavailable, match=r"^Another try of this task has since changed its record$"):
        killed.intend(SENDER)
    assert killed.newest == record(memory, try_number=2, max_tries=3).newest


def test_only_the_same_request_finds_a_recorded_id(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    first.record_id("k-1")
    again = record(memory, try_number=2)
    assert (again.earlier, again.kickoff_id) == (Earlier.STARTED, "k-1")
    assert record(memory, "two").earlier is Earlier.ANOTHER


def test_a_repeated_post_keeps_its_key_and_first_sending_time(memory: Memory, clock: list[float]) -> None:
    key = record(memory).intend(SENDER)
    clock[0] = 200.0
    again = record(memory, try_number=2)
    assert again.intend(SENDER) == key
    kept = memory.recall()
    assert (kept["first_at"], kept["intended_at"], kept["try_number"]) == (100.0, 200.0, 2)
    assert "earlier" not in kept


@pytest.mark.parametrize(("request_", "sender"), [("two", SENDER), ("one", OTHER)], ids=["request", "sender"])
def test_another_post_has_its_own_key_and_the_first_stays(
    memory: Memory, clock: list[float], request_: str, sender: Sender
) -> None:
    key = record(memory).intend(SENDER)
    first = memory.recall()
    clock[0] = 200.0
    again = record(memory, request_, try_number=2)
    assert again.intend(sender) != key
    kept = memory.recall()
    assert (kept["first_at"], kept["intended_at"]) == (200.0, 200.0)
    assert kept["earlier"] == [first]
    assert [post.fingerprint for post in again.newest.unsettled] == [request_, "one"]


def test_changes_of_the_sender_are_named(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    assert (first.changes(SENDER), first.why_not_again(SENDER, keyed=True, at_risk=True)) == ([], None)
    assert first.changes(OTHER) == ["the token (or an extra header)"]
    assert "the token (or an extra header)" in str(first.why_not_again(OTHER, keyed=True, at_risk=True))


def test_a_clear_is_stored_at_once_and_disowns_the_record(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    first.record_id("k-1")
    cleared = record(memory, try_number=2, max_tries=3, clears=1)
    assert (cleared.newest.cleared, cleared.earlier) == (True, Earlier.ANOTHER)
    kept = memory.recall()
    assert (kept["cleared"], kept["max_tries"], kept["clears"]) == (True, 3, 1)
    assert "try_number" in kept
    assert kept["try_number"] == 1
    assert record(memory, try_number=3, max_tries=3, clears=1).earlier is Earlier.ANOTHER


def test_only_a_limited_number_of_unfinished_posts_is_named(memory: Memory) -> None:
    for number in range(KEPT + 5):
        record(memory, str(number), try_number=number + 1).intend(SENDER)
    names = [post.fingerprint for post in record(memory).newest.unsettled]
    assert names == [str(number) for number in range(KEPT + 4, 3, -1)]
    last = record(memory)
    last.close(finished=True)
    memory.kept = memory.ended
    record(memory, "new").intend(SENDER)
    assert str(KEPT + 4) not in [post.fingerprint for post in record(memory).newest.unsettled]


REFUSALS = [
    CrewInvalidInput("no"),
    CrewConnectionError("no"),
    CrewBadRequest(400, *WHERE),
    CrewUnauthorized(401, *WHERE),
    CrewNotFound(404, *WHERE),
    CrewMissingInputs(["a"]),
    CrewRateLimited(429, *WHERE),
]
UNKNOWN = [CrewOutcomeUnknown("no"), CrewServerError(500, *WHERE), CrewProtocolError("no")]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_after_a_refusal_nothing_is_on_record(memory: Memory, error: CrewError) -> None:
    first = record(memory)
    first.intend(SENDER)
    assert first.withdraw_if_refused(error) is True
    assert (memory.kept, first.newest, first.earlier) == ("", StoredPost(), Earlier.NOTHING)


@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__)
def test_after_another_error_the_intent_stays(memory: Memory, error: CrewError) -> None:
    first = record(memory)
    first.intend(SENDER)
    assert first.withdraw_if_refused(error) is False
    assert record(memory).earlier is Earlier.UNKNOWN


@pytest.mark.parametrize("error", [*REFUSALS, *UNKNOWN], ids=lambda error: type(error).__name__)
def test_what_was_sent_before_is_settled_by_no_refusal(memory: Memory, error: CrewError) -> None:
    record(memory).intend(SENDER)
    again = record(memory, try_number=2)
    again.intend(SENDER)
    assert again.withdraw_if_refused(error) is False
    assert record(memory, try_number=3).earlier is Earlier.UNKNOWN


def test_a_refusal_takes_back_the_newest_post_only(memory: Memory) -> None:
    record(memory, "one").intend(SENDER)
    first = memory.recall()
    record(memory, "two", try_number=2).intend(SENDER)
    third = record(memory, "three", try_number=3)
    third.intend(SENDER)
    assert third.withdraw_if_refused(CrewBadRequest(400, *WHERE)) is True
    kept = memory.recall()
    assert kept["fingerprint"] == "two"
    assert [post["fingerprint"] for post in kept["earlier"]] == ["one"]
    assert kept["earlier"][0]["idempotency_key"] == first["idempotency_key"]


def test_an_unstorable_refusal_still_counts_as_one(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    first = record(memory)
    first.intend(SENDER)
    memory.broken = True
    assert first.withdraw_if_refused(CrewInvalidInput("no")) is True
    assert [each.getMessage() for each in caplog.records] == ["away"]


def test_the_end_of_a_task_is_written_down(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    first.close()
    ended = json.loads(memory.ended)
    assert "finished" not in ended
    first.close(finished=True)
    assert json.loads(memory.ended) == {**ended, "finished": True}


def test_an_execution_that_an_earlier_post_started_is_adopted(memory: Memory) -> None:
    record(memory, "other").intend(SENDER)
    record(memory, "one", try_number=2).intend(OTHER)
    again = record(memory, "one", try_number=3)
    again.intend(SENDER)
    again.adopt("k-1")
    found = record(memory, "one", try_number=4)
    assert (found.earlier, found.kickoff_id) == (Earlier.STARTED, "k-1")
    assert [post.fingerprint for post in found.newest.unsettled] == ["one", "other"]


@pytest.mark.parametrize("before", ["other request", "answered", "nothing"])
def test_a_post_that_is_adopted_leaves_all_others_on_record(memory: Memory, before: str) -> None:
    if before != "nothing":
        other = record(memory, "other" if before == "other request" else "one")
        other.intend(SENDER)
        if before == "answered":
            other.record_id("k-0")
    again = record(memory, "one", try_number=2, max_tries=3)
    again.intend(SENDER)
    again.adopt("k-1")
    ids = [post.kickoff_id for post in record(memory).newest.unsettled]
    assert ids == {"other request": ["k-1", None], "answered": ["k-1", "k-0"], "nothing": ["k-1"]}[before]


def test_a_refusal_restores_an_ended_execution_to_the_record(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    first.record_id("k-1")
    kept = memory.recall()
    again = record(memory, try_number=2)
    again.finish()
    again.intend(SENDER)
    assert again.withdraw_if_refused(CrewInvalidInput("no")) is True
    assert memory.recall() == {**kept, "finished": True}
    assert (again.earlier, again.kickoff_id) == (Earlier.STARTED, "k-1")
    assert again.intend(SENDER), "a further POST is not taken for another try's"


def test_another_requests_refusal_does_not_restore_an_ended_execution(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    first.record_id("k-1")
    again = record(memory, "two", try_number=2)
    again.finish()
    again.intend(SENDER)
    assert again.withdraw_if_refused(CrewInvalidInput("no")) is True
    assert memory.kept == ""


def test_a_request_is_named_by_its_content() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert len(fingerprint({})) == 64


def test_half_of_a_surrogate_pair_is_content_too() -> None:
    assert len({fingerprint({"a": text}) for text in ("\ud800", "\udfff", "?", "")}) == 4


def test_without_keys_the_post_after_a_lost_one_is_separate(memory: Memory) -> None:
    key = record(memory).intend(SENDER)
    again = record(memory, try_number=2)
    assert again.intend(SENDER, keyed=False) != key
    assert [post["idempotency_key"] for post in memory.recall()["earlier"]] == [key]


@pytest.mark.parametrize(
    ("then", "now", "same"), [(True, True, True), (True, False, False), (False, True, False), (None, True, True)]
)
def test_a_key_is_used_again_only_if_it_was_sent(memory: Memory, then: bool | None, now: bool, same: bool) -> None:
    key = record(memory).intend(SENDER, keyed=bool(then), added={"a": 1})
    if then is None:  # as release 0.2.0 wrote it
        memory.keep({name: value for name, value in memory.recall().items() if name != "keyed"})
    again = record(memory, try_number=2)
    assert again.added_before(keyed=now) == ({"a": 1} if same else {})
    assert (again.intend(SENDER, keyed=now) == key) is same


def test_an_answered_request_gets_a_new_key_after_a_clear(memory: Memory) -> None:
    first = record(memory)
    key = first.intend(SENDER)
    first.record_id("k-1")
    cleared = record(memory, try_number=2, max_tries=3)
    assert cleared.earlier is Earlier.ANOTHER
    assert cleared.intend(SENDER) != key
    assert [post["kickoff_id"] for post in memory.recall()["earlier"]] == ["k-1"]


def test_a_resent_post_keeps_earlier_ones_on_record(memory: Memory) -> None:
    record(memory, "one").intend(SENDER)
    key = record(memory, "two", try_number=2).intend(SENDER)
    assert record(memory, "two", try_number=3).intend(SENDER) == key
    assert [post.fingerprint for post in record(memory).newest.unsettled] == ["two", "one"]


def test_a_resent_post_repeats_the_fields_added_to_it(memory: Memory) -> None:
    key = record(memory).intend(SENDER, added={"a": 1})
    again = record(memory, try_number=2)
    assert again.intend(SENDER, added={"a": 2}) == key
    assert again.added == {"a": 1}
    another = record(memory, "two", try_number=3)
    another.intend(SENDER, added={"a": 3})
    assert another.added == {"a": 3}


def test_a_post_recorded_without_a_first_time_is_resent(memory: Memory) -> None:
    key = record(memory).intend(SENDER)
    kept = memory.recall()
    del kept["first_at"]
    memory.keep(kept)
    assert record(memory, try_number=2).intend(SENDER) == key
    assert memory.recall()["first_at"] == 100.0


def test_only_posts_not_noted_as_finished_stay_on_record(memory: Memory) -> None:
    tried = record(memory)
    for name in ("a", "b", "c"):
        tried.fingerprint = name
        tried.intend(SENDER)
        tried.record_id(f"k-{name}")
        if name == "b":
            tried.finish()
    assert [post.kickoff_id for post in tried.newest.unsettled] == ["k-c", "k-a"]
    assert all("earlier" not in post for post in memory.recall()["earlier"])


# --- what is stored, and its moves ---


def test_a_record_has_the_fields_of_its_sender() -> None:
    assert OF_SENDER == tuple(NAMES) == tuple(SENDER.as_dict())


def test_only_a_post_that_was_intended_is_answered_or_withdrawn(memory: Memory) -> None:
    with pytest.raises(RuntimeError, match="that is nothing cannot become"):
        record(memory).withdraw_if_refused(CrewInvalidInput("no"))
    answered = record(memory)
    answered.intend(SENDER)
    answered.record_id("k-1")
    kept = memory.kept
    with pytest.raises(RuntimeError, match="that is started cannot become started"):
        answered.record_id("k-2")
    with pytest.raises(RuntimeError, match="that is started cannot become nothing"):
        answered.withdraw_if_refused(CrewInvalidInput("no"))
    assert memory.kept == kept


def test_a_task_whose_record_is_gone_ends_all_the_same(memory: Memory) -> None:
    record(memory).close(finished=True)
    memory.kept = memory.ended
    assert record(memory).earlier is Earlier.NOTHING


def test_the_next_try_finds_what_one_learned_of_its_execution(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER, of_a_room=1)
    first.mark(inbox={"id": "r"})
    first.record_id("k-1", "/page", of_a_room=2)
    first.mark(over_budget="used too much")
    first.mark(unknown_since=5.0)
    found = record(memory).newest
    assert (found.inbox, found.view, found.more) == ({"id": "r"}, "/page", {"of_a_room": 2})
    assert (found.over_budget, found.unknown_since) == ("used too much", 5.0)
    first.mark(unknown_since=None)
    assert record(memory).newest.unknown_since is None
    first.note(of_a_room=3, more=4)
    assert record(memory).newest.more == {"of_a_room": 3, "more": 4}


def test_a_timeout_stays_recorded_until_its_stop_has_certainly_failed(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    first.record_id("k-1")
    first.mark(timed_out="after 5 s")
    assert record(memory).newest.timed_out == "after 5 s"
    memory.broken = True
    first.mark(timed_out="after 5 s")  # which is stored already
    memory.broken = False
    first.mark(timed_out="")
    assert record(memory).newest.timed_out == ""


def test_unknown_values_are_not_stored_and_another_releases_fields_stay() -> None:
    assert StoredPost().to_json() == {}
    earlier = [{"fingerprint": "e", "of_another_release": 1}]
    other = {"fingerprint": "f", "keyed": False, "try_number": 1, "of_another_release": 1, "earlier": earlier}
    assert StoredPost.from_json(other).to_json() == other


def test_an_unremovable_record_stays_open_and_the_refusal_is_reported(memory: Memory) -> None:
    first = record(memory)
    first.intend(SENDER)
    again = record(memory, try_number=2)
    memory.broken = True
    assert again.earlier is Earlier.UNKNOWN
    assert again.withdraw_if_refused(CrewInvalidInput("no"))
    assert record(memory, try_number=2).earlier is Earlier.UNKNOWN


# --- a POST with an unknown outcome ---

MOVED = Sender("https://y", "principal", "credentials")
REKEYED = Sender("https://x", "principal", "another")


@pytest.mark.parametrize(
    ("request_", "sender", "how", "why"),
    [
        ("one", SENDER, {"keyed": True}, None),
        ("one", SENDER, {"keyed": False}, "without an idempotency key, the service would not recognize it"),
        ("one", SENDER, {"keyed": False, "at_risk": True}, None),
        ("two", SENDER, {"keyed": True}, "it was for a different request, so its key cannot be used"),
        ("two", SENDER, {"keyed": True, "at_risk": True}, None),
        (
            "one",
            REKEYED,
            {"keyed": True},
            "the connection has since changed (the credential of a webhook (or the inbox's URL)), so the service may "
            "not recognize it",
        ),
        ("one", REKEYED, {"keyed": True, "at_risk": True}, None),
        (
            "one",
            Sender("https://y", "another", "credentials"),
            {"keyed": False, "at_risk": True},
            "the connection has since changed (the base URL, the token (or an extra header)), so the service may not "
            "recognize it",
        ),
        (
            "two",
            MOVED,
            {"keyed": True},
            "the connection has since changed (the base URL), so the service may not recognize it",
        ),
    ],
)
def test_a_post_is_sent_again_if_nothing_starts_twice(
    memory: Memory, request_: str, sender: Sender, how: Any, why: str | None
) -> None:
    record(memory).intend(SENDER)
    assert record(memory, request_, try_number=2).why_not_again(sender, **how) == why


# --- the step that sends ---

FAILED = CrewOutcomeUnknown("no response")
REFUSED = CrewBadRequest(400, *WHERE)


class Service:
    """It answers a POST, and sees what is on record then."""

    def __init__(self, memory: Memory, answer: Any) -> None:
        self.memory, self.answer = memory, answer
        self.keys: list[str | None] = []
        self.seen: list[Any] = []

    def post(self, key: str | None) -> Any:
        self.keys.append(key)
        self.seen.append(self.memory.recall())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("keyed", [True, False])
def test_a_post_is_sent_with_its_intent_on_record(memory: Memory, keyed: bool) -> None:
    service, told = Service(memory, Started("k-1", view="/page/1")), list[Any]()

    def taken(response: Any) -> Any:
        told.append(response)
        return {"resumed_at": 7.0}

    step = SendOnce(
        *(record(memory), service.post, SENDER, keyed, {"airflow": {"task_id": "t"}}, taken, {"draft_sha256": "hash"}),
        addresses={"report": "https://b.example/r"},
    )
    assert step.do(None) is service.answer
    [intent] = service.seen
    assert intent["added"] == {"airflow": {"task_id": "t"}}
    assert intent["addresses"] == {intent["idempotency_key"]: {"report": "https://b.example/r"}}
    assert (intent["keyed"], intent["draft_sha256"], intent["principal"]) == (keyed, "hash", "principal")
    assert service.keys == [intent["idempotency_key"] if keyed else None]
    assert told == [service.answer]
    assert memory.recall() == {**intent, "kickoff_id": "k-1", "view": "/page/1", "resumed_at": 7.0}


def test_a_post_needs_nothing_but_its_sender(memory: Memory) -> None:
    service = Service(memory, Resumed("k-2", "resumed"))
    SendOnce(record(memory), service.post, SENDER).do(None)
    assert service.keys == [None]
    assert (memory.recall()["kickoff_id"], "view" in memory.recall(), "added" in memory.recall()) == (
        "k-2",
        False,
        False,
    )


def test_a_refused_post_leaves_nothing_on_record(memory: Memory) -> None:
    service = Service(memory, REFUSED)
    with pytest.raises(CrewBadRequest) as error:
        SendOnce(record(memory), service.post, SENDER).do(None)
    assert error.value is REFUSED
    assert memory.recall() == {}


def test_a_lost_post_stays_on_record(memory: Memory) -> None:
    service = Service(memory, FAILED)
    with pytest.raises(CrewPostLost) as lost:
        SendOnce(record(memory), service.post, SENDER).do(None)
    assert (lost.value.error, lost.value.__cause__, str(lost.value)) == (FAILED, FAILED, "no response")
    assert [memory.recall()] == service.seen


def test_a_post_without_a_record_is_not_sent(memory: Memory) -> None:
    memory.broken, service = True, Service(memory, Started("k-1"))
    with pytest.raises(TaskStateUnavailable):
        SendOnce(record(memory), service.post, SENDER).do(None)
    assert service.keys == []


def test_an_accepted_post_that_is_not_recorded_is_told(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(memory, Started("k-1"))

    def taken(response: Any) -> Any:
        raise ZeroDivisionError("a bug")

    assert SendOnce(record(memory), service.post, SENDER, taken=taken).do(None) is service.answer
    assert caplog.messages == [
        "The service accepted the request for execution k-1, but that could not be recorded: a bug. Later writes of "
        "this try repeat it; if none succeeds, the next try will find a request with an unknown outcome"
    ]
    assert record(memory, try_number=2).earlier is Earlier.UNKNOWN


def test_an_unstorable_id_is_reported_and_stored_with_later_writes(memory: Memory) -> None:
    sent, failures = record(memory), list[Exception]()
    sent.intend(SENDER)
    memory.broken = True
    sent.record_id("k-1", failed=failures.append)
    assert (sent.kickoff_id, [str(each) for each in failures]) == ("k-1", ["away"])
    memory.broken = False
    sent.mark(over_budget="used 7 tokens")
    assert record(memory, try_number=2).kickoff_id == "k-1"


def test_an_accepted_posts_id_waits_for_the_next_write(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    owed: list[Any] = []
    monkeypatch.setattr(memory, "owe", lambda record, failed: owed.append(record["kickoff_id"]))
    sent, service = record(memory), Service(memory, Started("k-1"))
    SendOnce(sent, service.post, SENDER).do(None)
    assert (owed, sent.kickoff_id, [memory.recall()]) == (["k-1"], "k-1", service.seen)


@pytest.mark.row("N32")
def test_each_post_keeps_its_own_files_addresses(memory: Memory) -> None:
    first = {"report": "https://b.example/r?sig=1"}
    record(memory).intend(SENDER, addresses=first)
    other = record(memory, "two")
    other.intend(SENDER, addresses={"report": "https://b.example/r?sig=2"})
    assert [post["fingerprint"] for post in memory.recall()["earlier"]] == ["one"]
    assert json.dumps({**memory.recall(), "addresses": None}).count("sig=") == 0, "they are in one field, to be sealed"
    assert other.withdraw_if_refused(CrewBadRequest(400, *WHERE))
    again = record(memory)
    again.intend(SENDER, addresses={"report": "https://b.example/r?sig=3"})
    assert again.newest.addresses == first
