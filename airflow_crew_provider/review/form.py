"""The reviewer's page. Text from crews and people is never run, loaded or rendered as a template. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from airflow_crew_provider.models import Json, output_sha256
from airflow_crew_provider.questions import Question, Terms, answered_in, question_in
from airflow_crew_provider.questions.drafts import (
    SHOWN_CHARACTERS,
    code,
    difference,
    escaped,
    parted,
    quoted,
    readable_size,
)
from airflow_crew_provider.questions.kinds import VIOLATIONS
from airflow_crew_provider.review.answer import decided_by
from airflow_crew_provider.stored_names import REFUSAL

MARK = 16  # characters of a hash
_ADDRESS = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&*+,;=%\[\]-]+")  # ends no link of Markdown


@dataclass(frozen=True, kw_only=True)
class ReviewForm:
    """One round of review: the layout of a question's sentences, and facts about the round.

    ``pending`` is the record of the execution, or the part of it from `shown_draft`.
    """

    pending: Json
    terms: Terms = field(default_factory=Terms)
    previous: Json | None = None
    until: datetime | None = None
    whole: str = "the record passed to this task"
    later: Sequence[str] = ()

    @cached_property
    def question(self) -> Question:
        """The question, as one of its kind."""
        return question_in(self.pending)

    @property
    def signs(self) -> list[str]:
        """What the form shows of the execution's id and of the draft's hash."""
        digest = self.pending.get("output_sha256") or output_sha256(self.pending.get("output"))
        return [code(self.pending.get("execution_id"), 200), code(digest[:MARK])]

    @property
    def subject(self) -> str:
        """The headline."""
        headline = self.question.headline + (f" ({self._round})" if self._round else "")
        return parted(" ".join(headline.split())[:200])

    @property
    def body(self) -> str:
        """The whole page as Markdown: the draft, then facts about it."""
        place = f"**{self._round.capitalize()}.** " if self._round else ""
        parts = [
            self.question.content,
            "---",
            self._cut(),
            self._mismatch(),
            place + self.question.opening,
            *self.question.notes(),
            self._files(),
            self._before(),
            self._changes(),
            self._what_happens(),
        ]
        return "\n\n".join(part for part in parts if part)

    @property
    def _round(self) -> str:
        number, most = self.terms.round_number, self.terms.max_rounds
        return "" if number is None else f"round {number}" + (f" of {most}" if most else "")

    @property
    def _round_before(self) -> str:
        number = self.terms.round_number
        return f"round {number - 1}" if number else "the previous round"

    def _cut(self) -> str:
        if self.question.size <= SHOWN_CHARACTERS:
            return ""
        return (
            f"**Only the first {SHOWN_CHARACTERS:,} of {self.question.size:,} characters are shown.** The whole draft "
            f"is under `output` in {self.whole}. Your answer applies to the whole draft."
        )

    def _mismatch(self) -> str:
        violations = self.pending.get(VIOLATIONS)
        if not violations:
            return ""
        message = "**The draft does not match the output schema.** If you approve it as is, the run fails. Violations:"
        return f"{message}\n\n{quoted(violations)}"

    def _files(self) -> str:
        lines = [_file(each) for each in self.pending.get("files") or ()]
        return f"**Files:** {', '.join(lines)}" if lines else ""

    def _before(self) -> str:
        previous = self.previous
        if not previous:
            return ""
        who = (previous.get("reviewer") or {}).get("name") or decided_by(previous)
        when = self._round_before, f", by {code(who, 200)}" if who else ", at the deadline"
        refusal = previous.get(REFUSAL) or ""
        if previous.get("edited_output") and self.question.has_task_of(previous):
            return self.question.lost_edit(previous["edited_output"], *when, refusal)
        answer = answered_in(previous).answer_told(previous, *when)
        return f"{answer}\n\nThis answer changed nothing:\n\n{quoted(refusal)}" if refusal else answer

    def _changes(self) -> str:
        """Return the draft's changes since the previous round, if both may be versions of one draft."""
        previous = self.previous
        if (
            not previous
            or previous.get("output") is None
            or previous.get("ask")
            or not self.question.may_revise(previous)
        ):
            return ""
        names = self._round_before, self._round or "now"
        changed = difference(previous["output"], self.pending.get("output"), names)
        return f"**Changes since {names[0]}:**\n\n{changed}"

    def _what_happens(self) -> str:
        lines = self.question.effects(self.terms)
        if self.question.edits(self.terms):
            lines.append(self.question.effect_of_edit(self.terms))
        if self.until and self.until != self.question.expires:
            effect = self.question.effect_of_deadline(self.terms)
            lines.append(f"* No answer by {self.until:%Y-%m-%d %H:%M} UTC: {effect}")
        lines += [self.question.several_needed(self.terms), *(f"* {each}" for each in self.later)]
        execution_id, mark = self.signs
        lines.append(f"\nExecution {execution_id}, {self.question.subject} {mark}.")
        return "\n".join(line for line in lines if line)


def _file(file: Json) -> str:
    """Return a file's name and size; the name leads to the service if it has given an address."""
    name, url = file["name"], file.get("url") or ""
    # Airflow shows no difference between code that is a link and other code.
    linked = f"[{escaped(name, 200)}]({url})" if _ADDRESS.fullmatch(url) else code(name, 200)
    return f"{linked} ({readable_size(file['size'])})"
