"""The reviewer's page. Text from crews and people is never run, loaded or rendered as a template. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.answers import APPROVAL, outcome_meant
from airflow_crew_provider.api.values import is_uuid, visible
from airflow_crew_provider.flows.questions import is_of_flow, outcomes_of
from airflow_crew_provider.models import Json, output_sha256
from airflow_crew_provider.review import drafts
from airflow_crew_provider.review.answer import IN_THE_MIDDLE, QUESTION, VIOLATIONS, author_of, decided_by

SHOWN_FEEDBACK = 2_000
LAST_ROUND = "* **This is the last round**: if the {} asks again, this run fails and the execution stays paused."
MARK = 16


@dataclass(frozen=True, kw_only=True)
class ReviewForm:
    """One round of review: the draft, and facts about it for the reviewer.

    ``pending`` is the record of the execution, or the part of it from `shown_draft`; ``refused`` is the notice
    about the last answer: that it was not accepted, or that more people must approve.
    """

    pending: Json
    approve: str = "approve"
    revise: str = "revise"
    round_number: int | None = None
    max_rounds: int | None = None
    previous: Json | None = None
    until: datetime | None = None
    on_timeout: str | Json = "fail"
    whole: str = "the record passed to this task"
    refused: str = ""
    allow_edit: bool = False
    later: Sequence[str] = ()
    approvals: int = 1

    @property
    def is_last(self) -> bool:
        """Whether this is the last round."""
        return self.round_number is not None and self.round_number == self.max_rounds

    @property
    def needs_another_round(self) -> bool:
        """Whether a revision would need another round when none is left; an answer to a Flow or an agent needs none."""
        return self.is_last and not is_of_flow(self.pending) and self.ask is None

    @property
    def ask(self) -> Json | None:
        """An agent's question in the middle of a task; None for a draft or a Flow."""
        return asks.ask_in(self.pending)

    @property
    def mark(self) -> str:
        """The part of the draft's hash that the form shows."""
        return (self.pending.get("output_sha256") or output_sha256(self.pending.get("output")))[:MARK]

    @property
    def subject(self) -> str:
        """The headline."""
        task, agent = self._author()
        if self.ask:
            return _one_line(_headline(self.ask) + (f" ({self._round()})" if self._round() else ""))
        what = " by ".join(each for each in (task or "the crew's text", agent) if each)
        return _one_line(f"Review {what}" + (f" ({self._round()})" if self._round() else ""))

    @property
    def body(self) -> str:
        """The whole page as Markdown: the draft, then facts about it.

        The draft is a quotation or a code block, so that nothing in it can hide or imitate the rest of the page.
        """
        draft = [self.notice, self._draft(), "---", self._cut(), self._mismatch()]
        parts = [
            *draft,
            self._opening(),
            self._asked(),
            self._earlier_calls(),
            self._before(),
            self._changes(),
            self._what_happens(),
        ]
        return "\n\n".join(part for part in parts if part)

    @property
    def notice(self) -> str:
        """The notice about the last answer; empty if there is none."""
        return f"**{self.refused}**" if self.refused else ""

    def _round(self) -> str:
        if self.round_number is None:
            return ""
        return f"round {self.round_number}" + (f" of {self.max_rounds}" if self.max_rounds else "")

    def _author(self) -> tuple[str | None, str | None]:
        """Name the crew's task and its agent, if the service reports them; a bare UUID means nothing to a person."""
        waiting = self.pending.get("crew_task_id")
        task = self.pending.get("crew_task_name") or (None if is_uuid(waiting) else waiting)
        return task, author_of(self.pending)

    def _opening(self) -> str:
        task, agent = self._author()
        place = f"**{self._round().capitalize()}.** " if self._round() else ""
        if self.ask:
            named = {name: self.ask[name] and _code(self.ask[name]) for name in ("agent", "tool")}
            task = asks.task_of(self.pending["crew_task_id"])
            return f"{place}{IN_THE_MIDDLE} {_code(task)}, {asks.in_words({**self.ask, **named})}."
        if is_of_flow(self.pending):
            who = f"The method {_code(task)} of the Flow" if task else "A method of the Flow"
            name = f" {_code(agent)}" if agent else ""
            return f"{place}{who}{name} returned this draft and is waiting for your answer."
        who = f"Task {_code(task)}" if task else "One of the crew's tasks"
        by = f", run by agent {_code(agent)}," if agent else ""
        return f"{place}{who}{by} produced this draft and is waiting for your answer."

    def _asked(self) -> str:
        question = self.pending.get("question")
        is_shown = self.ask is not None and str(question) in drafts.text_of(self.pending.get("output"))
        return f"{QUESTION}\n\n{_quoted(str(question))}" if question and not is_shown else ""

    def _earlier_calls(self) -> str:
        note = asks.about_earlier_calls(self.ask) if self.ask else None
        return f"{note}." if note else ""

    def _mismatch(self) -> str:
        violations = self.pending.get(VIOLATIONS)
        if not violations:
            return ""
        said = "**The draft does not match the output schema.** If you approve it as is, the run fails. Violations:"
        return f"{said}\n\n{_quoted(violations)}"

    def _before(self) -> str:
        previous = self.previous
        if not previous:
            return ""
        before = self._name_of_round_before()
        who = (previous.get("reviewer") or {}).get("name") or decided_by(previous)
        when = f"in {before}**{f', by {_code(who)}' if who else ', at the deadline'}"
        if self.ask and previous.get("edited_output") and previous.get("crew_task_id") == self.pending["crew_task_id"]:
            said = f"**Approved {when}, but the service did not accept the changed arguments, and the tool has not run:"
            return f"{said}\n\n{drafts.fenced(visible(previous['edited_output'][:SHOWN_FEEDBACK]))}"
        if "outcome" in previous:
            return _answer_before(previous, when)
        if previous.get("edited_output") and previous.get("crew_task_id") == self.pending.get("crew_task_id"):
            said = (
                f"**Edited {when}, but not applied, because the draft had changed in the meantime. The edited text was:"
            )
            return f"{said}\n\n{_quoted(previous['edited_output'])}"
        if previous.get("is_approve"):
            return f"In {before} the draft of {_code(previous.get('crew_task_id'))} was approved."
        return f"**Requested {when}:\n\n{_quoted(previous.get('human_feedback') or '')}"

    def _name_of_round_before(self) -> str:
        return f"round {self.round_number - 1}" if self.round_number else "the previous round"

    def _changes(self) -> str:
        """Return the draft's changes since the previous round, if both are about the same task."""
        previous = self.previous
        if not previous or previous.get("output") is None or previous.get("ask") or self.ask:
            return ""
        is_same_task = previous.get("crew_task_id") == self.pending.get("crew_task_id")
        # A crew's revised draft may have a new id; a Flow may continue with any other method.
        if not is_same_task and (previous.get("is_approve") is not False or is_of_flow(self.pending)):
            return ""
        before, now = self._name_of_round_before(), self._round() or "now"
        changed = drafts.difference(previous["output"], self.pending.get("output"), (before, now))
        return f"**Changes since {before}:**\n\n{changed}"

    def _what_happens(self) -> str:
        lines = self._choices()
        if self.allow_edit and not self.ask:
            lines.append(drafts.what_an_edit_does(self.pending, [self.approve, self.revise], is_last=self.is_last))
        if self.until:
            lines.append(f"* No answer by {self.until:%Y-%m-%d %H:%M} UTC: {self._at_deadline()}")
        if self.approvals > 1:
            word = asks.RUN_AGAIN if asks.is_unknown_outcome(self.ask) else self.approve
            other = "any other answer" if self.ask else "a revision request"
            said = "must approve" if word == self.approve else f"must choose **{word}**"
            lines.append(f"* **{self.approvals} different people** {said}; {other} from any of them is enough.")
        lines += [f"* {each}" for each in self.later]
        what = "question" if self.ask else "draft"
        lines.append(f"\nExecution {_code(self.pending.get('execution_id'))}, {what} {_code(self.mark)}.")
        return "\n".join(line for line in lines if line)

    def _choices_of_ask(self, ask: Json) -> list[str]:
        shown = {"characters": self._size, **self.pending}
        edits = self.allow_edit and drafts.editable_text(shown) is not None
        is_hidden = asks.HIDDEN in str(asks.arguments_text(ask))
        kept = f"; leave `{asks.HIDDEN}` where it is to keep a hidden value" if is_hidden else ""
        instead = f", or with those under *Arguments*, a JSON object{kept}" if edits else ""
        meaning = {
            asks.APPROVE: f"the tool runs with these arguments{instead}.",
            asks.DENY: "the tool does not run. The agent reads your *Feedback* as the reason, and continues.",
            asks.ANSWER: "the agent reads your *Feedback*. An empty answer is not accepted, and you are asked again.",
            asks.DONE: "the tool has run; your *Feedback* is used as its result.",
            asks.RUN_AGAIN: "the tool runs once more with these arguments.",
            asks.FAIL: "the execution fails.",
        }
        lines = [f"* **{word}**: {meaning[word]}" for word in asks.words_of(ask, is_whole=drafts.is_whole(shown))]
        return [*lines, LAST_ROUND.format("crew")] if self.is_last else lines

    def _choices(self) -> list[str]:
        if self.ask:
            return self._choices_of_ask(self.ask)
        if is_of_flow(self.pending):
            return self._choices_of_flow()
        lines = [f"* **{self.approve}**: the crew continues with this draft."]
        if self.is_last:
            lines.append(
                f"* **{self.revise}**: **this is the last round**, so a revision is not sent; this task fails and the "
                "execution stays paused."
            )
        else:
            lines.append(
                f"* **{self.revise}**: the task runs again. Use *Feedback* to say what to change; a revision "
                "without feedback is not accepted, and you are asked again."
            )
        return lines

    def _choices_of_flow(self) -> list[str]:
        outcomes = [_code(outcome) for outcome in outcomes_of(self.pending)]
        if outcomes:
            words = " or ".join([", ".join(outcomes[:-1]), outcomes[-1]] if outcomes[1:] else outcomes)
            lines = [f"* {words}: the Flow continues with your choice. Your *Feedback* is sent with it."]
        else:
            said = "the Flow continues with your *Feedback*"
            lines = [
                f"* **{self.approve}**: {said}, or with {_code(APPROVAL)} if you enter none.",
                f"* **{self.revise}**: {said}, and decides what to do next. Feedback is required.",
            ]
        if self.is_last:
            lines.append(LAST_ROUND.format("Flow"))
        return lines

    def _at_deadline(self) -> str:
        if self.on_timeout == asks.DENY:
            return "**the call is denied.**"
        outcome = outcome_meant(self.on_timeout == "approve", outcomes_of(self.pending))
        if self.on_timeout == "approve":
            subject = "the call" if self.ask else "the draft"
            what = f"{_code(outcome)} is chosen" if outcome else f"{subject} is approved"
            return f"**{what}**, unless somebody has rejected {subject}."
        if isinstance(self.on_timeout, dict) and not self.needs_another_round:
            what = f"{_code(outcome)} is chosen" if outcome else "a revision is requested"
            return f"{what}, with this text:\n\n{_quoted(self.on_timeout['revise'])}"
        return "this task fails and the execution stays paused."

    def _cut(self) -> str:
        size = self._size
        if size <= drafts.SHOWN_CHARACTERS:
            return ""
        return (
            f"**Only the first {drafts.SHOWN_CHARACTERS:,} of {size:,} characters are shown.** The whole draft is "
            f"under `output` in {self.whole}. Your answer applies to the whole draft."
        )

    @property
    def _size(self) -> int:
        return self.pending.get("characters") or len(drafts.text_of(self.pending.get("output")))

    def _draft(self) -> str:
        output = self.pending.get("output")
        text = drafts.text_of(output)[: drafts.SHOWN_CHARACTERS]
        if self.ask:
            return drafts.fenced(visible(text))
        if not isinstance(output, str) or self.pending.get("language"):
            return drafts.fenced(text, "json")
        return _in_quotation(text) if text.strip() else "*The draft is empty.*"


def _headline(ask: Json) -> str:
    agent, tool = ask["agent"] or "an agent", ask["tool"] or "a tool"
    return {
        asks.TOOL: f"Approve {tool} for {agent}",
        asks.QUESTION: f"Answer {agent}",
        asks.UNKNOWN_OUTCOME: f"Did {tool} succeed?",
    }.get(ask["kind"], "A question")


def _answer_before(previous: Json, when: str) -> str:
    """Describe an answer to a Flow or an agent: the outcome, the text, or both."""
    outcome, said, ask = previous["outcome"], previous.get("human_feedback") or "", asks.ask_in(previous)
    text = f"\n\n{_quoted(said)}" if said.strip() else ""
    if outcome is not None and not (ask and asks.needs_text(ask)):
        tool = f" for {_code(ask['tool'])}" if ask and ask["tool"] else ""
        return f"**Chosen {when}: {_code(outcome)}{tool}{text}"
    return f"**Answered {when}:{text}" if text else f"**Approved {when}"


def _quoted(text: str) -> str:
    cut = text if len(text) <= SHOWN_FEEDBACK else text[:SHOWN_FEEDBACK] + " …"
    return _in_quotation(cut)


def _in_quotation(text: str) -> str:
    """Return untrusted text as a quotation; nothing that the text opens extends beyond it."""
    return "\n".join(f"> {line}" for line in drafts.inert(text).split("\n"))


def _code(value: Any) -> str:
    return drafts.code(value, 200)


def _one_line(text: str) -> str:
    return drafts.parted(" ".join(text.split())[:200])
