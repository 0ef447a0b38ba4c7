"""Marks removed and added text in a revised draft, line by line and, within changed lines, word by word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import NamedTuple

from markupsafe import Markup

LONGEST = 60_000  # characters of each draft
# This limits a comparison to well under a second: repetitive text would take cubic time.
MOST_STEPS = 3_000_000
WORDS = re.compile(r"\s+|\w+|[^\w\s]")


class Sides(NamedTuple):
    before: Markup
    after: Markup


class Comparison:
    """Compares two drafts; whatever remains when the steps are used up is marked as changed."""

    def __init__(self) -> None:
        self._steps_left = MOST_STEPS

    def of_lines(self, before: str, after: str) -> Sides:
        return self._join(before.splitlines(keepends=True), after.splitlines(keepends=True), self._of_words)

    def _of_words(self, before: str, after: str) -> Sides:
        return self._join(WORDS.findall(before), WORDS.findall(after), _marked)

    def _join(self, old: list[str], new: list[str], changed: Callable[[str, str], Sides]) -> Sides:
        same = _common(old, new)
        same_at_end = _common(old[same:][::-1], new[same:][::-1])
        before, after = old[same : len(old) - same_at_end], new[same : len(new) - same_at_end]
        sides = [_kept("".join(old[:same]), "".join(new[:same]))]
        sides += self._changes(before, after, changed) if self._may(before, after) else [_joined(before, after)]
        sides.append(_kept("".join(old[len(old) - same_at_end :]), "".join(new[len(new) - same_at_end :])))
        return Sides(*(Markup("").join(side) for side in zip(*sides, strict=True)))

    def _changes(self, old: list[str], new: list[str], changed: Callable[[str, str], Sides]) -> list[Sides]:
        sides = []
        for kind, i, j, k, n in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            mark = changed if kind == "replace" else _kept if kind == "equal" else _marked
            sides.append(mark("".join(old[i:j]), "".join(new[k:n])))
        return sides

    def _may(self, old: list[str], new: list[str]) -> bool:
        """Use up a comparison's steps if enough are left; each match costs at most one pass over all equal pairs."""
        counted = Counter(new)
        pairs = sum(counted[part] for part in old)
        steps = (pairs + len(old)) * (min(len(old), len(new)) + 1)
        if steps > self._steps_left:
            return False
        self._steps_left -= steps
        return True


def compare(before: str, after: str) -> Sides | None:
    """Return both drafts with their differences marked; None if they are too long."""
    if max(len(before), len(after)) > LONGEST:
        return None
    return Comparison().of_lines(before, after)


def _common(old: list[str], new: list[str]) -> int:
    """Return the number of equal parts at the beginning."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, (was, now) in pairs if was != now), min(len(old), len(new)))


def _joined(old: list[str], new: list[str]) -> Sides:
    return _marked("".join(old), "".join(new))


def _kept(before: str, after: str) -> Sides:
    return Sides(Markup.escape(before), Markup.escape(after))


def _marked(before: str, after: str) -> Sides:
    return Sides(
        Markup("<del>{}</del>").format(before) if before else Markup(""),
        Markup("<ins>{}</ins>").format(after) if after else Markup(""),
    )
