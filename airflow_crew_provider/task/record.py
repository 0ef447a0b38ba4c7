"""The record of a task instance: the POSTs that it sent, the question that it asked, and how far its run has come.

Each part is typed, and its fields describe its state. `MOVES` is the law: it lists every change, from which states it
is made and to which it leads, and `Part.moved` refuses any other. `task.store` says where the record is kept, and when
it is written: all moves of all parts since the last write in one, before anything else is done. So there is no state
between the end of a question and its decision, between an answer's response and the id to poll, or between the last
question and the next one.

A POST, the newest of its kind::

    nothing ──intend──> intended ──start──> started ──finish──> over
       ^                 │ │  ^                │                  │
       └────withdraw─────┘ └──┴─────intend─────┴──────────────────┘

* ``intend`` keeps the previous POST on record, unless that POST is over or is the one being resent.
* ``withdraw`` restores the previous POST, unless that POST is over and was for a different request.
* ``finish`` also applies to a POST whose id could not be recorded.

The answer that a POST sends, in the same record::

    sending ──take──> sent, or unused: the question had already been answered elsewhere
       └────lose──> lost: no response came, and the answer may still arrive until `SentAnswer.arrives_until`

A question::

    nothing ──ask──> in doubt ──asked──> open ──close──> over
                        │  ^              │ ^              │
                        └──┴──────ask─────┘ └────asked─────┘

* If a try is lost after its question has ended, the next one looks for the answer again, with ``asked``. While it is
  uncertain whether Airflow ever had the question, a try looks for an answer with ``look``.
* An approval or a rejection is stored before its answer is removed to ask again, and does not change the state. After
  the question has ended, it comes from an answer that Airflow delivers again.
* ``send_back`` is a schema's answer; nobody is asked. ``forget`` makes room for the next question of the same task.
  Both lead from any state to nothing, and ``close`` from any to over, since a record may have been lost.

The run of a task that starts, waits, asks and answers::

    nothing ──begin──> working ──ask──> asking ──answer──> answered
                        │ ^  ^            │                    │
                        │ │  └───again────┘                    │
                        │ └───────────────send─────────────────┘
                        └──finish──> over

* ``begin`` switches from any state to another execution. ``again`` continues with the same execution in a later try, or
  in the same one if Airflow runs it again. It polls to find out whether the question is still open. An unsent answer is
  sent first.
* ``finish`` also applies to a run that is over, to which Airflow may deliver its last event again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.models import Json
from airflow_crew_provider.task.attempt import Attempt

OF_SENDER = ("base_url", "principal", "credentials")  # the fields of a POST's sender
KEPT = 20  # the maximum number of earlier POSTs in a record
SEALED_OF_POST = "addresses"  # the only field of a POST that is not plain
UNOPENED = "unopened"  # in a record whose texts cannot be opened: the reason, which is an error for what needs them
_OF_ATTEMPT = tuple(each.name for each in fields(Attempt))


class PostState(StrEnum):
    """The state of a POST."""

    NOTHING = "nothing"  # no POST on record that may have had an effect
    INTENDED = "intended"  # stored before it was sent; the outcome is unknown, unless this try has seen it
    STARTED = "started"  # the response contained an id
    OVER = "over"  # anything it may have started has ended


class AnswerState(StrEnum):
    """The state of an answer."""

    SENDING = "sending"
    SENT = "sent"
    UNUSED = "unused"  # the question had already been answered elsewhere
    LOST = "lost"
    LEFT = "left"  # to the next round, which has the new draft; only in the XCom of a resume, which sent nothing


class QuestionState(StrEnum):
    """The state of a question."""

    NOTHING = "nothing"  # nobody has been asked
    IN_DOUBT = "in doubt"  # a try began to ask, so Airflow may or may not have the question
    OPEN = "open"
    OVER = "over"  # an answer or the deadline ended it


class RunState(StrEnum):
    """The state of a task that does all of it."""

    NOTHING = "nothing"
    WORKING = "working"  # the crew is working
    ASKING = "asking"  # a person is being asked
    ANSWERED = "answered"  # the answer has not been sent yet, according to the record
    OVER = "over"


def _from_any(states: type[StrEnum], to: StrEnum) -> dict[Any, tuple[Any, ...]]:
    return dict.fromkeys(states, (to,))


# For each kind of state: the moves, and to which states each leads from which.
MOVES: dict[type[StrEnum], dict[str, Mapping[Any, tuple[Any, ...]]]] = {
    PostState: {
        "intend": _from_any(PostState, PostState.INTENDED),
        "withdraw": {PostState.INTENDED: tuple(PostState)},  # to the state of the previous POST
        "start": {PostState.INTENDED: (PostState.STARTED,)},
        # A task may also end after Airflow has lost its record.
        "finish": {**_from_any(PostState, PostState.OVER), PostState.NOTHING: (PostState.NOTHING,)},
    },
    AnswerState: {
        "take": {AnswerState.SENDING: (AnswerState.SENT, AnswerState.UNUSED)},
        "lose": {AnswerState.SENDING: (AnswerState.LOST,)},
    },
    QuestionState: {
        "ask": _from_any(QuestionState, QuestionState.IN_DOUBT),
        "look": {QuestionState.IN_DOUBT: (QuestionState.IN_DOUBT,)},
        "asked": _from_any(QuestionState, QuestionState.OPEN),
        "send_back": _from_any(QuestionState, QuestionState.NOTHING),
        "forget": _from_any(QuestionState, QuestionState.NOTHING),
        "close": _from_any(QuestionState, QuestionState.OVER),
    },
    RunState: {
        "begin": _from_any(RunState, RunState.WORKING),
        "again": {
            **dict.fromkeys((RunState.WORKING, RunState.ASKING, RunState.OVER), (RunState.WORKING,)),
            RunState.ANSWERED: (RunState.ANSWERED,),
        },
        "ask": {RunState.WORKING: (RunState.ASKING,)},
        "answer": {RunState.ASKING: (RunState.ANSWERED,)},
        "send": {RunState.ANSWERED: (RunState.WORKING,)},
        "finish": dict.fromkeys((RunState.WORKING, RunState.OVER), (RunState.OVER,)),
    },
}
Moved = TypeVar("Moved", bound="Part")


class Part:
    """A part of the record, a dataclass; ``noun`` names it in messages."""

    noun: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_json(cls, stored: Json) -> Self:
        """Read it from this release or an earlier one: missing fields get their defaults, unknown ones are ignored."""
        return cls(**{each.name: stored[each.name] for each in fields(cls) if stored.get(each.name) is not None})

    def to_json(self) -> Json:
        """Return the JSON to store; empty fields are omitted."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def state(self) -> StrEnum:
        """The state that the fields describe."""
        raise NotImplementedError

    def moved(self, move: str, new: Moved) -> Moved:
        """Return the part after a move.

        :raises RuntimeError: `MOVES` does not allow it in this state
        """
        if new.state not in MOVES[type(self.state)][move].get(self.state, ()):
            raise RuntimeError(f"{self.noun} that is {self.state} cannot become {new.state} by {move}")
        return new


# Each part reads what earlier releases stored: missing fields get their defaults. The fields named by `PLAIN_OF_...`
# contain no texts and stay readable; all others are sealed. Of a POST, only the addresses of files are.


@dataclass(frozen=True)
class StoredPost(Part):
    """The stored record of a POST. Fields with their default values are not stored.

    :param fingerprint: the request's fingerprint; empty if there is no POST
    :param sender: from `Sender.as_dict`; its keys are stored alongside the other fields
    :param attempt: the try that sent it last, from `Attempt.as_dict`; stored in the same way
    :param idempotency_key: the key it was sent with, if `keyed`
    :param keyed: whether the key was sent; None in records from releases up to 0.2.0, which did not store it
    :param first_at: when it was first sent, in epoch seconds
    :param intended_at: when it was last sent, in epoch seconds
    :param added: fields that the operator added
    :param addresses: of its files, as it was sent, by input name; empty if they cannot be opened. Those of all POSTs
        on record are stored in one field, by key, which is sealed: an address may contain a signature
    :param inbox: its registration with the inbox
    :param kickoff_id: the id in the response
    :param view: the path of the execution's page, if the response contains it
    :param cleared: whether a user cleared the task afterwards
    :param finished: whether the execution is known to have ended
    :param over_budget: a description of the limits that the execution exceeded
    :param timed_out: the message for the timeout after which it was to be stopped, unless it was certainly not stopped
    :param unknown_since: when the execution became unknown to the service, in epoch seconds
    :param more: fields from the package that sent it, and from other releases; stored in the same way
    :param earlier: earlier POSTs that may have had an effect, newest first
    """

    fingerprint: str = ""
    sender: Json = field(default_factory=dict)
    attempt: Json = field(default_factory=dict)
    idempotency_key: str = ""
    keyed: bool | None = None
    first_at: float = 0.0
    intended_at: float = 0.0
    added: Json | None = None
    addresses: Json = field(default_factory=dict)
    inbox: Json | None = None
    kickoff_id: str | None = None
    view: str | None = None
    cleared: bool = False
    finished: bool = False
    over_budget: str = ""
    timed_out: str = ""
    unknown_since: float | None = None
    more: Json = field(default_factory=dict)
    earlier: tuple[StoredPost, ...] = ()

    noun: ClassVar[str] = "A POST"

    @classmethod
    def from_json(cls, stored: Json) -> StoredPost:
        """Read a record from this release or an earlier one; missing fields get their defaults."""
        addresses = stored.get(SEALED_OF_POST) or {}
        return cls(
            addresses=addresses.get(stored.get("idempotency_key")) or {},
            sender={name: stored[name] for name in OF_SENDER if name in stored},
            attempt={name: stored[name] for name in _OF_ATTEMPT if name in stored},
            more={name: value for name, value in stored.items() if name not in _NAMED},
            earlier=tuple(cls.from_json({**post, SEALED_OF_POST: addresses}) for post in stored.get("earlier") or ()),
            **{name: stored[name] for name in _DEFAULTS if stored.get(name) is not None},
        )

    def to_json(self) -> Json:
        """Return the JSON to store; empty if nothing is known."""
        addresses = {post.idempotency_key: post.addresses for post in (self, *self.earlier) if post.addresses}
        return {
            **self._fields(),
            **({SEALED_OF_POST: addresses} if addresses else {}),
            **({"earlier": [post._fields() for post in self.earlier]} if self.earlier else {}),
        }

    def _fields(self) -> Json:
        known = {name: getattr(self, name) for name in _DEFAULTS if getattr(self, name) != _DEFAULTS[name]}
        return {**self.more, **known, **self.sender, **self.attempt}

    @property
    def state(self) -> PostState:
        """The state of the POST."""
        if not self.fingerprint:
            return PostState.NOTHING
        if self.finished:
            return PostState.OVER
        return PostState.STARTED if self.kickoff_id else PostState.INTENDED

    @property
    def unsettled(self) -> tuple[StoredPost, ...]:
        """This POST and the earlier ones that may still have an effect, newest first."""
        open_ones = (PostState.INTENDED, PostState.STARTED)
        return tuple(replace(post, earlier=()) for post in (self, *self.earlier) if post.state in open_ones)


_KEPT_APART = ("sender", "attempt", "more", "earlier", "addresses")
_DEFAULTS = {each.name: each.default for each in fields(StoredPost) if each.name not in _KEPT_APART}
_NAMED = {*_DEFAULTS, *_OF_ATTEMPT, *OF_SENDER, "earlier", SEALED_OF_POST, UNOPENED}


@dataclass(frozen=True)
class SentAnswer(Part):
    """The fields of a POST's record that exist only for an answer.

    :param draft_sha256: the hash of the answered draft
    :param patience: how many seconds the service has to respond
    :param sends_hash: whether the answer contains the hash, so that the service refuses it for another draft
    :param leaves_out_comment: whether `APPROVAL` was sent instead of a comment that the deployment would misread
    :param open_round: the number of the question, if the same text may wait again after this answer
    :param execution_id: the answered execution; None in records from releases up to 0.2.0, like the next two
    :param crew_task_id: the service's id of the question
    :param decision: the answer in one word
    :param told: the try that reported that this answer may still arrive, so that a clear after it allows another
    :param moved_on: whether the execution has asked its next question, so that this one is no longer open
    :param intended_at: when it was sent, in epoch seconds
    :param lost_at: when the response was given up as lost, in epoch seconds
    :param resumed_at: when the service accepted it, in epoch seconds
    :param unused: whether the service reported that the question had already been answered
    """

    draft_sha256: str | None = None
    patience: float = 0.0
    sends_hash: bool = False
    leaves_out_comment: bool = False
    open_round: int | None = None
    execution_id: str | None = None
    crew_task_id: str | None = None
    decision: str | None = None
    told: Json | None = None
    moved_on: bool = False
    intended_at: float = 0.0
    lost_at: float | None = None
    resumed_at: float | None = None
    unused: bool = False

    noun: ClassVar[str] = "An answer"

    @classmethod
    def of(cls, post: StoredPost) -> SentAnswer:
        """Read the answer's fields from a POST's record."""
        return cls.from_json({**post.more, "intended_at": post.intended_at})

    @property
    def draft(self) -> DraftId:
        """The identity of the answered draft."""
        return DraftId(self.execution_id or "", self.crew_task_id or "", self.draft_sha256)

    @property
    def state(self) -> AnswerState:
        """The state of the answer."""
        if self.resumed_at is not None:
            return AnswerState.UNUSED if self.unused else AnswerState.SENT
        return AnswerState.SENDING if self.lost_at is None else AnswerState.LOST

    def arrives_until(self, patience: float, lag: float) -> float:
        """Return the time until which an answer whose response was lost may still arrive and show in the status.

        :param patience: the connection's current value, which may have changed since
        :param lag: how many seconds a status may lag behind a POST
        """
        longest = max(patience, self.patience)
        lost_at = self.intended_at + longest if self.lost_at is None else self.lost_at
        return lost_at + longest + lag

    def taken(self, at: float, *, unused: bool = False) -> Json:
        """Return the fields to record when the service has accepted the answer, or reported it as unused."""
        noted: Json = {"resumed_at": at, **({"unused": True} if unused else {})}
        self.moved("take", replace(self, **noted))
        return noted

    def lost(self, at: float) -> Json:
        """Return the field to record when the response to the answer was lost."""
        self.moved("lose", replace(self, lost_at=at))
        return {"lost_at": at}


class Rejected(NamedTuple):
    """A text that a person has rejected, without the crew's task, whose id may change with each question.

    In JSON, it is a list.
    """

    execution_id: str
    output_sha256: str | None

    @classmethod
    def of(cls, draft: DraftId) -> Rejected:
        """Return what a rejection of this draft rejects."""
        return cls(draft.execution_id, draft.output_sha256)


@dataclass(frozen=True)
class StoredQuestion(Part):
    """The stored record of a question. Empty fields are omitted.

    :param attempt: the try that asked, from `Attempt.as_dict`; its keys are stored alongside the others
    :param draft: the draft that was shown
    :param terms: the form's arguments, which determine whether an answer is valid
    :param since: when the question about this draft was first asked, ISO 8601
    :param until: its deadline, ISO 8601
    :param asked_at: when it was last asked
    :param doubt: whether it is unknown if Airflow has the question
    :param asked_by: the id of the attempt that owns the form, from Airflow 3.4 on
    :param notified: whether people were notified: ``begun`` or ``done``
    :param told: for each escalation step, whether its people were notified
    :param approvals: the approvals so far
    :param rejected: the texts that people have rejected in this DAG run
    :param sent_back: the draft that a schema sent back
    :param shown: the content shown, stored during a lookup
    :param once_more: whether this is the second lookup
    :param over: whether an answer or the deadline ended it
    """

    attempt: Json = field(default_factory=dict)
    draft: DraftId | None = None
    terms: Json | None = None
    since: str | None = None
    until: str | None = None
    asked_at: str | None = None
    doubt: bool = False
    asked_by: str | None = None
    notified: str | None = None
    told: Json = field(default_factory=dict)
    approvals: list[Json] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    sent_back: DraftId | None = None
    shown: Json | None = None
    once_more: bool = False
    over: bool = False

    noun: ClassVar[str] = "A question"

    @classmethod
    def from_json(cls, stored: Json) -> StoredQuestion:
        """Read a record from this release or an earlier one; unknown fields are ignored."""
        known = {name: stored[name] for name in _FIELDS if stored.get(name)}
        known |= {name: DraftId(*known[name]) for name in ("draft", "sent_back") if name in known}
        rejected = known.pop("rejected", [])
        if rejected is True:  # development versions of 0.2.0: the draft shown was rejected
            rejected = [Rejected.of(known["draft"])]
        known["rejected"] = [Rejected(*each) for each in rejected]
        return cls(attempt={name: stored[name] for name in _OF_ATTEMPT if name in stored}, **known)

    def to_json(self) -> Json:
        """Return the JSON to store; empty if nothing is known."""
        known = asdict(self)
        known |= {name: list(known[name]) for name in ("draft", "sent_back") if known[name]}
        known["rejected"] = [list(each) for each in self.rejected]
        return {**known.pop("attempt"), **{name: value for name, value in known.items() if value}}

    @property
    def state(self) -> QuestionState:
        """The state of the question."""
        if self.over:
            return QuestionState.OVER
        if self.doubt:
            return QuestionState.IN_DOUBT
        return QuestionState.NOTHING if self.draft is None else QuestionState.OPEN

    def anew(self, attempt: Attempt, **known: Any) -> StoredQuestion:
        """Return a fresh record that keeps the facts about drafts, which stay valid until a new DAG run."""
        return StoredQuestion(attempt.as_dict(), sent_back=self.sent_back, rejected=self.rejected, **known)


_FIELDS = tuple(each.name for each in fields(StoredQuestion) if each.name != "attempt")
PLAIN_OF_QUESTION = (
    *(*_OF_ATTEMPT, "draft", "since", "until", "asked_at", "doubt", "asked_by", "notified", "rejected"),
    *("sent_back", "once_more", "over"),
)


@dataclass(frozen=True)
class StoredRun(Part):
    """The progress of a task that starts, waits, asks and answers. Empty fields are omitted.

    :param attempt: the try that began or continued with the execution, from `Attempt.as_dict`
    :param execution_id: the execution's first id
    :param kickoff_id: the id to poll
    :param inbox: the address at which its webhooks are stored
    :param since: the time at which the crew started working, in epoch seconds; None while it is not working
    :param worked: the number of seconds it worked before that, in this try
    :param number: the last question's number
    :param draft: the draft that the last question is about, until the question is answered
    :param review: the answer to send
    :param decisions: all reviews of this task's executions, without drafts
    :param answered: the draft that was answered last, which a status may still show
    :param over: whether the execution has completed
    :param earlier: the number of questions that this task's earlier executions asked, except those in `continues`
    :param continues: the ids of the failed executions that this one continues, whose questions it counts as its own
    """

    execution_id: str = ""
    kickoff_id: str = ""
    attempt: Json = field(default_factory=dict)
    inbox: Json | None = None
    since: float | None = None
    worked: float = 0.0
    number: int = 0
    draft: list[Any] | None = None
    review: Json | None = None
    decisions: list[Json] = field(default_factory=list)
    answered: Json | None = None
    over: bool = False
    earlier: int = 0
    continues: list[str] = field(default_factory=list)

    noun: ClassVar[str] = "A task"

    @property
    def form(self) -> int:
        """The number of the last form; unique within the task, because a page may stay open after a clear."""
        return self.earlier + self.number

    @property
    def state(self) -> RunState:
        """The state of the task."""
        if not self.execution_id:
            return RunState.NOTHING
        if self.over:
            return RunState.OVER
        if self.since is not None:
            return RunState.WORKING
        return RunState.ASKING if self.draft else RunState.ANSWERED


PLAIN_OF_RUN = (
    *("execution_id", "kickoff_id", "attempt", "inbox", "since", "worked", "number", "draft", "answered", "over"),
    *("earlier", "continues"),
)
