"""The arguments of a review: who may answer, for how long, and what happens at the deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_crew_provider.review.people import (
    Escalation,
    deadline_after,
    deadline_policy,
    refuse_foreign,
    response_time,
    reviewers,
)

REVISE = {"revise": "Shorter."}


@pytest.mark.parametrize("policy", ["fail", "approve", REVISE])
def test_a_policy_is_taken_with_a_deadline(policy: Any) -> None:
    assert deadline_policy(policy, timedelta(1)) == policy


def test_only_to_fail_needs_no_deadline() -> None:
    assert deadline_policy("fail", None) == "fail"
    for policy in ("approve", REVISE):
        with pytest.raises(
            ValueError, match=r"^on_timeout needs a response_timeout: without one there is no deadline$"
        ):
            deadline_policy(policy, None)


@pytest.mark.parametrize(
    "policy", [{}, {"revise": ""}, {"revise": " "}, {"revise": 5}, {**REVISE, "more": "x"}, {"x": "y"}]
)
def test_a_policy_that_says_nothing_to_change_is_refused(policy: Any) -> None:
    with pytest.raises(ValueError, match=r'^on_timeout as a dict must be \{"revise": "what to change"\}$'):
        deadline_policy(policy, timedelta(1))


@pytest.mark.parametrize("policy", ["revise", None, True, "Approve"])
def test_other_words_are_refused(policy: Any) -> None:
    with pytest.raises(ValueError) as error:
        deadline_policy(policy, timedelta(1))
    assert str(error.value) == f'on_timeout must be "fail", {{"revise": "what to change"}} or "approve", not {policy!r}'


@pytest.mark.parametrize(
    ("given", "seconds"), [(timedelta(hours=1), 3600), (5, 5), (0.5, 0.5), ("60", 60), (timedelta.resolution, 1e-6)]
)
def test_a_time_is_a_timedelta_or_seconds(given: Any, seconds: float) -> None:
    assert response_time(given) == timedelta(seconds=seconds)


@pytest.mark.parametrize("given", [0, -1, "soon", True, [], float("nan"), float("inf"), timedelta(0), timedelta(-1)])
def test_what_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(ValueError) as error:
        response_time(given)
    assert str(error.value) == f"response_timeout must be a timedelta or a number of seconds above 0, not {given!r}"


def test_no_time_is_no_deadline() -> None:
    assert response_time(None) is None


def test_a_deadline_is_a_point_in_time_that_says_its_zone() -> None:
    before = datetime.now(UTC)
    ends = deadline_after(timedelta(hours=1))
    assert ends is not None
    assert before + timedelta(hours=1) <= datetime.fromisoformat(ends) <= datetime.now(UTC) + timedelta(hours=1)
    assert ends.endswith("+00:00")
    assert deadline_after(None) is None


@pytest.mark.parametrize(
    ("given", "users"),
    [
        (None, None),
        ("7", [{"id": "7", "name": "7"}]),
        ({"id": "7"}, [{"id": "7", "name": "7"}]),
        ({"id": "7", "name": "Ann"}, [{"id": "7", "name": "Ann"}]),
        (["7", {"id": "8", "name": "Bob"}], [{"id": "7", "name": "7"}, {"id": "8", "name": "Bob"}]),
    ],
)
def test_users_are_ids_or_dicts(given: Any, users: Any) -> None:
    assert reviewers(given) == users


@pytest.mark.parametrize(
    "given", [5, [5], [" "], {"id": ""}, {"name": "Ann"}, {"id": "7", "name": 5}, {"id": "7", "x": 1}]
)
def test_what_names_no_user_is_refused(given: Any) -> None:
    with pytest.raises(ValueError) as error:
        reviewers(given)
    assert str(error.value) == f"assigned_users must be user ids, or dicts with id and name, not {given!r}"


@pytest.mark.row("A32")
@pytest.mark.parametrize("given", [[], (), set(), iter(())], ids=["list", "tuple", "set", "iterator"])
def test_a32_nobody_is_refused_and_does_not_mean_everybody(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^assigned_users names nobody; leave it out to let everybody answer$"):
        reviewers(given)


@pytest.mark.row("A32")
@pytest.mark.parametrize("given", ["", " ", [""], {}, [{}]], ids=str)
def test_a32_an_empty_name_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="assigned_users must be user ids"):
        reviewers(given)


@pytest.mark.row("A32")
def test_a32_a_step_of_the_escalation_names_somebody() -> None:
    with pytest.raises(ValueError, match="each escalate step needs a user or a notifier"):
        Escalation.of([(60, [])], None, None)
    with pytest.raises(ValueError, match="assigned_users must be user ids"):
        Escalation.of([(60, [""])], reviewers("ann"), None)
    assert Escalation.of([(60, print)], None, None).users is None


@pytest.mark.parametrize("options", [[], ["a"], ["a", "a"], ["a", "b", "c"]])
def test_options_are_two_different_words(options: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^options must be two different words: to approve, and to revise$"):
        refuse_foreign(options, {})


@pytest.mark.parametrize("name", ["defaults", "multiple"])
def test_what_would_approve_by_accident_is_refused(name: str) -> None:
    with pytest.raises(ValueError) as error:
        refuse_foreign(["a", "b"], {name: ["a"]})
    assert str(error.value) == f"{name} cannot be given: use on_timeout to set what happens at the deadline"
    kwargs = {name: None, "other": 1}
    refuse_foreign(["a", "b"], kwargs)
    assert kwargs == {"other": 1}
