"""The wait, without a clock or a network: what each look means, and when the next one comes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched import T0, S, seen, watch

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.api.budget import Budget
from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewConnectionError,
    CrewError,
    CrewNotFound,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
)
from airflow_crew_provider.models import OVER, Execution, ExecutionState
from airflow_crew_provider.wait import watch as watch_module
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FAILED,
    FORGIVEN,
    GAVE_UP,
    KINDS,
    OVER_BUDGET,
    PENDING,
    SEEN,
    TIMEOUT,
    AnsweredDraft,
    Outcome,
    Refresh,
    Sleep,
    StatusRequest,
    Watch,
    steps,
)


@pytest.mark.row("N24")
def test_one_ca_file_failure_between_two_answers_is_forgiven() -> None:
    watched, untrusted = watch(), CrewConnectionError("untrusted", permanent=True, renewable=True)
    for _ in range(2):
        assert watched.failed(untrusted, now=T0) is None
        assert watched.saw(seen(S.RUNNING), now=T0) is None
    assert watched.failed(untrusted, now=T0) is None
    assert watched.failed(server_error(), now=T0) is None
    assert watched.failed(untrusted, now=T0).kind == GAVE_UP  # type: ignore[union-attr]
    assert watch().failed(CrewConnectionError("untrusted", permanent=True), now=T0).kind == GAVE_UP  # type: ignore[union-attr]


@pytest.mark.row("N18", "N5")
def test_a_failed_lookup_after_a_401_is_a_failed_poll() -> None:
    walk = steps(watch(), lambda: T0, lambda line: None)
    assert isinstance(next(walk), StatusRequest)
    assert isinstance(walk.send(CrewUnauthorized(401, "GET", "/status/k-1", "no")), Refresh)
    assert isinstance(walk.send(CrewConnectionError("the back end is away")), Sleep)


@pytest.mark.parametrize("state", S)
def test_a_wait_past_pending_ends_only_at_terminal_states(state: ExecutionState) -> None:
    outcome = watch(wait_past_pending=True).saw(seen(state), now=T0)
    assert (outcome is not None) == (state in OVER)


def server_error(retry_after: float | None = None) -> CrewServerError:
    return CrewServerError(503, "GET", "/status/k-1", "busy", retry_after)


RUNNING = seen(S.RUNNING, current_task="draft_task", completed_tasks=1, total_tasks=2)


def test_the_log_tells_recovery_but_stays_silent_while_nothing_changes() -> None:
    one, same, news = watch(), RUNNING, []
    for t, reply in enumerate((same, same, server_error(), same, same)):
        one.saw(reply, now=T0 + t) if isinstance(reply, Execution) else one.failed(reply, now=T0 + t)
        news.append(one.narrator.news(one, now=T0 + t))
    assert [bool(line) for line in news] == [True, False, True, True, False]


@pytest.mark.row("N1")
def test_failures_are_forgiven_for_five_minutes_and_not_longer() -> None:
    one = watch()
    assert [one.failed(server_error(), now=T0 + t) for t in (0, 60, 120, 180, 240, FORGIVEN)] == [None] * 6
    outcome = one.failed(server_error(), now=T0 + FORGIVEN + 1)
    assert outcome is not None
    assert outcome.kind == GAVE_UP
    assert "failed 7 times since 2027-01-15T08:00:00+00:00" in outcome.message
    assert "503" in outcome.message
    assert "Execution k-1 was never seen; if it exists, it may still be active" in outcome.message


@pytest.mark.row("N1")
def test_an_answer_in_between_resets_the_failure_count() -> None:
    one = watch()
    for t in range(0, 1000, 100):
        assert one.failed(server_error(), now=T0 + t) is None
        assert one.saw(RUNNING, now=T0 + t + 50) is None


@pytest.mark.row("N1")
def test_a_few_failures_far_apart_do_not_end_the_wait() -> None:
    one = watch(poll_interval=600)
    assert [one.failed(server_error(), now=T0 + t) for t in (0, 600, 1200, 1800)] == [None] * 4


@pytest.mark.row("N1")
def test_pauses_grow_with_failures_within_one_to_six_intervals() -> None:
    one = watch(poll_interval=10)
    pauses = []
    for t in range(8):
        one.failed(server_error(), now=T0 + t)
        pauses.append(one.pause(now=T0 + t, draw=0.5))
    assert pauses == pytest.approx([11, 20, 40, 54, 54, 54, 54, 54])


@pytest.mark.row("N1")
def test_the_log_sums_up_failures_instead_of_telling_each_poll() -> None:
    one = watch(poll_interval=10)
    news = []
    for t in range(0, 120, 10):
        one.failed(server_error(), now=T0 + t)
        news.append(one.narrator.news(one, now=T0 + t))
    lines = [line for line in news if line]
    assert 2 <= len(lines) <= 3
    assert "has failed 1 times since 2027-01-15T08:00:00+00:00" in lines[0]
    assert "not affected" in lines[0]


@pytest.mark.row("N2")
@pytest.mark.parametrize(
    ("asked", "pause"), [(45.0, 45.0), (0.0, 10.0), (3.0, 10.0), (365 * 86400.0, 300.0), (None, 11.0)]
)
def test_retry_after_is_honoured_between_the_interval_and_five_minutes(asked: float | None, pause: float) -> None:
    one = watch(poll_interval=10)
    assert one.failed(CrewRateLimited(429, "GET", "/status/k-1", "slow down", asked), now=T0) is None
    assert one.pause(now=T0, draw=0.5) == pause


@pytest.mark.row("N2")
def test_a_retry_after_does_not_outlive_the_next_answer() -> None:
    one = watch(poll_interval=10)
    one.failed(server_error(200), now=T0)
    one.saw(RUNNING, now=T0 + 200)
    assert one.pause(now=T0 + 200, draw=0.5) == 11


@pytest.mark.row("N3")
def test_a_permanent_error_immediately_ends_the_wait_with_its_reason() -> None:
    outcome = watch().failed(CrewConnectionError("the certificate is not trusted", True), now=T0)
    assert outcome is not None
    assert outcome.kind == GAVE_UP
    assert "the certificate is not trusted" in outcome.message


@pytest.mark.row("N5")
def test_a_401_refreshes_the_connection_even_after_other_failures() -> None:
    walk = steps(watch(known=True), lambda: T0, lambda line: None)
    assert isinstance(next(walk), StatusRequest)
    assert walk.send(server_error()) == Refresh(at_once=False)
    assert isinstance(walk.send(False), Sleep)
    assert isinstance(walk.send(None), StatusRequest)
    assert isinstance(walk.send(CrewUnauthorized(401, "GET", "/status/k-1", "no")), Refresh)
    assert isinstance(walk.send(True), StatusRequest)
    assert isinstance(walk.send(RUNNING), Sleep)


@pytest.mark.row("N5")
@pytest.mark.parametrize("replaced", [True, False])
def test_a_second_401_or_the_same_token_ends_the_wait(replaced: bool) -> None:
    walk = steps(watch(known=True), lambda: T0, lambda line: None)
    refused = CrewUnauthorized(401, "GET", "/status/k-1", "no")
    next(walk)
    step = walk.send(refused)
    assert isinstance(step, Refresh)
    if replaced:
        assert isinstance(walk.send(True), StatusRequest)
    with pytest.raises(StopIteration) as end:
        walk.send(refused if replaced else False)
    assert end.value.value.kind == GAVE_UP


ENDS = {
    COMPLETED: seen(S.COMPLETED, output="x"),
    FAILED: seen(S.ERROR, error="shut down"),
    PENDING: seen(S.PENDING, crew_task_id="draft_task", output="x"),
    OVER_BUDGET: seen(S.RUNNING, usage={"total_tokens": 99}),
    TIMEOUT: seen(S.RUNNING),
}


def walk_to_end(kind: str) -> Any:
    """Return the steps of a wait whose first poll would end it, after the look-up that comes before that."""
    deadline = T0 if kind == TIMEOUT else None
    walk = steps(watch(budget=Budget(50), deadline=deadline), lambda: T0, lambda line: None)
    next(walk)
    assert walk.send(ENDS[kind]) == Refresh(at_once=True)
    return walk


@pytest.mark.row("N34")
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("unchanged", [False, CrewConnectionError("the back end is away")])
def test_an_end_counts_after_a_connection_lookup_even_if_failed(kind: str, unchanged: Any) -> None:
    walk = walk_to_end(kind)
    with pytest.raises(StopIteration) as end:
        walk.send(unchanged)
    assert end.value.value.kind == kind


@pytest.mark.row("N34")
@pytest.mark.parametrize("kind", ENDS)
def test_where_the_connection_has_moved_the_poll_there_decides(kind: str) -> None:
    walk = walk_to_end(kind)
    assert isinstance(walk.send(True), StatusRequest)
    with pytest.raises(StopIteration) as end:
        walk.send(seen(S.COMPLETED, output="of there"))
    assert end.value.value.kind == COMPLETED


@pytest.mark.row("N34")
def test_a_long_wait_looks_up_its_connection_every_ten_minutes() -> None:
    now, asked = [T0], []
    walk = steps(watch(poll_interval=60), lambda: now[0], lambda line: None)
    step = next(walk)
    while now[0] < T0 + 3600:
        if isinstance(step, Refresh):
            asked.append(now[0] - T0)
        if isinstance(step, Sleep):
            now[0] += 60
        step = walk.send(RUNNING if isinstance(step, StatusRequest) else False if isinstance(step, Refresh) else None)
    assert asked == [600, 1200, 1800, 2400, 3000]


@pytest.mark.row("N34")
def test_an_answered_draft_becomes_a_question_in_an_unchanged_poll() -> None:
    """Also of an answer to many polls, of which only that the wait goes on is believed."""
    draft = seen(S.PENDING, crew_task_id="draft_task", output="x")
    one = watch(answered=AnsweredDraft(DraftId("k-1", "draft_task"), until=T0 + 10))
    assert one.saw(draft, now=T0) is None
    assert one.goes_on_after(draft, now=T0 + 5)
    assert not one.goes_on_after(draft, now=T0 + 10)


@pytest.mark.row("N6")
@pytest.mark.parametrize("unknown", [seen(S.NOT_FOUND), CrewNotFound(404, "GET", "/status/k-1", "not found")])
def test_an_unknown_id_is_forgiven_for_five_minutes_then_reported(unknown: Any) -> None:
    one = watch()

    def look(t: float) -> Outcome | None:
        return one.saw(unknown, now=T0 + t) if isinstance(unknown, Execution) else one.failed(unknown, now=T0 + t)

    assert [look(t) for t in (0, 100, 300)] == [None] * 3
    outcome = look(301)
    assert outcome is not None
    assert outcome.kind == GAVE_UP
    assert "does not know this id: k-1" in outcome.message


@pytest.mark.row("N6")
@pytest.mark.parametrize("unknown", [seen(S.NOT_FOUND), CrewNotFound(404, "GET", "/status/k-1", "not found")])
def test_waits_for_a_once_seen_id_continue_and_log_why(unknown: Any) -> None:
    one = watch(deadline=T0 + 10_000)
    one.saw(RUNNING, now=T0)
    for t in (10, 400, 9_999):
        outcome = one.saw(unknown, now=T0 + t) if isinstance(unknown, Execution) else one.failed(unknown, now=T0 + t)
        assert outcome is None
    line = one.narrator.news(one, now=T0 + 9_999)
    assert line is not None
    assert "may be waiting for a person" in line
    outcome = one.saw(seen(S.NOT_FOUND), now=T0 + 10_000)
    assert outcome is not None
    assert outcome.kind == TIMEOUT


@pytest.mark.row("N6")
def test_polling_never_ends_as_pending_without_a_task_id() -> None:
    one = watch()
    assert one.saw(seen(S.PENDING), now=T0) is None
    outcome = one.saw(seen(S.PENDING, crew_task_id="draft_task"), now=T0)
    assert outcome == Outcome(PENDING, "k-1", crew_task_id="draft_task")


def test_a_wait_past_pending_continues_during_a_review() -> None:
    assert watch(wait_past_pending=True).saw(seen(S.PENDING, crew_task_id="draft_task"), now=T0) is None


@pytest.mark.row("N7")
def test_unreadable_answers_are_bounded_as_failures_are() -> None:
    one = watch()
    outcomes = [one.failed(CrewProtocolError("not JSON"), now=T0 + t) for t in (0, 100, 200, 300, 301)]
    assert [outcome and outcome.kind for outcome in outcomes] == [None] * 4 + [GAVE_UP]


@pytest.mark.row("N8")
@pytest.mark.parametrize(("state", "kind"), [(S.COMPLETED, COMPLETED), (S.ERROR, FAILED)])
def test_a_terminal_answer_ends_the_wait_even_after_the_deadline(state: ExecutionState, kind: str) -> None:
    outcome = watch(deadline=T0 - 1).saw(seen(state, output="x", error="boom"), now=T0)
    assert outcome is not None
    assert outcome.kind == kind


def test_a_timeout_reports_the_waits_duration_and_last_state() -> None:
    one = watch(deadline=T0 + 90)
    one.saw(RUNNING, now=T0)
    outcome = one.saw(RUNNING, now=T0 + 90)
    assert outcome is not None
    assert outcome.kind == TIMEOUT
    assert "after 1 min 30 s" in outcome.message
    assert "last seen running (1 of 2 tasks, now draft_task)" in outcome.message


def test_progress_is_logged_at_once_and_every_five_minutes() -> None:
    one = watch()
    news = []
    for t in range(0, 700, 10):
        one.saw(RUNNING, now=T0 + t)
        news.append(one.narrator.news(one, now=T0 + t))
    lines = [line for line in news if line]
    assert len(lines) == 3
    assert lines[0] == "Execution k-1 is running: 1 of 2 tasks, now draft_task, 0 s so far"


def test_the_first_sight_of_an_id_is_reported_once() -> None:
    walk = steps(watch(report_seen=True), lambda: T0, lambda line: None)
    next(walk)
    with pytest.raises(StopIteration) as end:
        walk.send(RUNNING)
    assert end.value.value == Outcome(SEEN, "k-1")


def test_a_known_id_ends_only_waits_that_asked_for_it() -> None:
    walk = steps(watch(), lambda: T0, lambda line: None)
    next(walk)
    assert isinstance(walk.send(RUNNING), Sleep)


# --- pauses -------------------------------------------------------------------------------------------------

intervals = st.floats(0.05, 3600)
draws = st.floats(0, 1, exclude_max=True)
waited = st.floats(0, 30 * 86400)


@given(intervals, waited, draws)
def test_pauses_are_two_percent_of_the_waited_time_within_bounds(interval: float, so_far: float, draw: float) -> None:
    one = watch(poll_interval=interval)
    one.saw(RUNNING, now=T0 + so_far)
    pause = one.pause(now=T0 + so_far, draw=draw)
    wanted = min(max(0.02 * so_far, interval), 6 * interval)
    assert interval <= pause <= 6 * interval
    assert wanted * 0.8 - 1e-3 <= pause or pause == interval
    assert pause <= wanted * 1.2 + 1e-3


@given(intervals, draws, st.lists(st.sampled_from(["answer", "failure", "unknown", "wait"]), max_size=30))
def test_no_poll_comes_faster_than_the_interval_whatever_was_seen(
    interval: float, draw: float, looks: list[str]
) -> None:
    one, now = watch(poll_interval=interval), T0
    for each in looks:
        _take(one, each, now)
        pause = one.pause(now=now, draw=draw)
        assert interval <= pause <= max(6 * interval, 300)
        now += pause


def test_an_interval_of_nothing_is_no_hot_loop() -> None:
    for interval in (0, -5, float("nan")):
        one = watch(poll_interval=interval)
        one.saw(RUNNING, now=T0)
        assert one.pause(now=T0, draw=0) >= 0.05


def test_exponential_backoff_doubles_up_to_max_wait_instead() -> None:
    one = watch(poll_interval=10, exponential_backoff=True, max_wait=100)
    pauses = []
    for _ in range(6):
        one.saw(RUNNING, now=T0)
        pauses.append(one.pause(now=T0, draw=0.5))
    assert pauses == pytest.approx([11, 20, 40, 80, 90, 90])


@pytest.mark.parametrize(("interval", "pause"), [(10, 2**20 * 0.8), (0.05, 0.05 * 2**20 * 0.8)])
def test_exponential_backoff_without_max_wait_ends_its_growth_after_days(interval: float, pause: float) -> None:
    one = watch(poll_interval=interval, exponential_backoff=True)
    for _ in range(30):
        one.saw(RUNNING, now=T0)
    assert one.pause(now=T0, draw=0) == pytest.approx(pause)


@pytest.mark.parametrize("so_far", [0.0, 2_000.0, 100_000.0], ids=["at first", "later", "at the slowest"])
def test_waits_that_were_begun_together_drift_apart(so_far: float) -> None:
    one = watch(poll_interval=10)
    one.saw(RUNNING, now=T0 + so_far)
    pauses = [one.pause(now=T0 + so_far, draw=draw / 10) for draw in range(10)]
    gaps = [later - earlier for earlier, later in pairwise(pauses)]
    assert min(gaps) == pytest.approx(max(gaps))
    assert min(gaps) > 0


def test_the_last_pause_ends_at_the_deadline() -> None:
    one = watch(poll_interval=10, deadline=T0 + 4)
    one.saw(RUNNING, now=T0)
    assert one.pause(now=T0, draw=0.5) == 4
    assert one.pause(now=T0 + 3.5, draw=0.5) == 0.5
    assert one.pause(now=T0 + 5, draw=0.5) == 0


def _take(one: Watch, look: str, now: float) -> Outcome | None:
    errors: dict[str, CrewError] = {
        "failure": server_error(),
        "wait": CrewRateLimited(429, "GET", "/", "", 7.0),
        "unknown": CrewNotFound(404, "GET", "/", ""),
        "refused": CrewApiError(408, "GET", "/", ""),
    }
    return one.failed(errors[look], now=now) if look in errors else one.saw(RUNNING, now=now)


looks = st.sampled_from(["answer", "failure", "unknown", "wait", "refused"])


@given(st.lists(looks, min_size=1, max_size=5), st.floats(1, 5000), intervals, st.floats(0, 20))
def test_every_poll_sequence_ends_within_a_second_of_the_deadline(
    kinds: list[str], wait: float, interval: float, look_takes: float
) -> None:
    one, now = watch(poll_interval=interval, deadline=T0 + wait), T0
    for number in range(10_000):
        now += min(look_takes, one.left(now=now) or 0)  # a look is cut at the deadline
        if _take(one, kinds[number % len(kinds)], now):
            break
        now += one.pause(now=now)
    assert now <= T0 + wait + watch_module.SHORTEST_POLL + 1e-3


# --- events -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        None,
        {},
        [],
        "completed",
        {"kind": "completed"},
        {"kind": "completed", "kickoff_id": None},
        {"kind": "success", "kickoff_id": "k-1"},
        {"kind": None, "kickoff_id": "k-1"},
        {"kind": ["completed"], "kickoff_id": "k-1"},
        {"kind": "pending", "kickoff_id": "k-1", "crew_task_id": 5},
    ],
)
def test_an_event_that_is_missing_or_malformed_is_a_failure(event: Any) -> None:
    with pytest.raises(CrewProtocolError):
        Outcome.from_event(event)


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_survives_the_way_to_a_worker(kind: str) -> None:
    outcome = Outcome(kind, "k-1", "because", "draft_task")
    assert Outcome.from_event(outcome.to_event()) == outcome
