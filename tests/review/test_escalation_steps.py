"""The steps of an escalation: how they are given, when each is due, and who may answer from then on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_crew_provider.review.people import Escalation, told

HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ANN, BOB, BOSS = ({"id": name, "name": name} for name in ("ann", "bob", "boss"))


class Pager:
    """A notifier."""

    def __call__(self, context: Any) -> None:
        raise NotImplementedError


class Pagers(list[Pager]):
    """A notifier that is a list of others."""

    def __call__(self, context: Any) -> None:
        raise NotImplementedError


def pages(context: Any) -> None:
    """Stand in for a notifier that is a function."""


def of(*steps: Any, assigned: Any = (ANN,), timeout: timedelta | None = None) -> Escalation:
    return Escalation.of(steps, assigned and [*assigned], timeout)


def test_steps_are_read_in_the_order_of_their_times() -> None:
    pager = Pager()
    escalation = of(("7200", [pager, "boss"]), [3600, {"id": "bob", "name": "Bob"}], (3 * HOUR, pages))
    assert [(step.after, step.users, step.notifiers) for step in escalation.steps] == [
        (HOUR, [{"id": "bob", "name": "Bob"}], []),
        (2 * HOUR, [BOSS], [pager]),
        (3 * HOUR, [], [pages]),
    ]
    assert escalation.assigned == [ANN]


@pytest.mark.parametrize("given", [None, (), []])
def test_without_steps_nothing_is_ever_due(given: Any) -> None:
    escalation = Escalation.of(given, [ANN], HOUR)
    assert (list(escalation.due(NOON, NOON + 9 * HOUR)), escalation.next_after(NOON, NOON)) == ([], None)
    assert (escalation.may_answer, told(escalation.may_answer, NOON)) == (None, [])


@pytest.mark.parametrize(
    "given",
    [HOUR, "ab", (HOUR,), (HOUR, "boss", "ann"), {HOUR, "boss"}, {HOUR: "boss", 1: 2}],
    ids=["time", "text", "one", "three", "set", "dict"],
)
def test_a_step_is_a_pair(given: Any) -> None:
    with pytest.raises(ValueError) as error:
        of(given)
    assert str(error.value) == f"escalate must be a list of pairs of a time and users or notifiers, not {given!r}"


@pytest.mark.parametrize("given", [5, HOUR])
def test_a_value_that_is_no_list_of_steps_is_named(given: Any) -> None:
    with pytest.raises(ValueError) as error:
        Escalation.of(given, [ANN], None)
    assert str(error.value) == f"escalate must be a list of pairs of a time and users or notifiers, not {given!r}"


def test_a_notifier_that_contains_others_is_a_single_notifier() -> None:
    pagers = Pagers([Pager(), Pager()])
    [step] = of((HOUR, pagers)).steps
    assert [each is pagers for each in step.notifiers] == [True]


@pytest.mark.parametrize(("given", "read"), [(None, 0), (0, 0), (-1, -1), ("soon", "soon")])
def test_the_time_of_a_step_is_named_in_its_error(given: Any, read: Any) -> None:
    with pytest.raises(ValueError) as error:
        of((given, "boss"))
    assert str(error.value) == f"A time in escalate must be a timedelta or a number of seconds above 0, not {read!r}"


def test_a_step_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^each escalate step needs a user or a notifier$"):
        of((HOUR, []))


def test_a_step_adds_no_users_where_everybody_may_answer() -> None:
    assert of((HOUR, pages), assigned=None).users is None
    with pytest.raises(ValueError, match=r"^escalate names users, but everybody may answer: set assigned_users too$"):
        of((HOUR, pages), (2 * HOUR, "boss"), assigned=None)


def test_a_step_comes_before_the_deadline() -> None:
    assert of((HOUR, "boss"), timeout=HOUR + timedelta.resolution).steps
    with pytest.raises(
        ValueError, match=r"^escalate has a step at or after response_timeout, when the question has already expired$"
    ):
        of((HOUR, "boss"), timeout=HOUR)


@pytest.mark.parametrize(
    ("after", "due", "following"),
    [
        (HOUR - timedelta.resolution, [], 1),
        (HOUR, [(1, "3600 boss")], 2),
        (1.5 * HOUR, [(1, "3600 boss")], 2),
        (2 * HOUR, [(1, "3600 boss"), (2, "7200 pages")], None),
    ],
    ids=["before", "at the first", "between", "at the last"],
)
def test_at_its_time_a_step_is_due_and_not_next(after: timedelta, due: Any, following: Any) -> None:
    escalation = of((HOUR, "boss"), (2 * HOUR, pages))
    now = NOON + after
    assert [(number, step.name) for number, step in escalation.due(NOON, now)] == due
    assert escalation.next_after(NOON, now) == (following and NOON + following * HOUR)


def test_a_step_is_named_by_time_users_and_notifier_kinds() -> None:
    one, same, third = (HOUR, ["bob", "ann", Pager(), pages]), (HOUR, ["ann", "bob", Pager(), pages]), (1.5, ["ann"])
    kind = "3600 ann bob Pager pages"
    assert [step.name for step in of(one, third, same, one).steps] == ["1.5 ann", kind, f"{kind} #2", f"{kind} #3"]


def test_assigned_users_answer_at_once_and_others_from_their_step() -> None:
    escalation = of((HOUR, ["boss", "bob"]), (2 * HOUR, ["bob", "ann"]), (3 * HOUR, pages))
    assert escalation.may_answer == {"ann": 0.0, "bob": 3600.0, "boss": 3600.0}
    assert [user["id"] for user in escalation.users or ()] == ["boss", "bob", "ann"]
    assert escalation.ids == ["ann", "bob", "boss"]
    assert of((HOUR, pages)).may_answer is None


def test_the_form_says_who_may_answer_later_and_from_when() -> None:
    escalation = of((HOUR, ["boss", "bob"]), (1.5 * HOUR, pages), (36 * HOUR, "chief"))
    assert told(escalation.may_answer, NOON) == [
        "From 2026-11-20 13:00 UTC on, bob, boss may also answer.",
        "From 2026-11-22 00:00 UTC on, chief may also answer.",
    ]
