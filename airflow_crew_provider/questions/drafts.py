"""The draft as a person sees it: text that is safe to show, its changes, and the effect of edits. Pure functions.

The text is untrusted: no renderer may load or run anything in it. Markdown parsers disagree about what counts as code,
so safety does not depend on that. Outside code blocks that every parser recognizes, an escape or an invisible character
keeps ``![`` from starting an image, and ``<`` from starting HTML. Guessing which other lines are code only affects how
they look.

A draft edited by a person becomes the task's output on our own crew service; any other service gets it as revision
feedback. An edit names its original draft, so that it never replaces another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import unified_diff
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_crew_provider.api.status import json_object_in
from airflow_crew_provider.models import Json, canonical_json
from airflow_crew_provider.stored_names import EDIT_FIELD

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


UNITS = ((1024, "KiB"), (1024**2, "MiB"), (1024**3, "GiB"))
JOINER = "\N{WORD JOINER}"
# The beginnings of images, HTML and footnotes, any of which may contain anything.
_BEGINNINGS = re.compile(r"!(?=\[)|<(?=[A-Za-z/!?])|\[(?=\^)")


def parted(text: str) -> str:
    """Return text that looks the same but starts no image, HTML or footnote in Markdown."""
    return _BEGINNINGS.sub(lambda match: match[0] + JOINER, text)


def code(value: Any, longest: int = 100) -> str:
    """Format untrusted text as Markdown code on one line."""
    return "`" + parted(" ".join(str(value).split())[:longest].replace("`", "'")) + "`"


def escaped(value: Any, longest: int = 100) -> str:
    """Format untrusted text as plain Markdown text on one line."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(str(value).split())[:longest])


def readable_size(count: int) -> str:
    """Return a file's size in binary units."""
    if count < 1024:
        return f"{count} byte{'' if count == 1 else 's'}"
    unit, name = next((each for each in UNITS if count < 1024 * each[0]), UNITS[-1])
    return f"{count / unit:,.1f} {name}"


SHOWN_FEEDBACK = 2_000


def quoted(text: str) -> str:
    """Return the beginning of an untrusted text as a quotation."""
    return in_quotation(text if len(text) <= SHOWN_FEEDBACK else text[:SHOWN_FEEDBACK] + " …")


def in_quotation(text: str) -> str:
    """Return untrusted text as a quotation; nothing that the text opens extends beyond it."""
    return "\n".join(f"> {line}" for line in inert(text).split("\n"))


# Code spans first: an escape would be visible in them.
_SPANS = re.compile(r"(?<![`\\])(`+)(?!`).+?(?<!`)\1(?!`)|<|!\[|\[\^", re.DOTALL)
_ESCAPES = {"<": "&lt;", "![": f"!{JOINER}[", "[^": r"\[^"}
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")
_LIKE_A_FENCE = re.compile(r"`{3}|~{3}")


def inert(text: str) -> str:
    """Return equivalent Markdown in which HTML is visible text and images are links."""
    lines = re.split(r"\r\n|\r|\n", text)
    return "\n".join(_inert_lines(lines))


def fenced(text: str, language: str = "text") -> str:
    """Return a code block that the text cannot close.

    :param language: never empty: up to Airflow 3.3, the page would show such a block on one line
    """
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _inert_lines(lines: list[str]) -> Iterator[str]:
    sure, like_code = set(_surely_code(lines)), _code_lines("\n".join(lines))
    prose: list[str] = []
    for number, line in enumerate(lines):
        if number not in sure and number not in like_code and line.strip():
            prose.append(line)
            continue
        yield from _escaped(prose)
        prose = []
        yield line if number in sure else parted(line)
    yield from _escaped(prose)


def _surely_code(lines: list[str]) -> Iterator[int]:
    """Yield the lines of code blocks that start at the margin after an empty line, up to the first ambiguous fence.

    Nothing before such a block can absorb it: lists, quotations and footnotes end there, and HTML is neutralized.
    """
    fence, after_blank = "", True
    for number, line in enumerate(lines):
        if fence:
            yield number
            fence = "" if _ends(line, fence) else fence
        elif after_blank and (begins := _FENCE.match(line)):
            yield number
            fence = begins[0]
        elif _LIKE_A_FENCE.search(line):
            return
        after_blank = not line.strip()


def _ends(line: str, fence: str) -> bool:
    match = re.fullmatch(r" {0,3}(`+|~+)[ \t]*", line)
    return bool(match) and match[1].startswith(fence)  # type: ignore[index]


def _escaped(paragraph: list[str]) -> list[str]:
    text = _SPANS.sub(lambda match: _ESCAPES.get(match[0]) or parted(match[0]), "\n".join(paragraph))
    return text.split("\n")[: len(paragraph)]


def _code_lines(text: str) -> set[int]:
    """Return the lines that one parser treats as code."""
    blocks = [each.map for each in _parser().parse(text) if each.type in ("fence", "code_block") and each.map]
    return {line for start, end in blocks for line in range(start, end)}


@cache
def _parser() -> MarkdownIt:
    # Imported here, because parsing a DAG file must not load it.
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


# More than anyone reads in a form, but still fast to render.
SHOWN_CHARACTERS = 60_000


def as_text(value: Any) -> str:
    """Return a text that a DAG gives; what a template or an XCom makes of it may be any value, or None."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list | tuple) else str(value)


def text_of(output: Any) -> str:
    """Return a draft in displayable form."""
    text = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
    # Not every database accepts these characters; the hash is that of the original draft.
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


# --- differences ---


SHOWN_DIFFERENCE = 10_000  # characters
MOST_PASSAGES = 1_000  # of each draft; comparing them may take quadratic time
_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]+")


def difference(before: Any, after: Any, names: tuple[str, str]) -> str:
    """Return the difference between two drafts as Markdown: a code block that the drafts cannot close.

    :param names: names of the drafts, shown at the top of the difference
    """
    texts = text_of(before), text_of(after)
    if texts[0] == texts[1]:
        return "*None: the text is the same.*"
    old, new = (_passages(text) for text in texts)
    changes = "\n".join(unified_diff(old[:MOST_PASSAGES], new[:MOST_PASSAGES], *names, n=1, lineterm=""))
    is_whole = max(map(len, texts)) <= SHOWN_CHARACTERS
    return "\n\n".join(_said(changes, is_whole=is_whole and max(len(old), len(new)) <= MOST_PASSAGES))


def _said(changes: str, *, is_whole: bool) -> Iterator[str]:
    if changes:
        yield fenced(changes[:SHOWN_DIFFERENCE], "diff")
    elif is_whole:
        yield "*Only spaces or line endings differ.*"
    if len(changes) > SHOWN_DIFFERENCE:
        yield f"*Only the first {SHOWN_DIFFERENCE:,} of {len(changes):,} characters of the difference are shown.*"
    if not is_whole:
        yield (
            f"*Only the first {MOST_PASSAGES:,} sentences and lines, within the first {SHOWN_CHARACTERS:,} characters, "
            "of each draft were compared.*"
        )


def _passages(text: str) -> list[str]:
    """Return a draft's lines, with prose split into sentences, because a paragraph is often a single line."""
    lines = text[:SHOWN_CHARACTERS].splitlines()
    return [part for line in lines for part in ([line] if line[:1].isspace() else _SENTENCE_END.split(line))]


# --- edits ---


def draft_in(params: Json | None) -> Any:
    """Return the initial draft in a form's field, None if there is none; Airflow has stored fields in two shapes."""
    field = (params or {}).get(EDIT_FIELD)
    return field.get("value") if isinstance(field, dict) else field


def with_text_of_edit(answer: Json, draft: str | None) -> Json:
    """Return an answer whose edited draft is a string; return it unchanged for a form without a draft.

    Airflow's page returns None for an emptied field, and an object for text that is a JSON object; an API client may
    omit the field.
    """
    fields = answer.get("params_input")
    if draft is None or not fields:
        return answer
    left = fields.get(EDIT_FIELD, draft)
    if left is None:
        left = ""
    elif isinstance(left, dict):
        left = json.dumps(left, indent=2, ensure_ascii=False)
    elif isinstance(left, str):
        left = _plain(left)
    return {**answer, "params_input": {**fields, EDIT_FIELD: left}}


def is_edit(draft: str, left: str) -> bool:
    """Whether text differs from the form's initial draft by more than surrounding or JSON white space."""
    if left.strip() == _plain(draft).strip():
        return False
    value = json_object_in(left)
    # In canonical form, because Python considers true and 1 equal.
    return value is None or canonical_json(value) != canonical_json(json_object_in(draft))


def _plain(text: str) -> str:
    """Normalize line endings, which browsers change."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def edit_problem(draft: str, edited: str) -> str | None:
    """Return why text cannot replace a draft, as the end of a sentence; None if it can."""
    if not edited.strip():
        return "the edited draft is empty"
    if json_object_in(draft) is not None and json_object_in(edited) is None:
        return "the draft is a JSON object, but the edited one is not"
    return None


AS_FEEDBACK = "Use this text, edited by the reviewer, unchanged:"
