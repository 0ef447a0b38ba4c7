"""Errors that a retry may heal: what a rule of Airflow's retry policies, a callback or a log finds in them."""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import run
from waiting_tasks import POLL, in_both_places, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider import exceptions
from airflow_crew_provider.compat import version
from airflow_crew_provider.exceptions import (
    CrewConnectionError,
    CrewError,
    CrewExecutionFailed,
    CrewNotFound,
    CrewProtocolError,
    CrewQuotaExceeded,
    CrewRateLimited,
    CrewServerError,
    CrewTimeout,
    CrewUnauthorized,
)
from airflow_crew_provider.wait import watch
from airflow_crew_provider.wait.outcomes import CrewTryFailed
from airflow_crew_provider.wait.watch import GAVE_UP, Outcome

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.row("A51")]
LIMITED = Reply(status=429, headers={"Retry-After": "7"})
RUNNING = {"status": "running", "progress": {}}


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})


def failure_of(operator: Any) -> Any:
    with pytest.raises(AirflowException) as failure:
        run(operator)
    return failure.value


def test_a_refused_kickoff_is_an_error_of_both_classes(server: FaultServer) -> None:
    server.on("POST /kickoff", LIMITED)
    error = failure_of(kickoff_that_waits())
    assert isinstance(error, CrewTryFailed)
    assert isinstance(error, CrewRateLimited)
    assert not isinstance(error, AirflowFailException)
    assert (error.status_code, error.method, error.path, error.retry_after) == (429, "POST", "/kickoff", 7.0)
    assert str(error).startswith("POST /kickoff returned 429")
    assert isinstance(error.reason, CrewRateLimited)  # type: ignore[attr-defined]


def test_such_an_error_can_be_pickled_with_its_attributes(server: FaultServer) -> None:
    server.on("POST /kickoff", LIMITED)
    error = failure_of(kickoff_that_waits())
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.retry_after, again.status_code) == (str(error), 7.0, 429)


def test_the_log_shows_its_sentence_without_our_frames(server: FaultServer) -> None:
    server.on("POST /kickoff", LIMITED)
    error = failure_of(kickoff_that_waits())
    last = traceback.format_exception(error)[-1]
    assert last == f"airflow_crew_provider.wait.outcomes.CrewTryFailed: {error}\n"
    assert "test_retry_policies" in str(traceback.format_exception(error))
    assert "wait/task.py" not in str(traceback.format_exception(error))
    assert (error.__cause__, error.__context__) == (None, None)


@in_both_places
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (500, CrewServerError),
        (Reply(status=429, headers={"Retry-After": "0"}), CrewRateLimited),
        (401, CrewUnauthorized),
        (404, CrewNotFound),
        (Reply(body=b"<html>"), CrewProtocolError),
    ],
    ids=["5xx", "429", "401", "404", "no JSON"],
)
def test_a_wait_that_gives_up_fails_with_its_last_error(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, answer: Any, kind: type[CrewError], deferrable: bool
) -> None:
    monkeypatch.setattr(watch, "FORGIVEN", 0.0)
    monkeypatch.setattr(watch, "LEAST_FAILURES", 2)
    monkeypatch.setattr(watch, "GRACE_FOR_UNKNOWN_ID", 0.0)
    server.on(POLL, answer)
    error = failure_of(sensor_that_waits(deferrable=deferrable))
    assert isinstance(error, CrewTryFailed)
    assert isinstance(error, kind)


@in_both_places
def test_a_failed_execution_can_be_told_from_a_timeout(server: FaultServer, deferrable: bool) -> None:
    server.on(POLL, {"status": "error", "error": "no ink"})
    error = failure_of(kickoff_that_waits(deferrable=deferrable))
    assert isinstance(error, CrewExecutionFailed)
    assert (error.kickoff_id, error.error) == ("k-1", "no ink")
    server.on("POST /kickoff", {"kickoff_id": "k-2"}).on("GET /status/k-2", RUNNING)
    late = failure_of(kickoff_that_waits(deferrable=deferrable, timeout=0.2, cancel_on_kill=False))
    assert isinstance(late, CrewTryFailed)
    assert isinstance(late, CrewTimeout)


def test_no_connection_keeps_its_attributes(connect: Any) -> None:
    connect("http://127.0.0.1:1")
    error = failure_of(kickoff_that_waits())
    assert isinstance(error, CrewConnectionError)
    assert (error.permanent, error.unreachable) == (False, True)


@pytest.mark.parametrize(("status", "is_asked"), [(429, True), (500, False), (400, False), (401, False)])
def test_only_errors_that_a_retry_may_heal_reach_a_policy(server: FaultServer, status: int, is_asked: bool) -> None:
    """A kickoff with an unknown outcome (500) fails for good too, because a retry sends nothing."""
    server.on("POST /kickoff", status)
    error = failure_of(kickoff_that_waits())
    assert isinstance(error, AirflowFailException | AirflowSensorTimeout) is not is_asked


@pytest.mark.since_airflow("3.3")
@pytest.mark.parametrize("named", [CrewRateLimited, "airflow_crew_provider.exceptions.CrewRateLimited"], ids=str)
def test_a_rule_of_airflow_that_names_our_error_matches(server: FaultServer, named: Any) -> None:
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    server.on("POST /kickoff", LIMITED)
    error = failure_of(kickoff_that_waits())
    other = RetryRule(exception=CrewServerError, action=RetryAction.FAIL)
    policy = ExceptionRetryPolicy(rules=[other, RetryRule(exception=named, action=RetryAction.RETRY)])
    assert policy.evaluate(error, 1, 2).action is RetryAction.RETRY


OVER_BUDGET = Reply(
    body={
        "detail": "The day's budget is used up.",
        "budget": {"who": "*", "window": "day", "until": "2026-11-29T00:00:00Z"},
    },
    status=429,
    headers={"Retry-After": "3600"},
)


@pytest.mark.row("A75")
def test_an_over_budget_kickoff_fails_and_says_when_to_retry(server: FaultServer) -> None:
    server.on("POST /kickoff", OVER_BUDGET)
    error = failure_of(kickoff_that_waits())
    assert isinstance(error, CrewQuotaExceeded)
    assert isinstance(error, CrewTryFailed)
    assert (error.retry_after, error.until) == (3600.0, "2026-11-29T00:00:00Z")
    assert "A retry works from 2026-11-29T00:00:00Z on" in str(error)
    server.on("POST /kickoff", {"kickoff_id": "k-2"}).on("GET /status/k-2", {"status": "error", "error": "no ink"})
    assert isinstance(failure_of(kickoff_that_waits()), CrewExecutionFailed), "a retry starts one"


@pytest.mark.row("A75")
@pytest.mark.since_airflow("3.3")
def test_the_policy_waits_for_a_new_budget_within_its_limit(server: FaultServer) -> None:
    from airflow.sdk import RetryAction, RetryDecision

    from airflow_crew_provider.retries import WaitForBudget

    server.on("POST /kickoff", OVER_BUDGET)
    error = failure_of(kickoff_that_waits())
    decision = WaitForBudget().evaluate(error, 1, 2)
    assert decision.retry_delay == timedelta(hours=1)
    if hasattr(RetryDecision, "reschedule"):
        assert decision.action is RetryAction.RESCHEDULE
        assert decision.reschedule_timeout == timedelta(days=1)
    else:
        assert decision.action is RetryAction.RETRY
    assert WaitForBudget(3600).evaluate(error, 1, 2).action is decision.action
    late = WaitForBudget(timedelta(minutes=59)).evaluate(error, 1, 2)
    assert late.action is RetryAction.FAIL
    assert "later than max_wait (0:59:00)" in str(late.reason)


@pytest.mark.since_airflow("3.3")
@pytest.mark.parametrize(
    "error", [CrewRateLimited(429, "POST", "/kickoff", "x", 7.0), CrewQuotaExceeded(429, "POST", "/kickoff", "x")]
)
def test_the_policy_leaves_everything_else_to_the_tasks_retries(error: CrewError) -> None:
    from airflow.sdk import RetryAction

    from airflow_crew_provider.retries import WaitForBudget

    assert WaitForBudget().evaluate(error, 1, 2).action is RetryAction.DEFAULT


@pytest.mark.since_airflow("3.3")
@pytest.mark.parametrize("wrong", [0, -1.0, True, "1h", timedelta(0)])
def test_the_policy_refuses_a_wait_that_makes_no_sense(wrong: Any) -> None:
    from airflow_crew_provider.retries import WaitForBudget

    with pytest.raises((TypeError, ValueError), match="max_wait must be"):
        WaitForBudget(wrong)


def test_below_airflow_3_3_the_import_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "RELEASE", (3, 2))
    monkeypatch.delitem(sys.modules, "airflow_crew_provider.retries", raising=False)
    with pytest.raises(ImportError, match=r"WaitForBudget needs Airflow 3\.3 or newer"):
        importlib.import_module("airflow_crew_provider.retries")


ERRORS = [each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, CrewError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_event_carries_every_error_of_ours(kind: type[CrewError]) -> None:
    numbers = (503, "GET", "/status/k-1", "away" * 1000)
    for given in (numbers, (["topic"], *numbers), ("k-1", "away"), ("away",)):
        try:
            error = kind(*given)
            str(error)
        except Exception:
            continue
        stored = Outcome(GAVE_UP, "k-1", "m", error=exceptions.to_json(error)).to_event()
        again = exceptions.from_json(Outcome.from_event(stored).error)
        assert type(again) is kind
        assert all(str(each)[:2000] in str(vars(error)) for each in vars(again).values())
        return
    pytest.fail("not constructed")


@pytest.mark.parametrize(
    "odd", [None, 1, {}, {"class": "Json"}, {"class": "CrewApiError", "arguments": []}, {"class": []}]
)
def test_an_error_of_another_release_is_none(odd: Any) -> None:
    assert exceptions.from_json(odd) is None
