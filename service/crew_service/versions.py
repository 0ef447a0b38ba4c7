"""Orders the versions of a package."""

from __future__ import annotations

import re

FORM = re.compile(r"([\d.]*)(?:(dev|a|b|rc|post)(\d+))?")
STAGES = ("dev", "a", "b", "rc", "", "post")  # in order; the empty one is the release itself

Key = tuple[list[int], int, int]


def key(version: str) -> Key:
    """Return what to compare: `1.2.dev3` and `1.2rc1` come before `1.2`, and `1.2.post1` after it."""
    [(numbers, stage, count), *_] = FORM.findall(version)
    return [int(number) for number in re.findall(r"\d+", numbers)], STAGES.index(stage), int(count or 0)
