"""The record that a task stores before and after each POST, so that a POST is sent at most once.

The service may have acted on any POST, even one without a response. So a task stores its intent, and checks that it was
stored, before it sends anything. These are the states of the newest POST, according to the record, and the moves
between them (`MOVES`)::

    nothing ──intend──> intended ──start──> started ──finish──> over
       ^                 │ │  ^                │                  │
       └────withdraw─────┘ └──┴─────intend─────┴──────────────────┘

* ``intend`` keeps the previous POST on record, unless that POST is over or is the one being resent.
* ``withdraw`` restores the previous POST, unless that POST is over and was for a different request.
* ``finish`` also applies to a POST whose id could not be recorded. A clear does not change the state, but the next try
  then finds the POST as ``ANOTHER`` (see below).

The next try finds one of four situations (`Earlier`)::

    NOTHING   no POST, or one that certainly did nothing: send
    STARTED   a POST for this request, with an id: continue with that execution
    UNKNOWN   a POST without a response: resend it only with its key, or if a user accepts a second execution
    ANOTHER   a POST from before a clear, or for another request: it may have had an effect; kept until it is over

A key is only reused for an identical body. Two requests are the same if their fingerprints match. The record also keeps
the fields that the operator adds, which are not part of the fingerprint. Neither contains a secret.

Usage, in this order::

    record = PostRecord(store_of(context, NAME), Attempt.of(context, self))  # reads the record or raises an error
    record.begin_try()                                  # at the start of a try
    record.fingerprint = fingerprint(request)           # identifies the user's request; no secrets or added fields
    record.earlier                                      # NOTHING, STARTED, UNKNOWN or ANOTHER; see `Earlier`
    record.changes(sender)                              # changes since it was sent; if any, do not resend it
    key = record.intend(sender, added=added, **more)    # right before the POST; stored and verified
    record.added                                        # fields to add to this POST; the original ones if resent
    record.record_id(kickoff_id)                        # right after the POST
    record.withdraw_if_refused(error)                   # or, after an error; True if this POST certainly did nothing

Earlier POSTs that may still have an effect stay on record (`StoredPost.unsettled`), up to `KEPT` of them. Those that
are over or certainly did nothing are removed.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from airflow_crew_provider import exceptions
from airflow_crew_provider.client.deployment import CrewConnection
from airflow_crew_provider.inbox.messages import WORD
from airflow_crew_provider.models import Json, Webhooks, canonical_json
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.store import Store, TaskStateUnavailable, check_move

log = logging.getLogger(__name__)

ROUNDS = 50_000
NAMES = {
    "base_url": "the base URL",
    "principal": "the token (or an extra header)",
    "credentials": "the credential of a webhook (or the inbox's URL)",
}


@dataclass(frozen=True)
class Sender:
    """The sender of a POST. It contains only fingerprints of secrets, so it can be stored in a record.

    :param base_url: the deployment's base URL
    :param principal: a fingerprint of the token and the extra headers
    :param credentials: a fingerprint of the credentials that the connection adds to the request's webhooks
    """

    base_url: str
    principal: str
    credentials: str

    @classmethod
    def of(
        cls, connection: CrewConnection, webhooks: Webhooks | str | None = None, inbox_url: str | None = None
    ) -> Sender:
        """Return the sender of a request with these webhooks, whose credentials must already have been looked up.

        :param inbox_url: the inbox URL for a resent request, if known; otherwise, the connection's
        """
        deployment = connection.deployment
        added = (inbox_url or connection.inbox_url) if webhooks == WORD else _credentials(webhooks)
        secrets = {"token": deployment.token, "headers": sorted(deployment.headers)}
        return cls(deployment.base_url, *(_slow_hash(each, deployment.base_url) for each in (secrets, added)))

    def as_dict(self) -> Json:
        """Return the sender as stored in a record."""
        return asdict(self)

    def changes(self, kept: Json) -> list[str]:
        """List the differences from a stored `as_dict`; a missing value counts as changed."""
        return [NAMES[name] for name, value in self.as_dict().items() if kept.get(name) != value]

    def is_another(self, kept: Json) -> bool:
        """Return whether the principal or the base URL differs from the stored one; ignore webhook credentials."""
        return any(getattr(self, name) != kept.get(name) for name in ("base_url", "principal"))


def _credentials(webhooks: Webhooks | str | None) -> list[str | None]:
    human = webhooks.human_input if isinstance(webhooks, Webhooks) else None
    return [human.token, human.username, human.password] if human else []


def _slow_hash(secrets: object, salt: str) -> str:
    """Hash slowly, so that a weak token cannot be brute-forced from a record."""
    text = canonical_json(secrets).encode("utf-8", "surrogatepass")
    return hashlib.pbkdf2_hmac("sha256", text, salt.encode(), ROUNDS, 16).hex()


# --- storage ---


# Maximum number of earlier POSTs in a record.
KEPT = 20
LOST = "lost"  # the fingerprint of a POST of which only the witness is left: the fingerprint of no request


class State(StrEnum):
    """The state of a POST, according to its record."""

    NOTHING = "nothing"  # no POST on record that may have had an effect
    INTENDED = "intended"  # stored before it was sent; the outcome is unknown, unless this try has seen it
    STARTED = "started"  # the response contained an id
    OVER = "over"  # anything it may have started has ended


_ALL = tuple(State)
MOVES: dict[str, dict[State, tuple[State, ...]]] = {
    "intend": dict.fromkeys(_ALL, (State.INTENDED,)),
    "withdraw": {State.INTENDED: _ALL},  # to the state of the previous POST
    "start": {State.INTENDED: (State.STARTED,)},
    # A task may also end after Airflow has lost its record.
    "finish": {**dict.fromkeys(_ALL, (State.OVER,)), State.NOTHING: (State.NOTHING,)},
}


@dataclass(frozen=True)
class StoredPost:
    """The stored record of a POST. Fields with their default values are not stored.

    :param fingerprint: the request's fingerprint; empty if there is no POST
    :param sender: from `Sender.as_dict`; its keys are stored alongside the other fields
    :param attempt: the try that sent it last, from `Attempt.as_dict`; stored in the same way
    :param idempotency_key: the key it was sent with, if `keyed`
    :param keyed: whether the key was sent; None in records from releases up to 0.2.0, which did not store it
    :param first_at: when it was first sent, in epoch seconds
    :param intended_at: when it was last sent, in epoch seconds
    :param added: fields that the operator added
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

    @classmethod
    def from_json(cls, kept: Json) -> StoredPost:
        """Read a record from this release or an earlier one; missing fields get their defaults."""
        return cls(
            sender={name: kept[name] for name in NAMES if name in kept},
            attempt={name: kept[name] for name in _OF_ATTEMPT if name in kept},
            more={name: value for name, value in kept.items() if name not in _NAMED},
            earlier=tuple(cls.from_json(post) for post in kept.get("earlier") or ()),
            **{name: kept[name] for name in _DEFAULTS if kept.get(name) is not None},
        )

    def to_json(self) -> Json:
        """Return the JSON to store; empty if nothing is known."""
        known = {name: getattr(self, name) for name in _DEFAULTS if getattr(self, name) != _DEFAULTS[name]}
        earlier = {"earlier": [post.to_json() for post in self.earlier]} if self.earlier else {}
        return {**self.more, **known, **self.sender, **self.attempt, **earlier}

    @property
    def state(self) -> State:
        """The state of the POST."""
        if not self.fingerprint:
            return State.NOTHING
        if self.finished:
            return State.OVER
        return State.STARTED if self.kickoff_id else State.INTENDED

    @property
    def unsettled(self) -> tuple[StoredPost, ...]:
        """This POST and the earlier ones that may still have an effect, newest first."""
        posts = (self, *self.earlier)
        return tuple(replace(post, earlier=()) for post in posts if post.state in (State.INTENDED, State.STARTED))

    def moved(self, move: str, new: StoredPost) -> StoredPost:
        """Return the record after a move.

        :raises RuntimeError: the move is not one of `MOVES`
        """
        check_move("POST", self.state, move, new.state, MOVES[move].get(self.state, ()))
        return new


_OF_ATTEMPT = tuple(each.name for each in fields(Attempt))
_KEPT_APART = ("sender", "attempt", "more", "earlier")
_DEFAULTS = {each.name: each.default for each in fields(StoredPost) if each.name not in _KEPT_APART}
_NAMED = {*_DEFAULTS, *_OF_ATTEMPT, *NAMES, "earlier"}


# --- the record, as a try uses it ---


class Earlier(StrEnum):
    """The situation that earlier tries of the same task have left on record."""

    NOTHING = "nothing"
    STARTED = "started"  # an earlier try sent a POST and recorded the id
    UNKNOWN = "unknown"  # an earlier try sent a POST but never recorded a response
    ANOTHER = "another"  # a POST was sent before the task was cleared, or for another request


class PostRecord:
    """The record of one task instance's POSTs; the module's docstring shows how to use it.

    :param memory: stores the record between tries
    :param attempt: the current try
    :param fingerprint: identifies the request; a different fingerprint means a different request
    :param clears_count: whether a clear makes an earlier POST one for another request
    """

    def __init__(self, memory: Store, attempt: Attempt, fingerprint: str = "", *, clears_count: bool = True) -> None:
        self.memory, self.attempt, self.fingerprint = memory, attempt, fingerprint
        self.newest = self._stored = StoredPost.from_json(memory.recall())
        self._resent = False
        self._followed: StoredPost | None = None  # the previous POST, if its execution has finished
        kept = self.newest.attempt
        if clears_count and attempt.relation_to(kept) is Relation.CLEAR:
            # Store this at once: the next try needs it if this one ends early.
            self.keep(replace(self.newest, attempt={**kept, **_generation(attempt)}, cleared=True))

    def testify(self, kickoff_id: str) -> None:
        """Name the execution in a place of its own, in case the record is lost (see `task.store`)."""
        newest = self.newest
        witness = {"fingerprint": LOST, "kickoff_id": kickoff_id, "first_at": newest.first_at}
        self.memory.testify({**witness, **newest.sender, **newest.attempt})

    def begin_try(self) -> None:
        """Forget a record of a deleted DAG run with the same id; call this first in a try."""
        kept = self.newest.attempt
        self.attempt.tell_doubt(kept)
        if kept and self.attempt.relation_to(kept) is Relation.OTHER_RUN:
            log.warning("This task's record is from a deleted DAG run with the same id, so it is ignored")
            self.newest = self._stored = StoredPost()
            self.memory.forget()

    @property
    def earlier(self) -> Earlier:
        """The situation that this try found."""
        if self.newest.state is State.NOTHING:
            return Earlier.NOTHING
        if self.cleared:
            return Earlier.ANOTHER
        if not self.kickoff_id:
            return Earlier.UNKNOWN
        return Earlier.STARTED if self.same_request else Earlier.ANOTHER

    @property
    def cleared(self) -> bool:
        """Whether a user cleared the task after the recorded POST."""
        return self.newest.cleared

    @property
    def same_request(self) -> bool:
        """Whether the record belongs to this request."""
        return self.newest.state is not State.NOTHING and self.newest.fingerprint == self.fingerprint

    @property
    def kickoff_id(self) -> str | None:
        """The recorded id."""
        return self.newest.kickoff_id

    def changes(self, sender: Sender) -> list[str]:
        """List the changes since the POST was sent: token, base URL, webhook credentials."""
        return sender.changes(self.newest.sender)

    def sent_by_another(self, sender: Sender) -> bool:
        """Return whether the POST was sent with another token or to another base URL, so that a resend would differ."""
        return sender.is_another(self.newest.sender)

    @property
    def added(self) -> Json:
        """The fields that the operator added to the POST; empty in a record from release 0.1."""
        return self.newest.added or {}

    def was_keyed(self, *, keyed: bool) -> bool:
        """Return whether the service knows the newest POST by its key, so that it can be resent with that key.

        :param keyed: whether the service currently honours keys
        """
        # Releases up to 0.2.0 did not record this but announced a resend with the key, so `keyed` decides for them.
        return keyed and self.newest.keyed is not False

    def added_before(self, *, keyed: bool) -> Json:
        """Return the fields added to a POST if it may be resent, because they must not change; empty if not."""
        return self.added if self._may_be_resent(keyed=keyed) else {}

    def _may_be_resent(self, *, keyed: bool) -> bool:
        """Return whether this request was sent with a key and its response was never recorded."""
        return self.was_keyed(keyed=keyed) and self.earlier is Earlier.UNKNOWN and self.same_request

    def intend(self, sender: Sender, *, keyed: bool = True, added: Json | None = None, **more: Any) -> str:
        """Record that the POST is about to be sent; return its idempotency key, unchanged for a resend.

        :param keyed: whether the key is sent; if it is not, or was not before, a second POST counts as a new one
        :param added: fields to add to a new POST; a resent one repeats its original ones
        :param more: further fields for the record
        """
        self._resent = self._may_be_resent(keyed=keyed) and not self.changes(sender)
        now, before = time.time(), self.newest
        self._followed = before if before.state is State.OVER and self.earlier is Earlier.STARTED else None
        intended = StoredPost(
            fingerprint=self.fingerprint,
            sender=sender.as_dict(),
            attempt=self.attempt.as_dict(),
            idempotency_key=before.idempotency_key if self._resent else str(uuid.uuid4()),
            keyed=keyed,
            first_at=(before.first_at or now) if self._resent else now,
            intended_at=now,
            added=before.added if self._resent else added or None,
            more=more,
            earlier=before.earlier if self._resent else before.unsettled[:KEPT],
        )
        moved = before.moved("intend", intended)
        self._check_alone()
        self._store(moved)
        # Only now, because the POST must not be sent if the record cannot be stored.
        self.newest = moved
        return moved.idempotency_key

    def _check_alone(self) -> None:
        """Raise an error if another try, which is still running or was cleared, has sent something in the meantime."""
        stored, before = StoredPost.from_json(self.memory.recall()), self._stored
        if (stored.idempotency_key, stored.kickoff_id) != (before.idempotency_key, before.kickoff_id):
            self.newest = stored
            raise TaskStateUnavailable("Another try of this task has since changed its record")

    def keep(self, newest: StoredPost) -> None:
        """Store the current state of the newest POST; keep it in memory even if storing it fails."""
        self.newest = newest
        self._store(newest)

    def _store(self, post: StoredPost) -> None:
        self.memory.keep(post.to_json())
        self._stored = post

    def note(self, **more: Any) -> None:
        """Store further fields from the package that sent the POST."""
        self.keep(replace(self.newest, more={**self.newest.more, **more}))

    def record_id(self, kickoff_id: str, view: str | None = None, **more: Any) -> None:
        """Record the id from the response, and the path of the execution's page.

        :param more: further fields for the record
        """
        started = replace(self.newest, kickoff_id=kickoff_id, view=view, more={**self.newest.more, **more})
        self.keep(self.newest.moved("start", started))

    def mark_registered(self, inbox: Json) -> None:
        """Record the inbox registration that belongs to the POST."""
        self.keep(replace(self.newest, inbox=inbox))

    def mark_over_budget(self, passed: str) -> None:
        """Record the limits that the execution exceeded, so that a retry starts nothing."""
        self.keep(replace(self.newest, over_budget=passed))

    def mark_timed_out(self, message: str) -> None:
        """Record the timeout after which the execution is being stopped; empty if it was certainly not stopped."""
        if self.newest.timed_out != message:
            self.keep(replace(self.newest, timed_out=message))

    def mark_unknown_since(self, since: float | None) -> None:
        """Record when the execution became unknown to the service; None if the service knows it."""
        self.keep(replace(self.newest, unknown_since=since))

    def mark_finished(self) -> None:
        """Record that the execution has ended."""
        self.keep(self._finished())

    def _finished(self) -> StoredPost:
        return self.newest.moved("finish", replace(self.newest, finished=True))

    def adopt(self, kickoff_id: str) -> None:
        """Record the execution that an earlier POST started, which makes the refused POST unnecessary."""
        before = self._previous()
        if before.state is State.INTENDED and before.fingerprint == self.fingerprint:
            self.newest = replace(self.newest, earlier=before.earlier)
        self.record_id(kickoff_id)

    def _previous(self) -> StoredPost:
        """Return the record without its newest POST."""
        before, *rest = self.newest.earlier or (StoredPost(),)
        return replace(before, earlier=tuple(rest))

    def withdraw_if_refused(self, error: exceptions.CrewError) -> bool:
        """Withdraw the intent if the POST certainly did nothing; return whether it was withdrawn.

        This proves nothing about other POSTs (see `unsettled`), or about a resent POST, which the service or a gateway
        may refuse before looking up the key.
        """
        if self._resent or not isinstance(error, exceptions.REFUSED):
            return False
        self.newest = self.newest.moved("withdraw", self._followed or self._previous())
        try:
            if self.newest.state is State.NOTHING:
                self.memory.forget()
            else:
                self.memory.keep(self.newest.to_json())
            self._stored = self.newest
        except TaskStateUnavailable as problem:
            # The intent stays on record: the next try reports an unknown outcome, but sends nothing twice.
            log.warning("%s", problem)
        return True

    def close(self, *, finished: bool = False) -> None:
        """Record that the task has ended; call this last, before the task succeeds.

        :param finished: whether the execution has ended too
        """
        if finished:
            self.newest = self._finished()
        self.memory.close(self.newest.to_json())


def _generation(attempt: Attempt) -> Json:
    """Return the fields that distinguish a clear from a retry; equal for all tries between two clears."""
    kept = attempt.as_dict()
    del kept["try_number"]
    return kept


def fingerprint(request: Json) -> str:
    """Return the hash of a request's content."""
    return hashlib.sha256(canonical_json(request).encode("utf-8", "surrogatepass")).hexdigest()
