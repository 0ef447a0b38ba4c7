"""A person's answer: the text to send, the rule for recognizing an approval, and the draft that the answer is for.

Live deployments decide by the text alone, so the text must agree with the flag (observed dialect). The crew service
uses the same rule. An answer belongs to one draft: an execution, a crew task, and the hash of the text that was shown.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from airflow_crew_provider.api.asks import EXPIRED, deadline_of, is_answer, read
from airflow_crew_provider.api.requests import CREW_TASK_ID, EXECUTION_ID, path_segment
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import EditedOutput, Execution, ExecutionState, Json, output_sha256, shown
from airflow_crew_provider.stored_names import ALREADY, NOT_SENT, SENT_FEEDBACK

APPROVAL = "Approved."
REVISION_PREFIX = "Please revise: "
MOST_MARKS = 30  # as in Unicode's stream-safe text format
# Each of these, as the whole text, is an approval to a service that decides by the text alone.
APPROVING_WORDS = frozenset(
    ("approved", "approve", "ok", "okay", "yes", "looks good", "looks good to me", "lgtm", "accept", "accepted")
)


def reads_like_approval(text: str) -> bool:
    """Return whether the text alone is an approval: one of the phrases, ignoring case and any symbols around it."""
    if _heaps_marks(text):
        return False
    # Case folding can introduce characters that must be normalized in turn.
    plain = _normal(_normal(text).casefold())
    return " ".join(_trimmed(plain).split()) in APPROVING_WORDS


def outcome_meant(is_approve: bool, outcomes: list[str]) -> str | None:
    """Return the Flow outcome that corresponds to an approval or a rejection; None if ambiguous."""
    approving = [outcome for outcome in outcomes if reads_like_approval(outcome.replace("_", " "))]
    others = [outcome for outcome in outcomes if outcome not in approving]
    if len(approving) != 1 or (not is_approve and len(others) != 1):
        return None
    return approving[0] if is_approve else others[0]


def approval_meant(outcome: str, outcomes: list[str]) -> bool | None:
    """Return whether a chosen outcome is an approval; None unless exactly one of two outcomes is."""
    if len(outcomes) != 2 or outcome_meant(True, outcomes) is None:
        return None
    return outcome == outcome_meant(True, outcomes)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _heaps_marks(text: str) -> bool:
    """Whether there are more consecutive combining marks than in any language; sorting them takes quadratic time."""
    run = 0
    for character in text:
        # Some characters are not marks themselves, but normalize to nothing but marks.
        is_mark = not character.isascii() and unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
        run = run + 1 if is_mark else 0
        if run > MOST_MARKS:
            return True
    return False


def _trimmed(text: str) -> str:
    """Remove everything but letters and digits from both ends, in linear time."""
    places = range(len(text))
    first = next((at for at in places if text[at].isalnum()), len(text))
    last = next((at for at in reversed(places) if text[at].isalnum()), -1)
    return text[first : last + 1]


def feedback_to_send(is_approve: bool, feedback: str) -> str:
    """Return the text to send; refuse a rejection without feedback."""
    if is_approve:
        return feedback if feedback.strip() else APPROVAL
    if not feedback.strip():
        raise CrewInvalidInput("A rejection needs human_feedback that says what to change; nothing was sent")
    return REVISION_PREFIX + feedback if reads_like_approval(feedback) else feedback


def strict_bool(value: Any) -> bool:
    """Read a bool, or the word true or false as rendered by a template; refuse anything else."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word is True or word == "true":
        return True
    if word is False or word == "false":
        return False
    raise CrewInvalidInput(f"is_approve is {shown(value)}, neither true nor false; nothing was sent")


FIELDS = ("execution_id", "crew_task_id", "human_feedback", "is_approve", "outcome")


def was_taken(sent: Json) -> bool:
    """Whether an answer changed anything, from the XCom of its resume; earlier releases stored only the status."""
    return bool(sent.get("taken", sent.get("status") not in (NOT_SENT, ALREADY)))


class DraftId(NamedTuple):
    """The identity of a draft or question: all three fields. Without a hash, it is any draft of the task.

    In JSON, it is a list.
    """

    execution_id: str
    crew_task_id: str
    output_sha256: str | None = None

    @classmethod
    def of(cls, pending: Json) -> DraftId:
        """Return the identity of the draft in a pending record, or in the part of it that is shown."""
        return cls(*(pending[name] for name in cls._fields))

    def waits_in(self, execution: Execution) -> bool:
        """Whether an execution is waiting for an answer to this draft."""
        if execution.state is not ExecutionState.PENDING or execution.crew_task_id not in (None, self.crew_task_id):
            return False
        return self.output_sha256 is None or is_hash_of(self.output_sha256, execution)


def hash_of(execution: Execution) -> str:
    """Return the hash of the waiting draft, as in its record."""
    return output_sha256(execution.output)


def is_hash_of(named: str, execution: Execution) -> bool:
    """Whether a hash is that of the waiting draft; before 0.2, an object was hashed in canonical form."""
    return named == hash_of(execution) or (
        isinstance(execution.handed_on, dict) and named == output_sha256(execution.handed_on)
    )


@dataclass(frozen=True)
class ReviewAnswer:
    """A person's answer, ready to send. If it has an ``outcome``, ``is_approve`` may be None.

    The outcome is a Flow's or, if ``in_the_middle`` is set, a word that answers a question in the middle of a task.
    """

    execution_id: str
    crew_task_id: str
    human_feedback: str
    is_approve: bool | None
    output_sha256: str | None = None
    outcome: str | None = None
    edited_output: str | None = None
    in_the_middle: bool = False
    deadline: datetime | None = None  # when the service gives nobody's answer by itself

    @classmethod
    def of(cls, source: Json) -> ReviewAnswer:
        """Read a review, or an answer's fields; refuse anything else."""
        outcome = _outcome(source.get("outcome"))
        needed = ("execution_id", "crew_task_id", *(() if outcome else ("is_approve",)))
        missing = [name for name in needed if source.get(name) is None]
        if missing:
            raise CrewInvalidInput(f"The answer is missing {', '.join(missing)}; nothing was sent")
        approves = source.get("is_approve")
        is_approve = None if approves is None else strict_bool(approves)
        text = _text(source.get(SENT_FEEDBACK) or source.get("human_feedback"))
        in_the_middle = is_answer(source)
        if not in_the_middle:
            text = _text_to_send(is_approve, outcome, text)
        ids = source[EXECUTION_ID], source[CREW_TASK_ID]
        for name in (EXECUTION_ID, CREW_TASK_ID):
            path_segment(source[name], name)
        return cls(
            *ids,
            text,
            is_approve,
            source.get("output_sha256"),
            outcome,
            _edited(source, is_approve),
            in_the_middle,
            deadline_of(read(source.get("ask"))),
        )

    @property
    def request(self) -> Json:
        """Return the fields that identify this answer; for a crew, the same as in release 0.1."""
        later = ("outcome", "edited_output")
        known = {name: value for name, value in vars(self).items() if name not in ("in_the_middle", "deadline")}
        return {name: value for name, value in known.items() if name not in later or value is not None}

    @property
    def is_nobodys(self) -> bool:
        """Whether nobody answered in time, so that nothing is sent: the service continues by itself."""
        return self.in_the_middle and self.outcome == EXPIRED

    def is_late(self, now: float) -> bool:
        """Whether the service has given nobody's answer by itself by now."""
        return self.deadline is not None and self.deadline.timestamp() <= now

    @property
    def decision(self) -> str:
        """The decision in one word, for messages."""
        return self.outcome or ("approved" if self.is_approve else "revise")

    @property
    def approves_with_comment(self) -> bool:
        """Whether this approves a crew's draft with a text that does not itself read as an approval."""
        is_of_draft = self.outcome is None and not self.in_the_middle
        return bool(self.is_approve and is_of_draft and not reads_like_approval(self.human_feedback))

    @property
    def edit(self) -> EditedOutput | None:
        """Return the text approved instead of the draft."""
        if self.edited_output is None or self.output_sha256 is None:
            return None
        return EditedOutput(self.edited_output, self.output_sha256)

    def draft(self, seen_before: str | None = None) -> DraftId:
        """Return the answered draft; ``seen_before`` is the hash to use if the answer has none."""
        return DraftId(self.execution_id, self.crew_task_id, self.output_sha256 or seen_before)


def _outcome(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise CrewInvalidInput("outcome must be a non-empty string; nothing was sent")


def _edited(source: Json, is_approve: bool | None) -> str | None:
    """Read an edited draft, which is only valid with an approval of the draft that was shown."""
    edit = source.get("edited_output")
    if edit is None or (isinstance(edit, str) and is_approve and source.get("output_sha256")):
        return edit
    raise CrewInvalidInput("edited_output must be a string and requires approval of a draft; nothing was sent")


def _text_to_send(is_approve: bool | None, outcome: str | None, feedback: str) -> str:
    """Return the text to send with or instead of an outcome; it is never empty.

    A Flow may take empty text as an approval: without a default, it takes the first outcome (observed Flows, answers).
    """
    if outcome is not None:
        return feedback if feedback.strip() else outcome
    assert is_approve is not None
    return feedback_to_send(is_approve, feedback)


def _text(value: Any) -> str:
    if not isinstance(value or "", str):
        raise CrewInvalidInput("human_feedback must be a string; nothing was sent")
    return value or ""
