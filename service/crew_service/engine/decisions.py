"""A person's decision, its meaning for the question, and the exceptions that refuse it or other requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from crew_service.engine import asks
from crew_service.engine.approval import outcome_meant
from crew_service.engine.drafts import EditedOutput, edit_problem, hashes_of, json_object_in
from crew_service.storage.states import State


class Refused(Exception):
    """The request was refused and changed nothing; the message states why."""


class UnknownExecution(Refused):
    pass


class UnknownTask(Refused):
    pass


class NotWaiting(Refused):
    pass


class AlreadyOver(Refused):
    def __init__(self, state: State) -> None:
        super().__init__(f"the execution has ended: {state}")
        self.state = state


class BadAnswer(Refused):
    """The answer does not fit the question; the message explains why."""


class AnotherDraft(BadAnswer):
    """The answer is for a draft that is no longer waiting."""


class BadResponseToken(Refused):
    """The answer was sent to an address that does not come from a flow webhook."""


class AlreadyAnswered(Refused):
    def __init__(self, by: str, at: float) -> None:
        super().__init__("the question was already answered")
        self.by = by
        self.at = at


@dataclass(frozen=True)
class Decision:
    execution_id: str
    task_id: str
    is_approve: bool | None  # None: only a Flow's outcome or text decides
    feedback: str
    webhooks: dict[str, Any] | None = None  # None: unchanged
    round: int | None = None  # the number of the answer that was shown, from 1; None: the latest
    outcome: str | None = None  # chosen from the question's outcomes
    question_id: str | None = None  # the question that this answers
    edit: EditedOutput | None = None  # of a crew's draft, or of a call's arguments
    draft_sha256: str | None = None  # hash of the answered draft; None: any waiting draft


def settled(gate: dict[str, Any], decision: Decision) -> Decision:
    """Return the decision with its outcome; a crew's task has none, so `is_approve` decides."""
    if decision.draft_sha256 is not None and decision.draft_sha256 not in _hashes(gate):
        raise AnotherDraft("output_sha256 is for a different draft; nothing was changed.")
    if "ask" in gate:
        return _in_the_middle(gate, decision)
    outcomes = gate.get("outcomes")
    if outcomes is None:
        if decision.is_approve is None:
            raise BadAnswer("is_approve: Field required")
        if decision.edit:
            _check(decision.edit, gate, is_approve=decision.is_approve)
        return replace(decision, outcome=None)
    decision = replace(decision, edit=None)
    if not outcomes:
        return _text_alone(decision)
    return replace(decision, is_approve=True, outcome=_chosen(outcomes, decision))


def _hashes(gate: Mapping[str, Any]) -> set[str | None]:
    """Return the hashes by which an answer may identify the draft."""
    # Stored with the gate, because hashing a large draft takes seconds; gates from earlier releases have none or one.
    named = gate if "object_sha256" in gate else hashes_of(gate["output"])
    return {named["output_sha256"], named["object_sha256"]}


def _check(edit: EditedOutput, gate: dict[str, Any], *, is_approve: bool) -> None:
    if not is_approve:
        raise BadAnswer("edited_output needs an approval; a revision runs the task again.")
    if edit.output_sha256 not in _hashes(gate):
        raise AnotherDraft("edited_output is for a different draft; nothing was changed.")
    if problem := edit_problem(gate["output"], edit.text):
        raise BadAnswer(f"edited_output is not accepted because {problem}.")
    # A draft with text around its object counts as text, but its task still has an output model.
    if "output_json" in gate["state"].get("task", {}) and json_object_in(edit.text) is None:
        raise BadAnswer("edited_output must be a JSON object: the task has an output model. Nothing was changed.")


def _in_the_middle(gate: Mapping[str, Any], decision: Decision) -> Decision:
    """Return the decision on a call with its outcome and `is_approve` set, and any changed arguments unmasked."""
    kind, outcomes = gate["ask"]["kind"], gate["outcomes"]
    offered = ", ".join(outcomes)
    outcome = decision.outcome
    if outcome is None:
        meant = [each for each in outcomes if (each in asks.APPROVING) is decision.is_approve]
        if len(meant) != 1:
            raise BadAnswer(f"is_approve does not determine the outcome; set outcome to one of: {offered}.")
        outcome = meant[0]
    elif outcome not in outcomes:
        raise BadAnswer(f"There is no outcome {outcome[:80]!r}; choose one of: {offered}.")
    approves = outcome in asks.APPROVING
    if decision.is_approve not in (None, approves):
        raise BadAnswer(f"is_approve contradicts the outcome {outcome}. Nothing was changed.")
    if kind == asks.QUESTION and not decision.feedback.strip():
        raise BadAnswer("The answer is empty; this question asks for text.")
    edit = _changed(gate, decision.edit, outcome) if decision.edit else None
    return replace(decision, is_approve=approves, outcome=outcome, edit=edit)


def _changed(gate: Mapping[str, Any], edit: EditedOutput, outcome: str) -> EditedOutput:
    if outcome != asks.APPROVE:
        raise BadAnswer("edited_output changes the arguments of a call, so it needs the outcome approve.")
    if edit.output_sha256 not in _hashes(gate):
        raise AnotherDraft("edited_output is for a different question; nothing was changed.")
    try:
        return replace(edit, text=json.dumps(asks.changed_arguments(edit.text, gate)))
    except asks.BadArguments as problem:
        raise BadAnswer(f"edited_output is not accepted because {problem}. Nothing was changed.") from None


def _text_alone(decision: Decision) -> Decision:
    if decision.outcome is not None:
        raise BadAnswer("This question offers no outcomes; answer it with human_feedback.")
    if not decision.feedback.strip():
        raise BadAnswer("The answer is empty; this question asks for text.")
    return replace(decision, is_approve=True)


def _chosen(outcomes: list[str], decision: Decision) -> str | None:
    """Return the given outcome, or the only possible one; None if the Flow's model must interpret the text."""
    offered = ", ".join(outcomes)
    if decision.outcome is not None:
        if decision.outcome not in outcomes:
            raise BadAnswer(f"There is no outcome {decision.outcome[:80]!r}; choose one of: {offered}.")
        return decision.outcome
    if decision.is_approve is not None:
        meant = outcome_meant(decision.is_approve, outcomes)
        if meant is None:
            raise BadAnswer(f"is_approve does not determine the outcome; set outcome to one of: {offered}.")
        return meant
    text = decision.feedback.strip()
    if not text:
        raise BadAnswer(f"The answer is empty; choose one of: {offered}.")
    return text if text in outcomes else None


def kept(gate: dict[str, Any], said: Decision, settled: Decision) -> dict[str, Any]:
    """Return the part of a decision that a round keeps; for a Flow, `is_approve` is kept as sent."""
    return {
        "is_approve": settled.is_approve if "ask" in gate else said.is_approve,
        "outcome": settled.outcome,
        "human_feedback": said.feedback,
        "edited": settled.edit is not None,
        # Gates from release 0.1 have no hash.
        "output_sha256": gate.get("output_sha256") or hashes_of(gate["output"])["output_sha256"],
    }


def of_call(decision: Decision) -> dict[str, Any]:
    """Return the part of a decision on a call that the journal keeps."""
    changed = {"arguments": json.loads(decision.edit.text)} if decision.edit else {}
    return {"outcome": decision.outcome, "text": decision.feedback, **changed}


def decided(gate: dict[str, Any], decision: Decision) -> dict[str, Any]:
    """Return the gate with the person's answer added."""
    said = {"output": gate["output"], "feedback": decision.feedback}
    if decision.edit:
        said |= {"output": decision.edit.text, "draft": gate["output"]}
    rounds = [*gate["rounds"], said]
    return {**gate, "rounds": rounds, "is_approve": decision.is_approve, "outcome": decision.outcome}
