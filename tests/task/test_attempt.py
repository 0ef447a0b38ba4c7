"""What an earlier try is to the present one: all combinations of the numbers that Airflow gives."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from airflow_crew_provider.task.attempt import ANY, TABLE, Attempt, Change, Relation, Row

EQUAL, MORE, LESS, UNKNOWN = Change
NOW = {"run_after": 10.0, "run_started": 20.0, "clears": 3, "try_number": 4, "max_tries": 5, "retries": 2}


def tries(changes: dict[str, Change], *, hides_clear: bool) -> tuple[Attempt, dict[str, Any]]:
    """Return a try, and what an earlier one has left, whose numbers compare like this."""
    now = {**NOW, "max_tries": 5}
    if hides_clear:
        now["retries"] = now["max_tries"] - now["try_number"] + 1
    then = {**now, "retries": 3 if hides_clear else now["retries"]}
    for name, change in changes.items():
        if change is UNKNOWN:
            del then[name]
        else:
            then[name] = now[name] + {EQUAL: 0, MORE: -1, LESS: 1}[change]
    return Attempt(**now), then


def expected(changes: dict[str, Change], *, hides_clear: bool) -> Relation:
    """Return the relation, told in another way than the table does."""
    started, number = changes["run_started"], changes["try_number"]
    restarted = started in (MORE, LESS)
    if number is UNKNOWN:
        number = MORE
    if restarted and (changes["run_after"] in (MORE, LESS) or number is not MORE or changes["clears"] is LESS):
        return Relation.OTHER_RUN
    if number is LESS:
        return Relation.OTHER_RUN if started is UNKNOWN else Relation.DOUBTFUL
    if number is EQUAL:
        return Relation.SAME if started is EQUAL else Relation.DOUBTFUL
    if changes["max_tries"] in (MORE, LESS):
        return Relation.CLEAR
    if restarted and changes["clears"] is EQUAL:
        return Relation.DOUBTFUL
    if hides_clear and changes["max_tries"] is EQUAL:
        return Relation.DOUBTFUL
    return Relation.RETRY


NAMES = ("run_after", "run_started", "clears", "try_number", "max_tries")
ALL = [
    (dict(zip(NAMES, each, strict=True)), hides)
    for each in itertools.product(ANY, repeat=len(NAMES))
    for hides in (False, True)
]


@pytest.mark.row("A37", "A17", "A22", "A34", "A35")
def test_every_combination_of_numbers_has_one_relation() -> None:
    wrong = []
    for changes, hides_clear in ALL:
        attempt, then = tries(changes, hides_clear=hides_clear)
        if changes["max_tries"] is UNKNOWN and hides_clear:
            continue  # without the earlier number, nothing can be hidden
        found, wanted = attempt.relation_to(then), expected(changes, hides_clear=hides_clear)
        if found is not wanted:
            wrong.append((changes, hides_clear, found, wanted))
    assert wrong == []
    assert len(ALL) == 4**5 * 2


@pytest.mark.row("A37")
def test_a_try_with_the_same_id_is_the_same() -> None:
    for changes, hides_clear in ALL:
        attempt, then = tries(changes, hides_clear=hides_clear)
        same = replace(attempt, attempt_id="a")
        wanted = Relation.SAME if changes["try_number"] is EQUAL else attempt.relation_to(then)
        assert same.relation_to({**then, "attempt_id": "a"}) is wanted
        assert same.relation_to({**then, "attempt_id": "b"}) is attempt.relation_to(then)


def test_every_row_of_the_table_decides_something() -> None:
    def first(changes: dict[str, Change], *, hides_clear: bool) -> Row:
        return next(row for row in TABLE if row.fits(changes, hides_clear=hides_clear))

    ids = ({"attempt_id": UNKNOWN}, {"attempt_id": EQUAL})
    deciding = {id(first({**changes, **each}, hides_clear=hides)) for changes, hides in ALL for each in ids}
    assert deciding == {id(row) for row in TABLE}
    assert all(row.reason for row in TABLE)


def test_a_record_without_numbers_is_of_an_earlier_try() -> None:
    assert Attempt(2, 2, 2, 0, 1.0, 1.0).relation_to({}) is Relation.RETRY


EARLIER = {"try_number": 3, "max_tries": 3, "retries": 2, "clears": 0, "run_started": 20.0, "run_after": 10.0}


def test_a_record_without_retries_hides_no_clear() -> None:
    """An earlier release stored none, so nothing shows that they were edited."""
    now = Attempt(**{**EARLIER, "try_number": 4, "retries": 0})
    assert now.relation_to(EARLIER) is Relation.DOUBTFUL
    assert now.relation_to({name: value for name, value in EARLIER.items() if name != "retries"}) is Relation.RETRY


# --- what Airflow tells of a try ---

STARTED, AFTER = datetime(2026, 11, 20, 12, tzinfo=UTC), datetime(2026, 11, 20, 11, tzinfo=UTC)
A_RUN = SimpleNamespace(clear_number=3, start_date=STARTED, run_after=AFTER)
ID = UUID("0b2e8508-ae72-4f6f-9f4f-cb65eed46f4f")


@pytest.mark.parametrize(
    ("context", "task", "attempt"),
    [
        (
            {"ti": SimpleNamespace(try_number=4, max_tries=5, id=ID), "dag_run": A_RUN},
            SimpleNamespace(retries=2),
            Attempt(4, 5, 2, 3, STARTED.timestamp(), AFTER.timestamp(), str(ID)),
        ),
        ({"ti": SimpleNamespace(), "dag_run": SimpleNamespace()}, SimpleNamespace(), Attempt()),
        ({"ti": SimpleNamespace(id=None)}, SimpleNamespace(retries=None), Attempt()),
        (
            {"ti": SimpleNamespace(), "dag_run": SimpleNamespace(start_date="today", run_after=None)},
            SimpleNamespace(),
            Attempt(),
        ),
    ],
    ids=["Airflow 3", "nothing", "no run", "no dates"],
)
def test_a_try_has_the_numbers_that_airflow_gives(context: Any, task: Any, attempt: Attempt) -> None:
    assert Attempt.of(context, task) == attempt


def test_only_known_numbers_of_a_try_are_stored() -> None:
    assert Attempt(2, 3, clears=0).as_dict() == {"try_number": 2, "max_tries": 3, "retries": 0, "clears": 0}


@pytest.mark.parametrize(("number", "is_last"), [(1, False), (2, False), (3, True)])
def test_no_retry_follows_the_last_try(number: int, is_last: bool) -> None:
    assert Attempt(number, max_tries=2).is_last is is_last


# --- what is said of a doubt ---


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({}, []),
        ({**EARLIER, "retries": 0}, []),
        (
            EARLIER,
            [
                "The task's retries were edited from 2 to 0, so a retry and a clear look alike. This try counts as a "
                "retry, which starts nothing twice; if you cleared the task to start again, clear it once more"
            ],
        ),
    ],
    ids=["no record", "a retry", "a doubt"],
)
def test_only_a_doubt_is_told(kept: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture) -> None:
    Attempt(**{**EARLIER, "try_number": 4, "retries": 0}).tell_doubt(kept)
    assert caplog.messages == said
