"""What the page marks as changed in a revised draft, and what that may cost."""

from __future__ import annotations

import re

import pytest
from speed import cpu_of

from crew_service.http.differences import LONGEST, compare

DISTINCT = "".join(f"line {number}\n" for number in range(1_000))


def test_only_what_changed_is_marked() -> None:
    sides = compare("One.\nTwo pears.\nThree.\n", "One.\nTwo plums.\nThree.\nFour.\n")
    assert sides is not None
    assert sides.before == "One.\nTwo <del>pears</del>.\nThree.\n"
    assert sides.after == "One.\nTwo <ins>plums</ins>.\nThree.\n<ins>Four.\n</ins>"


def test_nothing_of_a_repetitive_draft_is_lost_or_run() -> None:
    before, after = "a <b>\n" * 3_000, "c\n" + "a <b>\n" * 2_000 + "d\n" + "a <b>\n" * 999
    sides = compare(before, after)
    assert sides is not None
    assert [re.sub("</?(del|ins)>", "", str(side)).replace("&lt;b&gt;", "<b>") for side in sides] == [before, after]


def test_drafts_that_are_too_long_are_not_compared() -> None:
    assert compare("a" * (LONGEST + 1), "b") is None


@pytest.mark.row("S11")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\n" * 29_000, "b\n" + "a\n" * 14_000 + "c\n" + "a\n" * 14_000),
        ("".join(f"a\nx{n}\n" for n in range(6_000)), "".join(f"a\ny{n}\n" for n in range(6_000))),
        (" ".join(f"a x{n}" for n in range(6_000)), " ".join(f"a y{n}" for n in range(6_000))),
    ],
    ids=["one line again and again", "every other line the same", "every other word the same"],
)
def test_a_repetitive_draft_does_not_delay_the_page(before: str, after: str) -> None:
    def compared(old: str, new: str) -> None:
        assert compare(old, new) is not None

    ordinary = cpu_of(lambda: compared(DISTINCT, DISTINCT.replace("7", "seven")))
    # Without a limit these took 12 s to some minutes.
    assert cpu_of(lambda: compared(before, after), enough=50 * ordinary) < 50 * ordinary
