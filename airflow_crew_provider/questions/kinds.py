"""The kinds of questions. A pending record, the part of it that is shown, and a review all name theirs.

Each class determines what is shown, what the choices mean and what the deadline does, with the sentences that say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.answers import APPROVAL, approval_meant, outcome_meant
from airflow_crew_provider.api.status import json_object_in, without_fence
from airflow_crew_provider.api.values import is_uuid, visible
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Execution, Json, shown
from airflow_crew_provider.questions import drafts
from airflow_crew_provider.questions.drafts import SHOWN_CHARACTERS, fenced, in_quotation, quoted, text_of
from airflow_crew_provider.stored_names import EDIT_FIELD

ASKED_FIELDS = ("question", "outcomes", "flow_id", "ask")
VIOLATIONS = "violations"  # a draft's field: how it violates the DAG's output schema, if it does
THE_QUESTION = "**The question:**"  # how a form introduces a Flow's question
IN_THE_MIDDLE = "**In the middle of the task**"  # how a form introduces an agent's mid-task question
NOBODY_APPROVED = "Denied, because nobody approved the call in time."
STAYS_PAUSED = "this task fails and the execution stays paused."
ON_ITS_OWN = "the Flow continues without one."
_LAST_ROUND = "* **This is the last round**: if the {} asks again, this run fails and the execution stays paused."
# Of the words that answer a question in the middle of a task.
EFFECTS = {
    asks.APPROVE: "the tool runs with these arguments.",
    asks.DENY: "the tool does not run. The agent reads your *Feedback* as the reason, and continues.",
    asks.ANSWER: "the agent reads your *Feedback*. An empty answer is not accepted, and you are asked again.",
    asks.DONE: "the tool has run; your *Feedback* is used as its result.",
    asks.RUN_AGAIN: "the tool runs once more with these arguments.",
    asks.FAIL: "the execution fails.",
}
_code = partial(drafts.code, longest=200)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The DAG's arguments on which a question depends; ``words`` are the labels for a draft's two choices.

    :param round_number: this round's number, starting at 1
    """

    words: Sequence[str] = ("approve", "revise")
    on_timeout: str | Json = "fail"
    on_tool_timeout: str = "fail"
    allow_edit: bool = False
    approvals: int = 1
    round_number: int | None = None
    max_rounds: int | None = None

    @property
    def is_last(self) -> bool:
        """Whether this is the last round."""
        return self.round_number is not None and self.round_number == self.max_rounds


def asked_in(pending: Json) -> Json:
    """Return a pending record's fields for a Flow's question, or one in the middle of a task; empty for a draft."""
    return {name: pending[name] for name in ASKED_FIELDS if pending.get(name) is not None}


def question_in(record: Json) -> Question:
    """Return the question in a pending record, in the part of it that is shown, or in a review."""
    ask = asks.read(record.get("ask"))
    if ask is not None:
        kind = KINDS_IN_THE_MIDDLE.get(ask["kind"], Unreadable)
        return (MethodQuestion if kind is AgentQuestion and asks.is_of_flow(ask) else kind)(record, ask)
    is_of_flow = record.get("question") is not None or bool(record.get("outcomes"))
    return FlowQuestion(record) if is_of_flow else Draft(record)


def question_of(execution: Execution) -> Question:
    """Return the question of an execution that is waiting for a person."""
    return question_in({"ask": execution.ask, "question": execution.question, "outcomes": execution.outcomes})


def answered_in(review: Json) -> Question:
    """Return the question that a review answered; of a Flow's, a review has only the outcome."""
    question = question_in(review)
    return FlowQuestion(review) if question.is_plain and "outcome" in review else question


@dataclass(frozen=True)
class Question:
    """What all kinds have; where a kind says nothing else, it is answered like a draft.

    ``name`` is stored in metrics; ``subject``, ``asker`` and ``field`` are words in sentences and on the form.
    """

    shown: Json

    name: ClassVar[str] = "draft"
    subject: ClassVar[str] = "draft"
    asker: ClassVar[str] = "crew"
    field: ClassVar[str] = "Draft"
    hint: ClassVar[str] = "What to change; required for a revision"
    approval: ClassVar[str] = "must approve"
    other_answer: ClassVar[str] = "a revision request"
    is_plain: ClassVar[bool] = True  # a schema or a rule may judge it, and a revision needs another round
    may_be_judged_unseen: ClassVar[bool] = True  # an answer is allowed if the form shows only part
    takes_own_body: ClassVar[bool] = True  # the DAG may show another text
    unattended: ClassVar[str | None] = None  # the answer of a task that asks nobody; without one, it waits
    summary: ClassVar[str] = ""  # what an agent asks, in a few words
    about_earlier_calls: ClassVar[str] = ""  # a sentence about calls on which this one may depend, without its period

    # --- what is shown ---

    @property
    def size(self) -> int:
        """The length of the whole text."""
        return self.shown.get("characters") or len(text_of(self.shown.get("output")))

    @property
    def is_whole(self) -> bool:
        """Whether the form shows everything."""
        return self.size <= SHOWN_CHARACTERS

    @property
    def content(self) -> str:
        """The text as a quotation or a code block, so that nothing in it can hide or imitate the rest of the page."""
        output = self.shown.get("output")
        text = text_of(output)[:SHOWN_CHARACTERS]
        if not isinstance(output, str) or self.shown.get("language"):
            return fenced(text, "json")
        return in_quotation(text) if text.strip() else "*The draft is empty.*"

    @property
    def task(self) -> str | None:
        """The crew's task, if the service reports it; a bare UUID means nothing to a person."""
        waiting = self.shown.get("crew_task_id")
        return self.shown.get("crew_task_name") or (None if is_uuid(waiting) else waiting)

    @property
    def author(self) -> str | None:
        """The agent that wrote the draft, if the service reports it."""
        tasks, waiting = self.shown.get("tasks") or [], self.shown.get("crew_task_id")
        agent = self.shown.get("agent") or next((t.get("agent") for t in tasks if t.get("task_id") == waiting), None)
        return str(agent) if agent else None

    @property
    def headline(self) -> str:
        """The form's headline."""
        return "Review " + " by ".join(each for each in (self.task or "the crew's text", self.author) if each)

    @property
    def opening(self) -> str:
        """The sentence about who asks."""
        who = f"Task {_code(self.task)}" if self.task else "One of the crew's tasks"
        by = f", run by agent {_code(self.author)}," if self.author else ""
        return f"{who}{by} produced this draft and is waiting for your answer."

    def notes(self) -> Iterator[str]:
        """Yield the paragraphs after the opening."""
        yield from ()

    # --- the choices ---

    def choices(self, terms: Terms) -> list[str]:
        """Return the choices."""
        return list(terms.words)

    def effects(self, terms: Terms) -> list[str]:
        """Return the form's lines about the effect of each choice."""
        approve, revise = terms.words
        unread = " It does not read your *Feedback*." if self.reads_no_comment else ""
        again = (
            "the task runs again. Use *Feedback* to say what to change; a revision without feedback is not accepted, "
            "and you are asked again."
        )
        fails = f"**this is the last round**, so a revision is not sent; {STAYS_PAUSED}"
        return [
            f"* **{approve}**: the crew continues with this draft.{unread}",
            f"* **{revise}**: {fails if terms.is_last else again}",
        ]

    @property
    def reads_no_comment(self) -> bool:
        """Whether the deployment decides by the text alone, and takes a comment on an approved draft for a revision."""
        return self.is_plain and self.shown.get("dialect") == "live"

    def meaning(self, choice: str, terms: Terms) -> Json:
        """Return what a choice means in the request."""
        return {"is_approve": choice == terms.words[0]}

    def approving(self, terms: Terms) -> list[str] | None:
        """Return the choice that approves; None if there is no clear one."""
        return [terms.words[0]]

    def needs_text(self, terms: Terms) -> str | None:
        """Return the choice that needs feedback; None if none does."""
        return terms.words[1]

    # --- several people ---

    def needed(self, choice: Json, terms: Terms) -> int:
        """Return how many people must make a choice: only one, except to approve."""
        return terms.approvals if choice["is_approve"] else 1

    @property
    def expires(self) -> datetime | None:
        """When the service gives nobody's answer by itself; None if it does not."""
        return None

    def refuse_approvals(self, approvals: int) -> None:
        """Refuse to require several approvals if no choice approves.

        :raises CrewInvalidInput: no choice approves
        """

    def several_needed(self, terms: Terms) -> str:
        """Return the form's line about several approvals; empty if one is enough."""
        count = max((self.needed(self.meaning(each, terms), terms) for each in self.choices(terms)), default=1)
        sentence = f"* **{count} different people** {self.approval}; {self.other_answer} from any of them is enough."
        return sentence if count > 1 else ""

    # --- the deadline ---

    def policy(self, terms: Terms) -> str | Json:
        """Return the deadline's policy."""
        return terms.on_timeout

    def at_deadline(self, terms: Terms) -> list[str] | None:
        """Return the choice made if nobody answers in time; None if the task then fails.

        :raises CrewInvalidInput: the policy does not identify a single choice
        """
        policy = self.policy(terms)
        return None if policy == "fail" else [terms.words[0] if policy == "approve" else terms.words[1]]

    def text_at_deadline(self, terms: Terms) -> str:
        """Return the text sent with the choice that the deadline makes."""
        policy = self.policy(terms)
        return policy["revise"] if isinstance(policy, dict) else ""

    def effect_of_deadline(self, terms: Terms) -> str:
        """Return what the deadline does, as the end of a sentence."""
        policy = self.policy(terms)
        if policy == "approve" and not self.shown.get(VIOLATIONS):
            return f"**{self._chosen(True)}**, unless somebody has rejected the draft."
        if isinstance(policy, dict) and not (terms.is_last and self.is_plain):
            return f"{self._chosen(False)}, with this text:\n\n{quoted(policy['revise'])}"
        return STAYS_PAUSED

    def _chosen(self, is_approve: bool) -> str:
        return "the draft is approved" if is_approve else "a revision is requested"

    # --- the previous round ---

    def may_revise(self, previous: Json) -> bool:
        """Whether this may be a new version of the previous round's draft; a crew may give that a new id."""
        return self.has_task_of(previous) or previous.get("is_approve") is False

    def has_task_of(self, review: Json) -> bool:
        """Whether the review was about the same task, or the same question in the middle of it."""
        return bool(review.get("crew_task_id") == self.shown.get("crew_task_id"))

    def lost_edit(self, edited: str, place: str, by: str, refusal: str = "") -> str:
        """Return the sentence about an edit that was not applied, for the next round's form.

        :param place: the round of the edit
        :param by: who made it, as the end of a clause
        :param refusal: why it was not applied; without one, the draft had changed
        """
        why = f":\n\n{quoted(refusal)}\n\n" if refusal else ", because the draft had changed in the meantime. "
        return f"**Edited in {place}**{by}, but not applied{why}The edited text was:\n\n{quoted(edited)}"

    def answer_told(self, review: Json, place: str, by: str) -> str:
        """Return the sentence about the answer to this question, for the next round's form."""
        if review.get("is_approve"):
            return f"In {place} the draft of {_code(review.get('crew_task_id'))} was approved."
        return f"**Requested in {place}**{by}:\n\n{quoted(review.get('human_feedback') or '')}"

    # --- edits ---

    def edits(self, terms: Terms) -> bool:
        """Whether the form may offer to edit the text."""
        return terms.allow_edit

    @property
    def editable_text(self) -> str | None:
        """The text that the form offers to edit, if `edits` allows it; None if the form shows only part.

        A JSON object is in a code fence, because Airflow's page would otherwise show it as "[object Object]".
        """
        if not self.is_whole:
            return None
        text = text_of(self.shown["output"])
        return f"```json\n{text}\n```" if text.strip().startswith("{") and json_object_in(text) is not None else text

    def effect_of_edit(self, terms: Terms) -> str:
        """Return the form's line about the effect of an edit; empty if the choices say it."""
        if self.editable_text is None:
            return "* This draft cannot be edited here."
        approve, revise = terms.words
        if self.shown.get("takes_edited_output"):
            sent = "" if terms.is_last else f"; with **{revise}** it is sent as feedback"
            then = f"with **{approve}** your text becomes the output of the task{sent}."
        elif terms.is_last:
            then = "this service accepts it only as revision feedback, and **none is sent in the last round**."
        else:
            again = f"even with **{approve}**, the task runs again with your text."
            then = f"this service accepts it only as feedback: {again}"
        return f"* If you edit the text under *Draft*: {then}"

    def read_edit(self, event: Json) -> Json:
        """Return the event with the edited text as a string, as the person left it."""
        return drafts.with_text_of_edit(event, self.editable_text)

    def edited_text(self, event: Json) -> str | None:
        """Return the person's version; None if it is unchanged or was not editable."""
        draft, left = self.editable_text, (event.get("params_input") or {}).get(EDIT_FIELD)
        if draft is None or not isinstance(left, str) or not drafts.is_edit(draft, left):
            return None
        return left if draft == text_of(self.shown["output"]) else without_fence(left)

    def edit_problem(self, choice: Json, edited: str) -> str | None:
        """Return why edited text is invalid, as the end of a sentence; None if it is valid."""
        return drafts.edit_problem(text_of(self.shown["output"]), edited)

    def with_edit(self, review: Json, edited: str) -> Json:
        """Return a review with the edited text: as the task's output, or as feedback."""
        if review["is_approve"] and self.shown.get("takes_edited_output"):
            return {**review, "edited_output": edited}
        feedback = "\n\n".join(part for part in (review["human_feedback"].strip(), drafts.AS_FEEDBACK, edited) if part)
        return {**review, "is_approve": False, "human_feedback": feedback}

    def said_of_edit(self, review: Json, edited: str) -> str:
        """Return the log line about edited text."""
        where = "becomes the output of the task" if "edited_output" in review else "is sent as revision feedback"
        return f"The draft was edited (now {len(edited)} characters); the text {where}"


class Draft(Question):
    """A crew's draft: it is approved, or sent back with a text."""


class FlowQuestion(Question):
    """A Flow's question, with the outcomes on which it routes; without outcomes, any text is an answer."""

    asker: ClassVar[str] = "Flow"
    is_plain: ClassVar[bool] = False

    @property
    def hint(self) -> str:  # type: ignore[override]
        return "Sent with your choice" if self.outcomes else "Your answer"

    @property
    def opening(self) -> str:
        who = f"The method {_code(self.task)} of the Flow" if self.task else "A method of the Flow"
        name = f" {_code(self.author)}" if self.author else ""
        return f"{who}{name} returned this draft and is waiting for your answer."

    def notes(self) -> Iterator[str]:
        if question := self.shown.get("question"):
            yield f"{THE_QUESTION}\n\n{quoted(str(question))}"

    @property
    def outcomes(self) -> list[str]:
        return list(self.shown.get("outcomes") or [])

    def choices(self, terms: Terms) -> list[str]:
        return self.outcomes or super().choices(terms)

    def effects(self, terms: Terms) -> list[str]:
        *others, final = [_code(each) for each in self.choices(terms)]
        words = " or ".join([", ".join(others), final] if others else [final])
        effect = "the Flow continues with your"
        lines = [f"* {words}: {effect} choice. Your *Feedback* is sent with it."]
        if not self.outcomes:
            approve, revise = terms.words
            lines = [
                f"* **{approve}**: {effect} *Feedback*, or with {_code(APPROVAL)} if you enter none.",
                f"* **{revise}**: {effect} *Feedback*, and decides what to do next. Feedback is required.",
            ]
        return [*lines, _LAST_ROUND.format(self.asker)] if terms.is_last else lines

    def meaning(self, choice: str, terms: Terms) -> Json:
        if self.outcomes:
            return {"is_approve": approval_meant(choice, self.outcomes), "outcome": choice}
        return {"is_approve": choice == terms.words[0], "outcome": None}

    def approving(self, terms: Terms) -> list[str] | None:
        meant = outcome_meant(True, self.outcomes) if self.outcomes else terms.words[0]
        return None if meant is None else [meant]

    def needs_text(self, terms: Terms) -> str | None:
        return None if self.outcomes else terms.words[1]

    def at_deadline(self, terms: Terms) -> list[str] | None:
        if terms.on_timeout == "fail" or not self.outcomes:
            return super().at_deadline(terms)
        meant = outcome_meant(terms.on_timeout == "approve", self.outcomes)
        if meant is None:
            raise CrewInvalidInput(
                f"on_timeout={shown(terms.on_timeout)} does not determine which outcome of the Flow is meant "
                f"({', '.join(self.outcomes)}); nobody was asked and nothing was sent. Use on_timeout='fail' with this "
                "Flow"
            )
        return [meant]

    def _chosen(self, is_approve: bool) -> str:
        outcome = outcome_meant(is_approve, self.outcomes)
        return f"{_code(outcome)} is chosen" if outcome else super()._chosen(is_approve)

    def refuse_approvals(self, approvals: int) -> None:
        if approvals > 1 and self.outcomes and approval_meant(self.outcomes[0], self.outcomes) is None:
            raise CrewInvalidInput(
                f"{approvals} approvals are required, but the outcomes of the Flow ({', '.join(self.outcomes)}) are "
                "not an approving and a revising one; nobody was asked and nothing was sent"
            )

    def may_revise(self, previous: Json) -> bool:
        return self.has_task_of(previous)

    def answer_told(self, review: Json, place: str, by: str) -> str:
        return _told(review, place, by, _code(review["outcome"]) if review["outcome"] is not None else "")

    def edits(self, terms: Terms) -> bool:
        return False


@dataclass(frozen=True)
class InTheMiddle(Question):
    """A question in the middle of a task, which ``ask`` describes; only ``words`` answer it."""

    ask: Json

    subject: ClassVar[str] = "question"
    field: ClassVar[str] = "Arguments"
    other_answer: ClassVar[str] = "any other answer"
    is_plain: ClassVar[bool] = False
    takes_own_body: ClassVar[bool] = False  # it might not show the call
    title: ClassVar[str] = "A question"
    asked: ClassVar[str] = "the question cannot be read"
    words: ClassVar[dict[str, bool]] = {}  # with the matching ``is_approve``

    @property
    def content(self) -> str:
        return fenced(visible(text_of(self.shown.get("output"))[:SHOWN_CHARACTERS]))

    @property
    def headline(self) -> str:
        return self.title.format(agent=self.ask["agent"] or "an agent", tool=self.ask["tool"] or "a tool")

    @property
    def opening(self) -> str:
        return f"{IN_THE_MIDDLE} {_code(asks.task_of(self.shown['crew_task_id']))}, {self._in_words(_code)}."

    def notes(self) -> Iterator[str]:
        question = str(self.shown.get("question") or "")
        if question not in text_of(self.shown.get("output")):
            yield f"{THE_QUESTION}\n\n{quoted(question)}"
        if note := self.about_earlier_calls:
            yield f"{note}."

    @property
    def summary(self) -> str:  # type: ignore[override]
        return self._in_words(str)

    def _in_words(self, named: Callable[[str], str]) -> str:
        agent, tool = self.ask["agent"], self.ask["tool"]
        who, what = (
            f"the agent {named(agent)}" if agent else "an agent",
            f"the tool {named(tool)}" if tool else "a tool",
        )
        return self.asked.format(agent=who, tool=what)

    def choices(self, terms: Terms) -> list[str]:
        return [word for word in self.words if self.is_whole or word not in asks.RUNS_A_TOOL]

    def effects(self, terms: Terms) -> list[str]:
        lines = [f"* **{word}**: {self.effect(word, terms)}" for word in self.choices(terms)]
        return [*lines, _LAST_ROUND.format(self.asker)] if terms.is_last else lines

    def effect(self, word: str, terms: Terms) -> str:
        """Return the effect of a choice, as the end of a sentence."""
        return EFFECTS[word]

    def meaning(self, choice: str, terms: Terms) -> Json:
        return {"is_approve": self.words[choice], "outcome": choice}

    def approving(self, terms: Terms) -> list[str] | None:
        return None

    def needs_text(self, terms: Terms) -> str | None:
        return None

    def needed(self, choice: Json, terms: Terms) -> int:
        return terms.approvals if choice["outcome"] in asks.RUNS_A_TOOL else 1

    def policy(self, terms: Terms) -> str | Json:
        return "fail"

    def may_revise(self, previous: Json) -> bool:
        return False

    def answer_told(self, review: Json, place: str, by: str) -> str:
        return _told(review, place, by)

    def edits(self, terms: Terms) -> bool:
        return False


class AgentQuestion(InTheMiddle):
    """An agent's question; a person must answer it."""

    name: ClassVar[str] = asks.QUESTION
    hint: ClassVar[str] = "Your answer; required"
    title: ClassVar[str] = "Answer {agent}"
    asked: ClassVar[str] = "{agent} asks a question"
    words: ClassVar[dict[str, bool]] = asks.WORDS[asks.QUESTION]

    def needs_text(self, terms: Terms) -> str | None:
        return asks.ANSWER


class MethodQuestion(AgentQuestion):
    """A question of a Flow's method; at its deadline, the service lets the method continue without an answer."""

    asker: ClassVar[str] = "Flow"
    title: ClassVar[str] = "Answer the Flow"
    asked: ClassVar[str] = "the Flow asks a question"

    def notes(self) -> Iterator[str]:
        yield from super().notes()
        if metadata := self.ask["metadata"]:
            text = json.dumps(metadata, indent=2, sort_keys=True, ensure_ascii=False)
            yield f"What the Flow adds to the question:\n\n{fenced(visible(text), 'json')}"

    def effects(self, terms: Terms) -> list[str]:
        lines, until = super().effects(terms), self.expires
        return [*lines, f"* No answer by {until:%Y-%m-%d %H:%M:%S} UTC: {ON_ITS_OWN}"] if until else lines

    @property
    def expires(self) -> datetime | None:
        return asks.deadline_of(self.ask)

    def meaning(self, choice: str, terms: Terms) -> Json:
        return {"is_approve": None, "outcome": choice} if choice == asks.EXPIRED else super().meaning(choice, terms)

    def policy(self, terms: Terms) -> str | Json:
        return asks.EXPIRED if self.expires else super().policy(terms)

    def at_deadline(self, terms: Terms) -> list[str] | None:
        return None  # at the task's own deadline, which is before the question's

    def answer_told(self, review: Json, place: str, by: str) -> str:
        expired = f"**Nobody answered in {place}**, so the Flow continued without an answer."
        return expired if review.get("outcome") == asks.EXPIRED else super().answer_told(review, place, by)

    def effect(self, word: str, terms: Terms) -> str:
        return super().effect(word, terms).replace("the agent", "the Flow")


class AboutTool(InTheMiddle):
    """A question about a tool call; nothing can run the tool unless the form shows the whole call."""

    @property
    def is_whole(self) -> bool:
        return bool(self.ask["tool"] and asks.arguments_text(self.ask)) and super().is_whole

    @property
    def about_earlier_calls(self) -> str:  # type: ignore[override]
        count = self.ask.get("earlier_calls")
        calls = "1 earlier tool call" if count == 1 else f"{count} earlier tool calls"
        lost = f"what {calls} of this task kept in memory, such as a login, is lost"
        return f"The crew continues in a new process: {lost}" if count else ""

    def answer_told(self, review: Json, place: str, by: str) -> str:
        tool = f" for {_code(self.ask['tool'])}" if self.ask["tool"] else ""
        return _told(review, place, by, _code(review["outcome"]) + tool)


class ToolCall(AboutTool):
    """A tool call that needs approval; the person may change its arguments."""

    name: ClassVar[str] = asks.TOOL
    hint: ClassVar[str] = "The reason; the agent reads it if you deny the call"
    title: ClassVar[str] = "Approve {tool} for {agent}"
    asked: ClassVar[str] = "{agent} needs approval to run {tool}"
    words: ClassVar[dict[str, bool]] = asks.WORDS[asks.TOOL]
    may_be_judged_unseen: ClassVar[bool] = False

    def effect(self, word: str, terms: Terms) -> str:
        if word != asks.APPROVE or not self.edits(terms):
            return super().effect(word, terms)
        is_hidden = asks.HIDDEN in str(asks.arguments_text(self.ask))
        hint = f"; leave `{asks.HIDDEN}` where it is to keep a hidden value" if is_hidden else ""
        return f"the tool runs with these arguments, or with those under *Arguments*, a JSON object{hint}."

    def approving(self, terms: Terms) -> list[str] | None:
        return [asks.APPROVE]

    def policy(self, terms: Terms) -> str | Json:
        return terms.on_tool_timeout

    def at_deadline(self, terms: Terms) -> list[str] | None:
        return None if terms.on_tool_timeout == "fail" else [terms.on_tool_timeout]

    def text_at_deadline(self, terms: Terms) -> str:
        return NOBODY_APPROVED if terms.on_tool_timeout == asks.DENY else ""

    def effect_of_deadline(self, terms: Terms) -> str:
        approved = "**the call is approved**, unless somebody has rejected the call."
        done = {asks.APPROVE: approved, asks.DENY: "**the call is denied.**"}
        return done.get(terms.on_tool_timeout, STAYS_PAUSED)

    def lost_edit(self, edited: str, place: str, by: str, refusal: str = "") -> str:
        fate = "but the service did not accept the changed arguments, and the tool has not run:"
        why = f"\n\nIts reason:\n\n{quoted(refusal)}" if refusal else ""
        return f"**Approved in {place}**{by}, {fate}\n\n{fenced(visible(edited[: drafts.SHOWN_FEEDBACK]))}{why}"

    def edits(self, terms: Terms) -> bool:
        return terms.approvals == 1

    def effect_of_edit(self, terms: Terms) -> str:
        return ""

    @property
    def editable_text(self) -> str | None:
        arguments = asks.arguments_text(self.ask) if self.is_whole else None
        return None if arguments is None else f"```json\n{text_of(arguments)}\n```"

    def edit_problem(self, choice: Json, edited: str) -> str | None:
        if choice["outcome"] != asks.APPROVE:
            return None
        return asks.problem_with_arguments(asks.arguments_of(self.ask), json_object_in(edited))

    def with_edit(self, review: Json, edited: str) -> Json:
        return {**review, "edited_output": edited} if review["outcome"] == asks.APPROVE else review

    def said_of_edit(self, review: Json, edited: str) -> str:
        sent = "sent" if "edited_output" in review else "not sent with this answer"
        return f"The arguments were changed (now {len(edited)} characters); they are {sent}"


class UnknownOutcome(AboutTool):
    """A tool call of which it is not known whether it has run."""

    name: ClassVar[str] = asks.UNKNOWN_OUTCOME
    hint: ClassVar[str] = "If done: the result of the tool"
    title: ClassVar[str] = "Did {tool} succeed?"
    asked: ClassVar[str] = "it is not known whether {tool} has run"
    unattended: ClassVar[str | None] = asks.FAIL
    words: ClassVar[dict[str, bool]] = asks.WORDS[asks.UNKNOWN_OUTCOME]
    approval: ClassVar[str] = f"must choose **{asks.RUN_AGAIN}**"


class Unreadable(InTheMiddle):
    """A question of a kind that this release does not know; it is never shown."""

    name: ClassVar[str] = asks.UNREADABLE


KINDS_IN_THE_MIDDLE: dict[str, type[InTheMiddle]] = {
    each.name: each for each in (ToolCall, AgentQuestion, UnknownOutcome, Unreadable)
}


def _told(review: Json, place: str, by: str, chosen: str = "") -> str:
    text = review.get("human_feedback") or ""
    word, end = ("Chosen", f": {chosen}") if chosen else ("Answered", ":") if text.strip() else ("Approved", "")
    return f"**{word} in {place}**{by}{end}" + (f"\n\n{quoted(text)}" if text.strip() else "")
