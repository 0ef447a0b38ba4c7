"""What a wait says, word by word: in the log while it lasts, and of the execution when it ends."""

from __future__ import annotations

from typing import Any

import pytest
from watched import T0, S, seen, watch

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.api.budget import Budget
from airflow_crew_provider.exceptions import (
    CrewConnectionError,
    CrewError,
    CrewNotFound,
    CrewServerError,
    CrewUnauthorized,
    to_json,
)
from airflow_crew_provider.models import Execution, output_sha256
from airflow_crew_provider.wait.narrator import HEARTBEAT, NOBODY_IS_ASKED
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FAILED,
    FORGIVEN,
    GAVE_UP,
    LEARNED,
    NOW_AND_THEN,
    OVER_BUDGET,
    PENDING,
    SEEN,
    SHORTEST_POLL,
    TIMEOUT,
    AnsweredDraft,
    Outcome,
    Refresh,
    Sleep,
    StatusRequest,
    Watch,
    steps,
)

SINCE = "2027-01-15T08:00:00+00:00"
BUSY = CrewServerError(503, "GET", "/status/k-1", "busy")
UNKNOWN = CrewNotFound(404, "GET", "/status/k-1", "not found")
LOST = "Execution k-1 was never seen; if it exists, it may still be active"
GONE = (
    "The service no longer shows execution k-1: it may be waiting for a person, but only the human-input webhook "
    "contains its task id. The wait continues"
)


STEP = seen(current_task="draft", completed_tasks=1, total_tasks=2)


def polled(one: Watch, reply: Execution | CrewError, at: float) -> str | None:
    """Let a wait see a reply so many seconds after it began; return what the log says then."""
    outcome = one.saw(reply, now=T0 + at) if isinstance(reply, Execution) else one.failed(reply, now=T0 + at)
    assert outcome is None
    return one.narrator.news(one, now=T0 + at)


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (seen(), "Execution k-1 is running"),
        (STEP, "Execution k-1 is running: 1 of 2 tasks, now draft"),
        (seen(S.NOT_FOUND), "The service does not know execution k-1 yet"),
        (UNKNOWN, "The service does not know execution k-1 yet"),
        (seen(S.PENDING), "Execution k-1 is waiting for a person"),
        (seen(S.PENDING, current_task="draft"), "Execution k-1 is waiting for a person at task draft"),
        (seen(S.PENDING, shown_task="t", current_task="d"), "Execution k-1 is waiting for a person at task t"),
    ],
)
def test_the_first_line_says_what_was_seen_for_how_long(reply: Any, line: str) -> None:
    advice = f". {NOBODY_IS_ASKED}" if reply is not UNKNOWN and reply.state is S.PENDING else ""
    assert polled(watch(wait_past_pending=True), reply, 0) == f"{line}, 0 s so far{advice}"
    assert polled(watch(wait_past_pending=True), reply, 61) == f"{line}, 1 min 1 s so far{advice}"


def test_waits_ending_at_questions_do_not_say_nobody_is_asked() -> None:
    assert polled(watch(), seen(S.PENDING), 0) == "Execution k-1 is waiting for a person, 0 s so far"


def test_a_question_in_the_middle_of_a_task_is_said() -> None:
    ask = {"kind": "question", "agent": "Writer", "tool": None, "arguments": None, "number": 3}
    line = "Execution k-1 is waiting for a person at task t: the agent Writer asks a question"
    assert polled(watch(), seen(S.PENDING, shown_task="t", ask=ask), 0) == f"{line}, 0 s so far"


def test_a_failure_says_that_the_execution_is_not_affected() -> None:
    line = f"The status request has failed 1 times since {SINCE}; execution k-1 is not affected, and polling continues"
    assert polled(watch(), BUSY, 0) == line


@pytest.mark.parametrize("unknown", [seen(S.NOT_FOUND), UNKNOWN], ids=["state", "404"])
def test_an_id_that_is_no_longer_shown_is_told_why(unknown: Any) -> None:
    one = watch()
    polled(one, STEP, 0)
    assert polled(one, unknown, 10) == f"{GONE}, 10 s so far"
    assert polled(one, unknown, 20) is None
    assert polled(one, STEP, 30) == "Execution k-1 is running: 1 of 2 tasks, now draft, 30 s so far"


def test_the_same_news_is_repeated_only_after_the_heartbeat() -> None:
    one = watch()
    assert polled(one, STEP, 0)
    assert polled(one, STEP, HEARTBEAT - 1) is None
    assert polled(one, seen(current_task="draft", completed_tasks=1, total_tasks=2), HEARTBEAT - 0.5) is None
    assert polled(one, STEP, HEARTBEAT) == "Execution k-1 is running: 1 of 2 tasks, now draft, 5 min so far"
    assert polled(one, STEP, HEARTBEAT + 10) is None
    assert polled(one, seen(), HEARTBEAT + 20) == "Execution k-1 is running, 5 min 20 s so far"


def test_of_several_failures_one_is_told_in_six_intervals() -> None:
    one = watch(poll_interval=10)
    told = [bool(polled(one, BUSY, at)) for at in (0, 10, 59, 60, 119, 120)]
    assert told == [True, False, False, True, False, True]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (0.6, "1 s"),
        (59, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3601, "1 h 1 s"),
        (90_061, "25 h 1 min 1 s"),
    ],
)
def test_a_waits_duration_is_told_in_hours_minutes_and_seconds(seconds: float, said: str) -> None:
    outcome = watch(deadline=T0 - 10).saw(seen(), now=T0 + seconds)
    assert outcome == Outcome(
        TIMEOUT,
        "k-1",
        f"The wait timed out after {said}. Execution k-1 was last seen running",
    )


def test_a_wait_that_saw_nothing_ends_by_saying_so() -> None:
    assert watch(deadline=T0 + 5).failed(BUSY, now=T0 + 5) == Outcome(
        TIMEOUT, "k-1", f"The wait timed out after 5 s; the last status request failed: {BUSY}"
    )
    assert watch(deadline=T0 + 5).failed(BUSY, now=T0 + 4.9) is None


@pytest.mark.parametrize(
    ("known", "last", "fate"),
    [
        (False, None, LOST),
        (True, None, "Execution k-1 is not affected and may still be active"),
        (True, seen(), "Execution k-1 was last seen running and may still be active"),
        (True, STEP, "Execution k-1 was last seen running (1 of 2 tasks, now draft) and may still be active"),
    ],
)
def test_whoever_gives_up_says_what_became_of_the_execution(known: bool, last: Any, fate: str) -> None:
    refused = CrewConnectionError("the certificate is not trusted", permanent=True)
    outcome = watch(known=known, last=last).failed(refused, now=T0)
    assert outcome == Outcome(GAVE_UP, "k-1", f"the certificate is not trusted. {fate}", error=to_json(refused))


def test_a_wait_giving_up_says_since_when_and_why() -> None:
    one = watch(known=True)
    for at in (0, 1, 2, 3):
        assert one.failed(BUSY, now=T0 + at) is None
    assert one.failed(BUSY, now=T0 + FORGIVEN) is None
    said = f"The status request has failed 6 times since {SINCE}, the last time: {BUSY}. {one.progress.fate('k-1')}"
    assert one.failed(BUSY, now=T0 + FORGIVEN + 0.5) == Outcome(GAVE_UP, "k-1", said, error=to_json(BUSY))


def test_five_failures_are_needed_to_give_up() -> None:
    one = watch()
    outcomes = [one.failed(BUSY, now=T0 + at) for at in (0, 400, 800, 1200, 1600)]
    assert [outcome is None for outcome in outcomes] == [True] * 4 + [False]


def test_an_id_that_nobody_knows_is_said_to_be_wrong() -> None:
    assert watch().failed(UNKNOWN, now=T0 + 300) is None
    said = (
        "The service does not know this id: k-1, 300 s after the wait began. Check the id, and whether the crew was "
        "started through the same connection"
    )
    assert watch().failed(UNKNOWN, now=T0 + 300.5) == Outcome(GAVE_UP, "k-1", said, error=to_json(UNKNOWN))
    assert watch(known=True).failed(UNKNOWN, now=T0 + 300.5) is None


def test_the_ends_of_an_execution() -> None:
    assert watch().saw(seen(S.COMPLETED, output="x"), now=T0) == Outcome(COMPLETED, "k-1")
    assert watch().saw(seen(S.ERROR, error="boom"), now=T0) == Outcome(FAILED, "k-1", "boom")
    assert watch().saw(seen(S.ERROR), now=T0) == Outcome(FAILED, "k-1", "")


def test_an_executions_end_includes_the_known_figures() -> None:
    used: dict[str, Any] = {"total_tokens": 99}
    assert watch().saw(seen(S.ERROR, error="boom", usage=used), now=T0) == Outcome(FAILED, "k-1", "boom", usage=used)
    over = watch(budget=Budget(50)).saw(seen(usage=used), now=T0)
    assert over == Outcome(OVER_BUDGET, "k-1", usage=used)


@pytest.mark.parametrize(
    ("kind", "ends_at_unknown", "ends"),
    [("unknown_outcome", True, True), ("unknown_outcome", False, False), ("tool", True, False)],
)
def test_a_wait_past_questions_may_end_at_an_unknown_outcome(kind: str, ends_at_unknown: bool, ends: bool) -> None:
    ask = {"kind": kind, "agent": None, "tool": "send", "arguments": None, "number": 3}
    one = watch(wait_past_pending=True, ends_at_unknown=ends_at_unknown)
    outcome = one.saw(seen(S.PENDING, crew_task_id="t#3", ask=ask), now=T0)
    assert outcome == (Outcome(PENDING, "k-1", crew_task_id="t#3") if ends else None)


def test_only_the_draft_that_was_answered_is_an_old_pause() -> None:
    answered = AnsweredDraft(DraftId("k-1", "t", output_sha256("Draft 1")), T0 + 60)
    old = seen(S.PENDING, crew_task_id="t", output="Draft 1")
    assert watch(answered=answered).saw(old, now=T0 + 59) is None
    for reply, at in ((old, 60), (seen(S.PENDING, crew_task_id="t", output="Draft 2"), 0)):
        assert watch(answered=answered).saw(reply, now=T0 + at) == Outcome(PENDING, "k-1", crew_task_id="t")


def test_a_task_id_alone_is_no_question() -> None:
    assert watch().saw(seen(S.RUNNING, crew_task_id="t"), now=T0) is None


# --- what another process must know -------------------------------------------------------------------------


def test_a_wait_goes_on_in_another_process_where_it_stood() -> None:
    one = watch(deadline=T0 + 1000)
    polled(one, STEP, 0)
    polled(one, BUSY, 10)
    polled(one, BUSY, 20)
    learned = one.learned()
    assert learned == {
        **{"started": T0, "deadline": T0 + 1000, "known": True},
        **{"failing_since": T0 + 10, "failures": 2, "polls": 3},
    }
    assert (*learned, "ended") == LEARNED, "the last one only if a task has ended"
    other = watch(started=T0 + 50)
    other.recall({**learned, "poll_interval": 999.0, "more": 1})
    assert (other.learned(), other.poll_interval) == (learned, 10.0)
    earlier = watch()
    earlier.recall({"looks": 7})
    assert earlier.progress.polls == 7


def test_the_number_of_ended_tasks_goes_on_too() -> None:
    one, other = watch(), watch()
    one.narrator.ended = 2
    assert one.learned()["ended"] == 2
    other.recall(one.learned())
    assert other.narrator.ended == 2
    other.recall({})  # of a wait in which no task had ended
    assert other.narrator.ended == 2


def test_every_reply_counts_as_a_poll() -> None:
    one = watch()
    for reply in (STEP, seen(S.NOT_FOUND), BUSY, UNKNOWN):
        polled(one, reply, 0)
    assert one.progress.polls == 4


# --- the steps ----------------------------------------------------------------------------------------------


def test_polls_may_last_until_the_deadline_with_a_minimum_time() -> None:
    assert watch().left(now=T0) is None
    assert watch(deadline=T0 + 10).left(now=T0) == 10
    assert watch(deadline=T0 + 0.5).left(now=T0) == SHORTEST_POLL
    now = [T0]
    walk = steps(watch(deadline=T0 + 10), lambda: now[0], lambda line: None)
    assert next(walk) == StatusRequest(10.0)
    now[0] += 2
    assert walk.send(CrewUnauthorized(401, "GET", "/status/k-1", "no")) == Refresh(at_once=True)
    now[0] += 1
    assert walk.send(True) == StatusRequest(7.0)
    now[0] += 1
    assert walk.send(STEP) == Sleep(6.0)


def test_news_is_told_once_and_waits_end_with_their_outcome() -> None:
    said: list[str] = []
    walk = steps(watch(poll_interval=10), lambda: T0 + 5, said.append)
    assert next(walk) == StatusRequest(None)
    for _ in range(3):
        pause = walk.send(STEP)
        assert isinstance(pause, Sleep)
        assert 10 <= pause.seconds <= 12
        assert next(walk) == StatusRequest(None)
    assert said == ["Execution k-1 is running: 1 of 2 tasks, now draft, 5 s so far"]
    assert walk.send(seen(S.COMPLETED, output="x")) == Refresh(at_once=True)
    with pytest.raises(StopIteration) as end:
        walk.send(False)
    assert end.value.value == Outcome(COMPLETED, "k-1")


def test_a_repeated_response_still_ends_trouble_and_triggers_due_actions() -> None:
    now, said, one = [T0], list[str](), watch(deadline=T0 + 5000)
    walk = steps(one, lambda: now[0], said.append)
    next(walk)
    for reply in (STEP, STEP, BUSY):
        answer = walk.send(reply)
        if isinstance(answer, Refresh):
            answer = walk.send(False)
        assert isinstance(answer, Sleep)
        assert isinstance(next(walk), StatusRequest)
    assert (one.progress.failures, one.progress.polls) == (1, 3)
    assert isinstance(walk.send(STEP), Sleep)
    assert (one.progress.failures, one.progress.polls, len(said)) == (0, 4, 3), "its recovery is told"
    next(walk)
    now[0] += 2 * NOW_AND_THEN
    assert walk.send(STEP) == Refresh(at_once=False)
    assert isinstance(walk.send(False), Sleep)
    assert len(said) == 4, "it is told again from time to time"
    next(walk)
    now[0] = T0 + 5000
    assert walk.send(STEP) == Refresh(at_once=True)
    with pytest.raises(StopIteration) as end:
        walk.send(False)
    assert end.value.value.kind == TIMEOUT


@pytest.mark.parametrize(
    ("more", "reply", "at", "repeats"),
    [
        ({}, STEP, 1, True),
        ({}, seen(current_task="draft", completed_tasks=1, total_tasks=2), 1, False),
        ({}, BUSY, 1, False),
        ({}, STEP, HEARTBEAT - 1, True),
        ({}, STEP, HEARTBEAT, False),
        ({"deadline": T0 + 9}, STEP, 8, True),
        ({"deadline": T0 + 9}, STEP, 9, False),
        ({"started": T0 - NOW_AND_THEN + 9}, STEP, 8, True),
        ({"started": T0 - NOW_AND_THEN + 9}, STEP, 9, False),
        ({"answered": AnsweredDraft(DraftId("k-1", "t"), T0 + 60)}, STEP, 1, False),
    ],
    ids=[
        *("the same", "another", "a failure", "before the heartbeat", "the heartbeat", "before the deadline"),
        *("the deadline", "before a look-up", "a look-up", "after an answer"),
    ],
)
def test_a_poll_repeats_the_last_one_until_something_is_due(more: Any, reply: Any, at: float, repeats: bool) -> None:
    one = watch(**more)
    polled(one, STEP, 0)
    assert one.repeats(reply, now=T0 + at) is repeats


def test_an_answered_draft_ends_no_wait_while_possibly_stale() -> None:
    one = watch(answered=AnsweredDraft(DraftId("k-1", "t"), T0 + 10), deadline=T0 + 20)
    draft = seen(S.PENDING, crew_task_id="t", output="x")
    assert [one.could_end_after(draft, now=T0 + at) for at in (9, 10)] == [False, True]
    assert [one.could_end_after(seen(), now=T0 + at) for at in (19, 20)] == [False, True]


def test_an_unknown_id_is_no_failed_poll_when_lookups_fail() -> None:
    one, said = watch(), list[str]()
    walk = steps(one, lambda: T0, said.append)
    next(walk)
    assert walk.send(UNKNOWN) == Refresh(at_once=True)
    assert isinstance(walk.send(CrewConnectionError("the back end is away")), Sleep)
    assert said == ["The service does not know execution k-1 yet, 0 s so far"]
    assert one.progress.failures == 0


def test_an_id_that_was_known_before_is_not_reported_again() -> None:
    walk = steps(watch(report_seen=True, known=True), lambda: T0, lambda line: None)
    next(walk)
    assert isinstance(walk.send(STEP), Sleep)
    walk = steps(watch(report_seen=True), lambda: T0, lambda line: None)
    next(walk)
    assert walk.send(UNKNOWN) == Refresh(at_once=True)
    assert isinstance(walk.send(False), Sleep)
    next(walk)
    with pytest.raises(StopIteration) as end:
        walk.send(STEP)
    assert end.value.value == Outcome(SEEN, "k-1")


def test_a_refused_token_that_did_not_change_is_the_end() -> None:
    refused = CrewUnauthorized(401, "GET", "/status/k-1", "no")
    walk = steps(watch(), lambda: T0, lambda line: None)
    next(walk)
    walk.send(refused)
    with pytest.raises(StopIteration) as end:
        walk.send(False)
    assert end.value.value == Outcome(GAVE_UP, "k-1", f"{refused}. {LOST}", error=to_json(refused))
