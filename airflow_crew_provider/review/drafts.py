"""The draft as a person sees it: text that is safe to show, what has changed in it, and what becomes of an edit. Pure.

The text is not trusted: whatever renders it, nothing in it is loaded or run. Parsers of Markdown disagree about what is
code, so safety does not rest on that. Outside of code blocks that every parser sees alike, an invisible character parts
``!`` from ``[`` and ``<`` from what would make it HTML. Which other lines look like code decides no more than how they
are shown.

A draft that a person edits becomes the task's output, at our own crew service only; any other gets it as the feedback
of a revision. An edit names the draft that it was made of, so that it never replaces another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import unified_diff
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_crew_provider.api.status import json_object_in, without_fence
from airflow_crew_provider.flows.questions import is_of_flow
from airflow_crew_provider.models import Json, canonical_json
from airflow_crew_provider.stored_names import EDIT_FIELD

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


JOINER = "\N{WORD JOINER}"
# The beginnings of an image, of HTML and of a footnote, which may hold anything.
_BEGINNINGS = re.compile(r"!(?=\[)|<(?=[A-Za-z/!?])|\[(?=\^)")


def parted(text: str) -> str:
    """Return text that looks the same and begins no image, no HTML and no footnote in Markdown."""
    return _BEGINNINGS.sub(lambda found: found[0] + JOINER, text)


def code(value: Any) -> str:
    """Format untrusted text as Markdown code on one line."""
    return "`" + parted(" ".join(str(value).split())[:100].replace("`", "'")) + "`"


# Code spans first: in them a visible escape would be seen.
_SPANS = re.compile(r"(?<![`\\])(`+)(?!`).+?(?<!`)\1(?!`)|<|!\[|\[\^", re.DOTALL)
_ESCAPES = {"<": "&lt;", "![": f"!{JOINER}[", "[^": r"\[^"}
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")
_LIKE_A_FENCE = re.compile(r"`{3}|~{3}")


def inert(text: str) -> str:
    """Return Markdown that reads as before, in which HTML is visible text and an image a link to it."""
    lines = re.split(r"\r\n|\r|\n", text)
    return "\n".join(_inert_lines(lines))


def fenced(text: str, language: str = "") -> str:
    """Return a code block that nothing in the text can end."""
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
    """Yield the lines of code blocks that begin at the margin after an empty line, up to the first doubtful fence.

    Nothing before such a block can take it in: a list, a quotation and a footnote end there, and HTML is parted.
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
    found = re.fullmatch(r" {0,3}(`+|~+)[ \t]*", line)
    return bool(found) and found[1].startswith(fence)  # type: ignore[index]


def _escaped(paragraph: list[str]) -> list[str]:
    text = _SPANS.sub(lambda found: _ESCAPES.get(found[0]) or parted(found[0]), "\n".join(paragraph))
    return text.split("\n")[: len(paragraph)]


def _code_lines(text: str) -> set[int]:
    """Return the lines that one parser takes for code."""
    blocks = [each.map for each in _parser().parse(text) if each.type in ("fence", "code_block") and each.map]
    return {line for start, end in blocks for line in range(start, end)}


@cache
def _parser() -> MarkdownIt:
    # Here and not above: parsing a DAG file must not load it.
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


# More than anybody reads in a form, and what a browser still draws at once.
SHOWN_CHARACTERS = 60_000


def text_of(output: Any) -> str:
    """Return a draft as it is shown."""
    text = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
    # No database takes these; the hash is of the draft as it came.
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


# --- what has changed ---


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


# --- edits ---


def draft_in(params: Json | None) -> Any:
    """Return the draft that a form's field begins with, None without one; Airflow has stored fields in two shapes."""
    field = (params or {}).get(EDIT_FIELD)
    return field.get("value") if isinstance(field, dict) else field


def with_text_of_edit(answer: Json, draft: str | None) -> Json:
    """Return an answer in which the edited draft is a text; as it is for a form without a draft.

    Airflow's page gives None for a field that was emptied, and an object for the text of one; a program may leave the
    field out.
    """
    given = answer.get("params_input")
    if draft is None or not given:
        return answer
    left = given.get(EDIT_FIELD, draft)
    if left is None:
        left = ""
    elif isinstance(left, dict):
        left = json.dumps(left, indent=2, ensure_ascii=False)
    elif isinstance(left, str):
        left = _plain(left)
    return {**answer, "params_input": {**given, EDIT_FIELD: left}}


def is_edit(draft: str, left: str) -> bool:
    """Whether a text differs from the draft that a form began with by more than white space around it or in JSON."""
    if left.strip() == _plain(draft).strip():
        return False
    found = json_object_in(left)
    # In one form, as Python holds true and 1 for equal.
    return found is None or canonical_json(found) != canonical_json(json_object_in(draft))


def _plain(text: str) -> str:
    """A browser writes the ends of lines in its own way."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def edit_problem(draft: str, edited: str) -> str | None:
    """Return why a text cannot take the place of a draft, as the end of a sentence; None if it can."""
    if not edited.strip():
        return "the edited draft is empty"
    if json_object_in(draft) is not None and json_object_in(edited) is None:
        return "the draft is a JSON object and the edited one is not"
    return None


AS_FEEDBACK = "Use this text, which the reviewer has edited, as it stands:"


def editable_text(shown: Json) -> str | None:
    """Return the text that the form gives to edit; None for the answer of a Flow, and where only a part is shown.

    JSON is in a code fence: Airflow's page shows the text of an object as "[object Object]".
    """
    if is_of_flow(shown) or shown["characters"] > SHOWN_CHARACTERS:
        return None
    text = text_of(shown["output"])
    return f"```json\n{text}\n```" if text.strip().startswith("{") and json_object_in(text) is not None else text


def read_edit(shown: Json, event: Json) -> Json:
    """Return an event in which the draft is a text, as the person left it."""
    return with_text_of_edit(event, editable_text(shown))


def edited_text(shown: Json, event: Json) -> str | None:
    """Return what the person has made of the draft; None if it is unchanged, or could not be changed."""
    draft = editable_text(shown)
    left = (event.get("params_input") or {}).get(EDIT_FIELD)
    if draft is None or not isinstance(left, str) or not is_edit(draft, left):
        return None
    return left if draft == text_of(shown["output"]) else without_fence(left)


def with_edit(review: Json, shown: Json, edited: str) -> Json:
    """Return a review with the edited text: as the task's output, or as feedback."""
    if review["is_approve"] and shown.get("takes_edited_output"):
        return {**review, "edited_output": edited}
    feedback = "\n\n".join(part for part in (review["human_feedback"].strip(), AS_FEEDBACK, edited) if part)
    return {**review, "is_approve": False, "human_feedback": feedback}


def what_an_edit_does(shown: Json, words: list[str], *, is_last: bool) -> str:
    """Return what the form says about editing, as an item of its list."""
    approve, revise = words
    if editable_text(shown) is None:
        return "* This draft cannot be edited here." if not is_of_flow(shown) else ""
    if shown.get("takes_edited_output"):
        then = (
            f"with **{approve}** your text becomes the output of the task; with **{revise}** it goes along as feedback."
        )
    elif is_last:
        then = "this service takes it as feedback for a revision only, and **in the last round none is sent**."
    else:
        then = f"this service takes it as feedback only: with **{approve}** too, the task runs again with your text."
    return f"* If you edit the text under *Draft*: {then}"


def said_of(review: Json, given: Any) -> str:
    """Return what the log says about an edited draft."""
    where = "is to become the output of the task" if "edited_output" in review else "is sent as feedback of a revision"
    return f"The draft was edited, {len(given)} characters now; the text {where}"
