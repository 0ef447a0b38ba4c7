"""What a reviewer reads. All that the crew or a person wrote is text: it is never rendered, run or loaded. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from airflow_crew_provider.models import Json, output_sha256

# More than anybody reads in a form, and what a browser still draws at once.
SHOWN_CHARACTERS = 60_000
SHOWN_FEEDBACK = 2_000
MARK = 16
_ACTING = frozenset(("html_block", "html_inline", "image"))
# Code spans first, so that what stands in them is left alone; a footnote could hide an image from this parser.
_SPANS = re.compile(r"(?<![`\\])(`+)(?!`).+?(?<!`)\1(?!`)|<|!\[|\[\^", re.DOTALL)
_ESCAPES = {"<": "&lt;", "![": r"\![", "[^": r"\[^"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """One round of review: the draft, and what the person should know about it."""

    pending: Json
    approve: str = "approve"
    revise: str = "revise"
    round_number: int | None = None
    max_rounds: int | None = None
    previous: Json | None = None
    until: datetime | None = None
    on_timeout: str | Json = "fail"
    whole: str = "the record that was given to this task"

    @property
    def is_last(self) -> bool:
        """Whether no round is left for a revision."""
        return self.round_number is not None and self.round_number == self.max_rounds

    @property
    def mark(self) -> str:
        """The part of the draft's hash that is shown with it."""
        return output_sha256(self.pending.get("output"))[:MARK]

    @property
    def subject(self) -> str:
        """The headline."""
        task, agent = self._author()
        what = " by ".join(each for each in (task or "what the crew wrote", agent) if each)
        return _one_line(f"Review {what}" + (f" ({self._round()})" if self._round() else ""))

    @property
    def body(self) -> str:
        """All that is shown, as Markdown; the draft comes last, where nothing in it can hide what is said before."""
        parts = [self._opening(), self._before(), self._what_happens(), self._cut(), "---", self._draft()]
        return "\n\n".join(part for part in parts if part)

    def _round(self) -> str:
        if self.round_number is None:
            return ""
        return f"round {self.round_number}" + (f" of {self.max_rounds}" if self.max_rounds else "")

    def _author(self) -> tuple[str | None, str | None]:
        """Name the crew's task and its agent, where the service told; a bare UUID says nothing to a person."""
        pending, waiting = self.pending, self.pending.get("crew_task_id")
        named: Json = next((each for each in pending.get("tasks") or [] if each.get("task_id") == waiting), {})
        task = pending.get("crew_task_name") or (None if _is_uuid(waiting) else waiting)
        return task, pending.get("agent") or named.get("agent")

    def _opening(self) -> str:
        task, agent = self._author()
        who = f"The task {_code(task)}" if task else "A task of the crew"
        by = f" of the agent {_code(agent)}" if agent else ""
        place = f"**{self._round().capitalize()}.** " if self._round() else ""
        return f"{place}{who}{by} has written the draft below and waits for your answer."

    def _before(self) -> str:
        previous = self.previous
        if not previous:
            return ""
        before = f"round {self.round_number - 1}" if self.round_number else "the round before"
        if previous.get("is_approve"):
            return f"In {before} the draft of {_code(previous.get('crew_task_id'))} was approved."
        who = (previous.get("reviewer") or {}).get("name")
        by = f", by {_code(who)}" if who else ", at the deadline"
        return f"**Asked for in {before}**{by}:\n\n{_quoted(previous.get('human_feedback') or '')}"

    def _what_happens(self) -> str:
        lines = [f"* **{self.approve}**: the crew goes on with this draft."]
        if self.is_last:
            lines.append(
                f"* **{self.revise}**: **this is the last round**, so a revision is not sent; this task fails and the "
                "execution stays paused."
            )
        else:
            lines.append(
                f"* **{self.revise}**: the task runs again. Say under *Feedback* what to change; a revision that says "
                "nothing is not taken, and you are asked again."
            )
        if self.until:
            lines.append(f"* No answer by {self.until:%Y-%m-%d %H:%M} UTC: {self._at_deadline()}")
        lines.append(f"\nExecution {_code(self.pending.get('execution_id'))}, draft {_code(self.mark)}.")
        return "\n".join(lines)

    def _at_deadline(self) -> str:
        if self.on_timeout == "approve":
            return "**the draft is approved.**"
        if isinstance(self.on_timeout, dict):
            return f"a revision is asked for, with this text:\n\n{_quoted(self.on_timeout['revise'])}"
        return "this task fails and the execution stays paused."

    def _text(self) -> str:
        output = self.pending.get("output")
        text = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
        # No database takes these; the hash is of the draft as it came.
        return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()

    def _cut(self) -> str:
        size = len(self._text())
        if size <= SHOWN_CHARACTERS:
            return ""
        return (
            f"**Only the first {SHOWN_CHARACTERS:,} of {size:,} characters are shown.** The whole draft stands in "
            f"{self.whole}, field `output`. Your answer is for the whole of it."
        )

    def _draft(self) -> str:
        text = self._text()[:SHOWN_CHARACTERS]
        if not isinstance(self.pending.get("output"), str):
            return fenced(text, "json")
        return inert(text) if text.strip() else "*The draft is empty.*"


def inert(text: str) -> str:
    """Return Markdown that reads as before, in which HTML is visible text and an image a link to it."""
    calm = "\n".join(_calmed(text))
    return fenced(text) if _acts(calm) else calm


def fenced(text: str, language: str = "") -> str:
    """Return a code block that nothing in the text can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _calmed(text: str) -> Iterator[str]:
    lines = re.split(r"\r\n|\r|\n", text)
    code = _code_lines("\n".join(lines))
    prose: list[str] = []
    for number, line in enumerate(lines):
        if number in code or not line.strip():
            yield from _escaped(prose)
            prose = []
            yield line
        else:
            prose.append(line)
    yield from _escaped(prose)


def _escaped(paragraph: list[str]) -> list[str]:
    return _SPANS.sub(lambda found: _ESCAPES.get(found[0], found[0]), "\n".join(paragraph)).split("\n")[
        : len(paragraph)
    ]


def _code_lines(text: str) -> set[int]:
    blocks = [token.map for token in _tokens(text) if token.type in ("fence", "code_block") and token.map]
    return {line for start, end in blocks for line in range(start, end)}


def _acts(text: str) -> bool:
    """Whether a parser still finds something that a browser would load or run."""
    return any(each.type in _ACTING for token in _tokens(text) for each in (token, *(token.children or ())))


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def _quoted(text: str) -> str:
    cut = text if len(text) <= SHOWN_FEEDBACK else text[:SHOWN_FEEDBACK] + " …"
    return "\n".join(f"> {line}" for line in inert(cut).split("\n"))


def _code(value: Any) -> str:
    return "`" + _one_line(str(value)).replace("`", "'") + "`"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _is_uuid(value: Any) -> bool:
    return bool(re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", str(value)))
