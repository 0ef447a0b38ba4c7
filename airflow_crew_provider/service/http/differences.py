"""Marks what a revised draft left out and what it added, by lines, and by words where a line was changed."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import NamedTuple

from markupsafe import Markup

LONGEST = 60_000  # characters of each draft; comparing takes the square of the time
MOST_WORDS = 2_000  # of two changed passages
WORDS = re.compile(r"\s+|\w+|[^\w\s]")


class Sides(NamedTuple):
    before: Markup
    after: Markup


def compare(before: str, after: str) -> Sides | None:
    """Return both drafts with their differences marked; None where they are too long for that."""
    if max(len(before), len(after)) > LONGEST:
        return None
    return _join(before.splitlines(keepends=True), after.splitlines(keepends=True), _passage)


def _passage(before: str, after: str) -> Sides:
    old, new = WORDS.findall(before), WORDS.findall(after)
    if len(old) + len(new) > MOST_WORDS:
        return _marked(before, after)
    return _join(old, new, _marked)


def _join(old: list[str], new: list[str], changed: object) -> Sides:
    left, right = [], []
    for kind, i, j, k, n in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        was, now = "".join(old[i:j]), "".join(new[k:n])
        sides = changed(was, now) if kind == "replace" else _kept(was, now) if kind == "equal" else _marked(was, now)  # type: ignore[operator]
        left.append(sides.before)
        right.append(sides.after)
    return Sides(Markup("").join(left), Markup("").join(right))


def _kept(before: str, after: str) -> Sides:
    return Sides(Markup.escape(before), Markup.escape(after))


def _marked(before: str, after: str) -> Sides:
    return Sides(
        Markup("<del>{}</del>").format(before) if before else Markup(""),
        Markup("<ins>{}</ins>").format(after) if after else Markup(""),
    )
