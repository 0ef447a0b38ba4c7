"""What an execution asks people: one class for each kind of question, read from stored JSON by `question_in` alone.

A question is about a crew's draft, a Flow's question, or a call in the middle of a task: one that needs approval, one
with an unknown outcome, or an agent's own question. Its class knows which answers it accepts, what they mean, and what
the next segment continues from. Its life:

    opened by a segment (`opened`) -> answered once (`settled`, `kept`) -> `after`, the next segment's question

A draft and a Flow's question stay in the row with their answer until their task is done or waits again. A question
about a call stores its answer with the call in the journal; the question before it then applies again. The stored form
is that of release 0.1 with additional fields, so that two releases can share a database: readers accept missing fields,
and keep fields that they do not know.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypedDict
from uuid import uuid4

from crew_service.engine import asks, masked_arguments, tool_rules
from crew_service.engine.approval import outcome_meant
from crew_service.engine.crew import AskKind, PendingQuestion, PendingReview, ReviewDecision, Round
from crew_service.engine.decisions import NO_FEEDBACK, AnotherDraft, BadAnswer, Decision
from crew_service.engine.drafts import EditedOutput, edit_problem, hashes_of, json_object_in
from crew_service.engine.printed import Printed
from crew_service.storage.json_values import tidy
from crew_service.times import iso

# Characters that would reverse adjacent text, or send control codes to a terminal.
UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
LONGEST_ABOUT = 300  # characters of a tool's description
NOT_STORED = ""  # by an early release, in place of a hash that may be None
DECIDED = ("is_approve", "outcome")  # stored only once the question is answered

Stored = dict[str, Any]


class _Ask(TypedDict):
    kind: AskKind
    agent: str | None  # None if a Flow's method asks
    tool: str | None
    arguments: Any  # masked
    number: int
    earlier_calls: int  # shown beside the text, which is all that an answer's hash covers


class Ask(_Ask, total=False):
    """A call as people see it; part of statuses and rounds."""

    deadline: str | None  # only if a Flow's method asks: when the service answers itself
    metadata: Any  # likewise, what the method says about the question


@dataclass(frozen=True, kw_only=True)
class Question:
    """The fields of every kind, and the moves in which most kinds agree."""

    task_id: str
    key: str  # by which an answer names the question
    output: str  # what people decide on; an answer may identify it by a hash
    agent: str
    state: dict[str, Any]  # the crew's data
    rounds: list[Stored] = field(default_factory=list)  # answers to earlier drafts: output, feedback, perhaps draft
    question: str | None = None
    outcomes: list[str] | None = None  # the choices; empty for text, None for a draft
    question_id: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    output_sha256: str | None = None  # stored, because hashing a large draft takes seconds
    object_sha256: str | None = NOT_STORED
    is_approve: bool | None = None
    outcome: str | None = None
    others: Stored = field(default_factory=dict)  # fields of a later release

    is_ask: ClassVar[bool] = False  # in the middle of a task

    def stored(self) -> Stored:
        left_out = set(DECIDED) if self.is_approve is None else set()
        left_out |= {"object_sha256"} if self.object_sha256 == NOT_STORED else set()
        return {**self.others, **{name: getattr(self, name) for name in _names(type(self)) - left_out}}

    # --- what people see ---

    @property
    def round(self) -> int:
        """The number of this version of the task's answer."""
        return len(self.rounds) + 1

    @property
    def asked(self) -> Stored:
        """The fields of a question other than its text; a crew's draft has none."""
        return {"question": self.question, "outcomes": self.outcomes}

    @property
    def round_values(self) -> Stored:
        """The fields that the question's round keeps."""
        names = ("task_id", "question", "outcomes", "output", "output_sha256")
        return {**{name: getattr(self, name) for name in names}, "ask": self.asked.get("ask")}

    def announcement(self, execution_id: str) -> Stored:
        """Return the body of the webhook that asks for an answer."""
        return {"execution_id": execution_id, "task_id": self.key, "task_output": self.output, **self.asked}

    # --- the answer ---

    @property
    def hashes(self) -> dict[str, str | None]:
        """The hashes by which an answer may identify the text."""
        known = {"output_sha256": self.output_sha256, "object_sha256": self.object_sha256}
        return hashes_of(self.output) if self.object_sha256 == NOT_STORED else known

    def settled(self, decision: Decision) -> Decision:
        """Return the decision with its outcome and, if the person changed the text, with the new one.

        :raises BadAnswer: if the question does not accept it
        """
        if decision.draft_sha256 is not None and decision.draft_sha256 not in self.hashes.values():
            raise AnotherDraft("output_sha256 is for a different draft; nothing was changed.")
        return self._settled(decision)

    def _settled(self, decision: Decision) -> Decision:
        raise NotImplementedError

    def kept(self, decision: Decision, settled: Decision) -> Stored:
        """Return the part of a decision that its round keeps."""
        return {
            "is_approve": settled.is_approve,
            "outcome": settled.outcome,
            "human_feedback": decision.feedback,
            "edited": settled.edit is not None,
            "output_sha256": self.hashes["output_sha256"],
        }

    @property
    def keeps_kickoff_id(self) -> bool:
        """Whether the execution is polled with the same id after the answer."""
        return self.key == self.task_id

    def after(self, settled: Decision) -> Stored | None:
        """Return the question, in its stored form, from which the next segment continues."""
        latest = {"output": self.output, "feedback": settled.feedback}
        if settled.edit:
            latest |= {"output": settled.edit.text, "draft": self.output}
        rounds = [*self.rounds, latest]
        return replace(self, rounds=rounds, is_approve=settled.is_approve, outcome=settled.outcome).stored()

    def for_crew(self) -> ReviewDecision:
        """Return the answer for the next segment."""
        rounds = tuple(Round(each["output"], each["feedback"]) for each in self.rounds)
        return ReviewDecision(self.task_id, bool(self.is_approve), rounds, self.state, self.outcome)


class CrewDraft(Question):
    """A crew's draft: it is approved, perhaps with an edited text, or sent back with feedback."""

    @property
    def asked(self) -> Stored:
        return {}

    def _settled(self, decision: Decision) -> Decision:
        if decision.is_approve is None:
            raise BadAnswer("is_approve: Field required")
        if decision.lacks_feedback:
            raise BadAnswer(NO_FEEDBACK)
        if decision.edit:
            self._check(decision.edit, is_approve=decision.is_approve)
        return replace(decision, outcome=None)

    def _check(self, edit: EditedOutput, *, is_approve: bool) -> None:
        if not is_approve:
            raise BadAnswer("edited_output needs an approval; a revision runs the task again.")
        if edit.output_sha256 not in self.hashes.values():
            raise AnotherDraft("edited_output is for a different draft; nothing was changed.")
        if problem := edit_problem(self.output, edit.text):
            raise BadAnswer(f"edited_output is not accepted because {problem}.")
        # A draft with text around its object counts as text, but its task still has an output model.
        if "output_json" in self.state.get("task", {}) and json_object_in(edit.text) is None:
            raise BadAnswer("edited_output must be a JSON object: the task has an output model. Nothing was changed.")


class FlowQuestion(Question):
    """A Flow's question: a person chooses one of its outcomes; if it has none, any text is an answer."""

    def _settled(self, decision: Decision) -> Decision:
        if self.outcomes:
            return replace(decision, is_approve=True, outcome=self._chosen(decision, self.outcomes), edit=None)
        if decision.outcome is not None:
            raise BadAnswer("This question offers no outcomes; answer it with human_feedback.")
        if not decision.feedback.strip():
            raise BadAnswer("The answer is empty; this question asks for text.")
        return replace(decision, is_approve=True, edit=None)

    def _chosen(self, decision: Decision, outcomes: list[str]) -> str | None:
        """Return the given outcome, or the only possible one; None if the Flow's model must interpret the text."""
        if decision.outcome is not None:
            return _offered(decision.outcome, outcomes)
        if decision.is_approve is not None:
            meant = outcome_meant(decision.is_approve, outcomes)
            return _the_one_meant([] if meant is None else [meant], outcomes)
        text = decision.feedback.strip()
        if not text:
            raise BadAnswer(f"The answer is empty; choose one of: {', '.join(outcomes)}.")
        return text if text in outcomes else None

    def kept(self, decision: Decision, settled: Decision) -> Stored:
        return {**super().kept(decision, settled), "is_approve": decision.is_approve}


@dataclass(frozen=True, kw_only=True)
class CallQuestion(Question):
    """A question about a call in the middle of a task. The call's journal entry stores the answer."""

    ask: Ask
    entry: int  # the journal entry's number
    arguments: dict[str, Any] | None = None  # with their secrets
    failure: str | None = None  # the execution's error if a person gives up
    before: Stored | None = None  # the previous question, which applies again afterwards
    answer_by: float | None = None  # when the service answers itself

    is_ask: ClassVar[bool] = True
    kind: ClassVar[AskKind]
    offers: ClassVar[tuple[str, ...]]
    wish: ClassVar[str] = "approve a tool call"
    is_about_tool: ClassVar[bool] = True

    @classmethod
    def opened(
        cls, pending: PendingQuestion, *, number: int, printed: Printed, before: Stored | None, now: float
    ) -> CallQuestion:
        """Return the question for a call; `number` counts the execution's questions from 1."""
        arguments = tidy(pending.arguments or {}) if cls.is_about_tool else None
        ask: Ask = {
            "kind": cls.kind,
            "agent": pending.agent,
            "tool": pending.entry.name if cls.is_about_tool else None,
            "arguments": None if arguments is None else masked_arguments.masked(arguments, printed),
            "number": number,
            "earlier_calls": pending.earlier_calls,
        }
        answer_by: float | None = None
        if (terms := pending.of_flow) is not None:
            answer_by = None if terms["timeout"] is None else now + max(0.0, terms["timeout"])
            ask["agent"] = None
            ask["deadline"] = None if answer_by is None else iso(answer_by)
            ask["metadata"] = terms["metadata"] and masked_arguments.masked(terms["metadata"], printed)
        sentence = printed.masked(cls._sentence(pending))  # an exception's text may contain a secret
        values = {
            "task_id": pending.entry.task_id,
            "key": f"{pending.entry.task_id}#{number}",
            "output": _shown(ask, sentence),
            "agent": pending.agent,
            "state": pending.state,
            "question": sentence,
            "outcomes": list(cls.offers),
            "ask": ask,
            "arguments": arguments,
            "entry": pending.entry.number,
            "failure": cls._failure(pending, printed),
            "before": before,
            "answer_by": answer_by,
        }
        stored: Stored = {name: tidy(value) for name, value in values.items()}
        return cls(**_hashed(stored))

    @classmethod
    def unasked(cls, pending: PendingQuestion, printed: Printed) -> str:
        """Return the execution's error if nobody can be asked."""
        return f"A person must {cls.wish} ({pending.entry.name}), and nobody can be asked here. It was not run."

    @classmethod
    def _failure(cls, pending: PendingQuestion, printed: Printed) -> str | None:
        return None

    @classmethod
    def _sentence(cls, pending: PendingQuestion) -> str:
        raise NotImplementedError

    @property
    def asked(self) -> Stored:
        return {**super().asked, "ask": self.ask}

    def _settled(self, decision: Decision) -> Decision:
        outcomes = list(self.outcomes or self.offers)
        if decision.outcome is None:
            meant = [each for each in outcomes if (each in asks.APPROVING) is decision.is_approve]
            outcome = _the_one_meant(meant, outcomes)
        else:
            outcome = _offered(decision.outcome, outcomes)
        approves = outcome in asks.APPROVING
        if decision.is_approve not in (None, approves):
            raise BadAnswer(f"is_approve contradicts the outcome {outcome}. Nothing was changed.")
        edit = self._changed(decision.edit, outcome) if decision.edit else None
        return replace(decision, is_approve=approves, outcome=outcome, edit=edit)

    def _changed(self, edit: EditedOutput, outcome: str) -> EditedOutput:
        """Return the arguments that a person has changed, with the secrets that they did not see."""
        if outcome != asks.APPROVE:
            raise BadAnswer("edited_output changes the arguments of a call, so it needs the outcome approve.")
        if edit.output_sha256 not in self.hashes.values():
            raise AnotherDraft("edited_output is for a different question; nothing was changed.")
        try:
            changed = masked_arguments.changed(edit.text, self.ask["arguments"], self.arguments)
        except masked_arguments.BadArguments as problem:
            raise BadAnswer(f"edited_output is not accepted because {problem}. Nothing was changed.") from None
        return replace(edit, text=json.dumps(changed))

    @property
    def keeps_kickoff_id(self) -> bool:
        return True

    def is_given_up(self, settled: Decision) -> bool:
        """Return whether the answer ends the execution."""
        return settled.outcome == asks.FAIL

    def after(self, settled: Decision) -> Stored | None:
        return self.before

    def in_journal(self, settled: Decision) -> Stored:
        """Return the part of a decision that the call's entry keeps."""
        changed = {"arguments": json.loads(settled.edit.text)} if settled.edit else {}
        return tidy({"outcome": settled.outcome, "text": settled.feedback, **changed})  # type: ignore[no-any-return]


class ToolApproval(CallQuestion):
    """A tool whose rule demands a person's approval before it runs, perhaps with changed arguments."""

    kind = asks.TOOL
    offers = (asks.APPROVE, asks.DENY)

    @classmethod
    def _sentence(cls, pending: PendingQuestion) -> str:
        return f"{pending.agent or 'The crew'} wants to call the tool {_described(pending)}. May it run?"


class AgentQuestion(CallQuestion):
    """What an agent asks by its own tool, or a Flow's method by `Flow.ask`; a text answers it.

    A Flow may wait until a deadline only: then the service answers, with nobody's answer.
    """

    kind = asks.QUESTION
    offers = (asks.ANSWER,)
    wish = "answer an agent's question"
    is_about_tool = False

    @classmethod
    def _sentence(cls, pending: PendingQuestion) -> str:
        return pending.text

    @classmethod
    def unasked(cls, pending: PendingQuestion, printed: Printed) -> str:
        if pending.of_flow is None:
            return super().unasked(pending, printed)
        sentence = printed.masked(pending.text)
        return f"The Flow asks a person ({sentence}), and nobody can be asked here: Flow.ask() got no answer."

    def _settled(self, decision: Decision) -> Decision:
        if decision.is_expiry:
            return replace(decision, outcome=asks.EXPIRED)
        settled = super()._settled(decision)
        if not decision.feedback.strip():
            raise BadAnswer("The answer is empty; this question asks for text.")
        return settled


class UnknownOutcome(CallQuestion):
    """A call of a tool that may run only once, and of which it is unknown whether it did its work."""

    kind = asks.UNKNOWN
    offers = (asks.DONE, asks.RUN_AGAIN, asks.FAIL)

    @classmethod
    def unasked(cls, pending: PendingQuestion, printed: Printed) -> str:
        text = printed.masked(pending.shown)
        return printed.masked(tool_rules.not_known(pending.entry.name, text, pending.text))

    @classmethod
    def _failure(cls, pending: PendingQuestion, printed: Printed) -> str | None:
        return cls.unasked(pending, printed)

    @classmethod
    def _sentence(cls, pending: PendingQuestion) -> str:
        what = _described(pending)
        return f"It is unknown whether the tool {what} did its work: {pending.text}. Did it succeed?"


OF_CALLS: dict[str, type[CallQuestion]] = {kind.kind: kind for kind in (ToolApproval, AgentQuestion, UnknownOutcome)}


def question_in(stored: Mapping[str, Any]) -> Question:
    """Return the question of a row, in any release's form; `storage.integrity` has checked it."""
    kind: type[Question] = FlowQuestion
    if "ask" in stored:
        kind = OF_CALLS[stored["ask"]["kind"]]
    elif stored.get("outcomes") is None:
        kind = CrewDraft
    known = _names(kind)
    others = {name: value for name, value in stored.items() if name not in known}
    return kind(**{name: value for name, value in stored.items() if name in known}, others=others)


def question_of(row: Any) -> Question | None:
    """Return the question of a row: the open one if the execution is waiting, else the last one answered."""
    return None if row.gate is None else question_in(row.gate)


def drafted(pending: PendingReview, before: Question | None, *, fresh_ids: bool) -> Question:
    """Return the question for a crew's draft, or a Flow's question.

    :param before: the last question, whose rounds go on if it was about the same task
    :param fresh_ids: whether each version of a crew's draft gets an id of its own
    """
    is_flow = pending.outcomes is not None
    values: Stored = tidy(
        {
            "task_id": pending.task_id,
            "key": str(uuid4()) if fresh_ids and not is_flow else pending.task_id,
            "output": pending.output,
            "agent": pending.agent,
            "state": pending.state,
            "question": pending.question,
            "outcomes": pending.outcomes,
            "details": pending.details,
            "question_id": str(uuid4()) if is_flow else None,
            "rounds": before.rounds if before is not None and before.task_id == pending.task_id else [],
        }
    )
    return (FlowQuestion if is_flow else CrewDraft)(**_hashed(values))


def _names(kind: type[Question]) -> frozenset[str]:
    return frozenset(each.name for each in fields(kind)) - {"others"}


def _hashed(values: Stored) -> Stored:
    return {**values, **hashes_of(values["output"])}


def _offered(outcome: str, outcomes: list[str]) -> str:
    if outcome not in outcomes:
        raise BadAnswer(f"There is no outcome {outcome[:80]!r}; choose one of: {', '.join(outcomes)}.")
    return outcome


def _the_one_meant(meant: list[str], outcomes: list[str]) -> str:
    if len(meant) != 1:
        offered = ", ".join(outcomes)
        raise BadAnswer(f"is_approve does not determine the outcome; set outcome to one of: {offered}.")
    return meant[0]


def _described(pending: PendingQuestion) -> str:
    """Return a call's tool, with its description if its agent has several tools with this name."""
    # Only whole words are left out: the beginning of a secret would not be recognized.
    about = _without_unseen(textwrap.shorten(pending.about, LONGEST_ABOUT, break_on_hyphens=False))
    return f"{pending.entry.name} ({about})" if about else pending.entry.name


def _shown(ask: Ask, sentence: str) -> str:
    """Return the text that people decide on."""
    text = f"Question {ask['number']}: {sentence}"
    if ask["tool"] is None:
        return text
    arguments = json.dumps(ask["arguments"], sort_keys=True, indent=2, ensure_ascii=False)
    return f"{text}\n\nTool: {ask['tool']}\nArguments:\n{_without_unseen(arguments)}"


def _without_unseen(text: str) -> str:
    return UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
