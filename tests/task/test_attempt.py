"""What an earlier try is to the present one: all combinations of the numbers that Airflow gives."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

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
