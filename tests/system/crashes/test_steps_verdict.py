"""What kills may repeat in the chaos of steps, and what the verdict says of anything else."""

from __future__ import annotations

from collections import Counter

import pytest
from steps_chaos import CALLS, TASKS, UNKNOWN, Call, Verdict

ONCE_EACH = Counter(Call("case", task, name) for task in TASKS for name in CALLS)


def judged(*again: tuple[str, str], lost: list[int], state: str = "completed") -> Verdict:
    verdict = Verdict()
    made = ONCE_EACH + Counter(Call("case", *each) for each in again)
    verdict.judge("case", state, UNKNOWN if state == "failed" else "", made, lost)
    return verdict


@pytest.mark.parametrize(
    ("again", "lost"),
    [
        ([], [3]),
        ([("first", "model 1")], [0]),
        ([("first", "note"), ("first", "model 2")], [1]),
        ([("second", "model 1")], [4]),
        ([("second", "note"), ("second", "note")], [6, 6]),
    ],
)
def test_a_call_whose_answer_was_lost_may_be_made_again(again: list[tuple[str, str]], lost: list[int]) -> None:
    verdict = judged(*again, lost=lost)
    assert (len(verdict.repeated), verdict.wrong) == (len(set(again)), [])


@pytest.mark.parametrize(
    ("again", "lost"),
    [
        ([("first", "note")], []),
        ([("first", "note")], [2]),
        ([("first", "model 3")], [3]),
        ([("first", "pay")], [3]),
        ([("second", "note")], [5]),
        ([("second", "note"), ("second", "note")], [6]),
    ],
)
def test_any_other_call_may_not(again: list[tuple[str, str]], lost: list[int]) -> None:
    assert judged(*again, lost=lost).wrong


def test_an_execution_ends_completed_or_with_an_unknown_outcome() -> None:
    assert judged(lost=[], state="running").wrong
    assert judged(lost=[3], state="failed").unknown
