"""The arguments of a review: who may answer, for how long, and what happens at the deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_crew_provider.review.people import (
    LONGEST,
    Escalation,
    counted,
    deadline_after,
    deadline_policy,
    needed_approvals,
    refuse_foreign,
    response_time,
    reviewers,
    tool_policy,
    two_words,
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


def test_the_longest_timeout_is_accepted_and_a_longer_one_refused() -> None:
    assert response_time(LONGEST) == LONGEST
    longer = LONGEST + timedelta.resolution
    with pytest.raises(ValueError) as error:
        response_time(longer)
    assert (
        str(error.value) == f"response_timeout must be at most 36,500 days, not {longer!r}; leave it out for no limit"
    )


def test_no_time_is_no_deadline() -> None:
    assert response_time(None) is None


def test_a_deadline_is_a_point_in_time_with_its_zone() -> None:
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
def test_nobody_is_refused_and_does_not_mean_everybody(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^assigned_users names nobody; leave it out to let anyone answer$"):
        reviewers(given)


@pytest.mark.row("A32")
@pytest.mark.parametrize("given", ["", " ", [""], {}, [{}]], ids=str)
def test_an_empty_name_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="assigned_users must be user ids"):
        reviewers(given)


@pytest.mark.row("A32")
def test_a_step_of_the_escalation_names_somebody() -> None:
    with pytest.raises(ValueError, match="each escalate step needs a user or a notifier"):
        Escalation.of([(60, [])], None, None)
    with pytest.raises(ValueError, match="assigned_users must be user ids"):
        Escalation.of([(60, [""])], reviewers("ann"), None)
    assert Escalation.of([(60, print)], None, None).users is None


def test_words_of_a_dag_are_the_options() -> None:
    assert two_words(("yes", "no")) == ["yes", "no"]


@pytest.mark.parametrize("options", [[], ["a"], ["a", "a"], ["a", "b", "c"], "ab", ["", "a"], ["a", ""], [1, 2]])
def test_options_are_two_different_words(options: Any) -> None:
    with pytest.raises(ValueError, match=r"^options must be two different words: one to approve, one to revise$"):
        two_words(options)


NO_DEFAULTS = "defaults cannot be given: use on_timeout to set what happens at the deadline"
ONE_CHOICE = "multiple is not supported: a person makes one choice"


@pytest.mark.parametrize(("name", "said"), [("defaults", NO_DEFAULTS), ("multiple", ONE_CHOICE)])
def test_what_would_approve_by_accident_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        refuse_foreign({name: ["a"]})
    assert str(error.value) == said
    kwargs = {name: None, "other": 1}
    refuse_foreign(kwargs)
    assert kwargs == {"other": 1}


# --- an unanswered tool call, the approvals, and numbers of rounds ---


@pytest.mark.parametrize("policy", ["deny", "fail"])
@pytest.mark.parametrize("timeout", [None, timedelta(1)])
def test_denying_or_failing_a_tool_call_needs_no_deadline(policy: str, timeout: Any) -> None:
    assert tool_policy(policy, timeout) == policy


def test_a_tool_runs_unanswered_only_at_a_deadline() -> None:
    assert tool_policy("approve", timedelta(1)) == "approve"
    with pytest.raises(
        ValueError,
        match=r"^on_tool_timeout='approve' needs a response_timeout: without one there is no deadline$",
    ):
        tool_policy("approve", None)


@pytest.mark.parametrize("policy", [None, True, "Approve", "revise", REVISE])
def test_other_policies_for_a_tool_call_are_refused(policy: Any) -> None:
    with pytest.raises(ValueError) as error:
        tool_policy(policy, timedelta(1))
    assert str(error.value) == f"on_tool_timeout must be 'deny', 'fail' or 'approve', not {policy!r}"


@pytest.mark.parametrize(
    ("approvals", "ids", "allow_edit"),
    [(1, None, False), (1, None, True), (1, ["ann"], True), (2, None, False), (2, ["ann", "bob"], False)],
)
def test_as_many_people_as_may_answer_may_be_needed(approvals: int, ids: Any, allow_edit: bool) -> None:
    users = None if ids is None else [{"id": each} for each in ids]
    assert needed_approvals(approvals, users, allow_edit=allow_edit) == approvals


@pytest.mark.parametrize("approvals", [0, -1, True, 1.0, "2", None])
def test_a_number_of_approvals_that_is_none_is_refused(approvals: Any) -> None:
    with pytest.raises(ValueError) as error:
        needed_approvals(approvals, None, allow_edit=False)
    assert str(error.value) == f"approvals must be an integer >= 1, not {approvals!r}"


@pytest.mark.parametrize("ids", [["ann"], ["ann", "ann"]])
def test_the_same_person_twice_is_not_two_people(ids: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        needed_approvals(2, [{"id": each} for each in ids], allow_edit=False)
    assert str(error.value) == "2 approvals need at least as many different users; name more in assigned_users"


@pytest.mark.parametrize("allow_edit", [None, 1, "yes"])
def test_allow_edit_is_a_bool(allow_edit: Any) -> None:
    with pytest.raises(ValueError) as error:
        needed_approvals(1, None, allow_edit=allow_edit)
    assert str(error.value) == f"allow_edit must be True or False, not {allow_edit!r}"


def test_editing_is_refused_where_a_second_person_must_approve() -> None:
    with pytest.raises(
        ValueError, match=r"^allow_edit supports only one approval: a second person would not see the edited draft$"
    ):
        needed_approvals(2, None, allow_edit=True)


@pytest.mark.parametrize("number", [None, 1, 7])
def test_a_number_of_rounds_may_be_left_out(number: int | None) -> None:
    assert counted(number, "max_rounds") == number


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "1"])
def test_what_counts_no_rounds_is_refused(number: Any) -> None:
    with pytest.raises(ValueError) as error:
        counted(number, "max_rounds")
    assert str(error.value) == f"max_rounds must be an integer >= 1, not {number!r}"
