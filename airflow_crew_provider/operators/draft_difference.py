"""What a new draft changes in the one before it, as a unified diff that is shown as code. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

from airflow_crew_provider.operators.draft_text import fenced
from airflow_crew_provider.operators.review_answer import SHOWN_CHARACTERS, text_of

SHOWN_DIFFERENCE = 10_000  # characters
MOST_PASSAGES = 1_000  # of each draft; comparing takes up to the square of the time
_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]+")


def difference(before: Any, after: Any, names: tuple[str, str]) -> str:
    """Return what changed between two drafts as Markdown: a code block that nothing in them can end.

    :param names: of the drafts, which stand at the top of the difference
    """
    texts = text_of(before), text_of(after)
    if texts[0] == texts[1]:
        return "*Nothing: the text is the same.*"
    old, new = (_passages(text) for text in texts)
    changes = "\n".join(unified_diff(old[:MOST_PASSAGES], new[:MOST_PASSAGES], *names, n=1, lineterm=""))
    is_whole = max(map(len, texts)) <= SHOWN_CHARACTERS
    return "\n\n".join(_said(changes, is_whole=is_whole and max(len(old), len(new)) <= MOST_PASSAGES))


def _said(changes: str, *, is_whole: bool) -> Iterator[str]:
    if changes:
        yield fenced(changes[:SHOWN_DIFFERENCE], "diff")
    elif is_whole:
        yield "*Only spaces or the ends of lines differ.*"
    if len(changes) > SHOWN_DIFFERENCE:
        yield f"*Only the first {SHOWN_DIFFERENCE:,} of {len(changes):,} characters of the difference are shown.*"
    if not is_whole:
        yield (
            f"*Only the first {MOST_PASSAGES:,} sentences and lines, within the first {SHOWN_CHARACTERS:,} characters, "
            "of each draft were compared.*"
        )


def _passages(text: str) -> list[str]:
    """Return the lines of a draft, of prose its sentences: a paragraph is often one line."""
    lines = text[:SHOWN_CHARACTERS].splitlines()
    return [part for line in lines for part in ([line] if line[:1].isspace() else _SENTENCE_END.split(line))]
