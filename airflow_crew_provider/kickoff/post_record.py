"""At most once: what a task records before and after a POST, and how the next try reads it.

The service may have acted on every POST that was sent, whether an answer came or not. So the intent is stored, and
proven to be stored, before anything is sent. Where the newest POST stands, as far as a record can tell, and its moves
(`MOVES`)::

    nothing ──intend──> intended ──start──> started ──finish──> over
       ^                 │ │  ^                │                  │
       └────withdraw─────┘ └──┴─────intend─────┴──────────────────┘

* ``withdraw`` leads back to where the POST before it stands; any other new POST keeps that one on record.
* ``finish`` also ends a POST whose id could not be recorded. A clear moves nothing: it makes the POST another's.

What the next try finds is one of four things (`Earlier`)::

    NOTHING   no POST, or one that certainly did nothing: send
    DONE      a POST of this request, with an id: go on with that
    UNKNOWN   a POST without an answer: send again only under its key, or if a user accepts a second execution
    ANOTHER   a POST before a clear, or of another request: it may have done something, and is kept until it is over

A key is used again for the very same body only. Two requests are the same if their fingerprints are; what the operator
adds is kept in the record and is no part of a fingerprint, and neither holds a secret.

How to use it, in this order::

    record = PostRecord(task_state_of(context, NAME), Attempt.of(context, self))   # reads; raises if it cannot
    record.forget_deleted_run()                         # where a try begins
    record.fingerprint = fingerprint(request)           # names what the user asks for; no secrets, nothing added
    record.earlier                                      # NOTHING, DONE, UNKNOWN or ANOTHER; see `Earlier`
    record.changes(sender)                              # what has changed since it was sent: never resend then
    key = record.intend(sender, added=added, **more)    # right before the POST; stored and proven to be stored
    record.added                                        # what to add to this POST: of a resent one what it had first
    record.record_id(kickoff_id)                        # right after it
    record.withdraw_if_refused(error)                   # or: whether this POST did nothing, for certain

POSTs before the newest of which something may have come stay on record (`PostRecord.posts`). Only what is certain to
have done nothing is ever removed.
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
from airflow_crew_provider.compat.task_state import Attempt, TaskState, TaskStateUnavailable
from airflow_crew_provider.inbox.messages import WORD
from airflow_crew_provider.models import Json, Webhooks, canonical_json

log = logging.getLogger(__name__)

ROUNDS = 50_000
NAMES = {
    "base_url": "the base URL",
    "principal": "the token (or an extra header)",
    "credentials": "the credential of a webhook (or the inbox's URL)",
}


@dataclass(frozen=True)
class Sender:
    """The sender of a POST. Secrets are in it as fingerprints only, so it can be kept in a record.

    :param base_url: of the deployment
    :param principal: a fingerprint of the token and the extra headers
    :param credentials: a fingerprint of what the connection adds to the request's webhooks
    """

    base_url: str
    principal: str
    credentials: str

    @classmethod
    def of(
        cls, connection: CrewConnection, webhooks: Webhooks | str | None = None, inbox_url: str | None = None
    ) -> Sender:
        """Return the sender of a request with these webhooks; their credentials are looked up already.

        :param inbox_url: of a request that is sent again, where it is known; else the connection's
        """
        deployment = connection.deployment
        added = inbox_url or connection.inbox_url if webhooks == WORD else _credentials(webhooks)
        secrets = {"token": deployment.token, "headers": sorted(deployment.headers)}
        return cls(deployment.base_url, *(_slow_hash(each, deployment.base_url) for each in (secrets, added)))

    def as_dict(self) -> Json:
        """Return what a record keeps of this sender."""
        return asdict(self)

    def changes(self, kept: Json) -> list[str]:
        """Name what is not as `as_dict` returned it then; what was not kept counts as changed."""
        return [NAMES[name] for name, value in self.as_dict().items() if kept.get(name) != value]

    def is_another(self, kept: Json) -> bool:
        """Whether the principal or the base URL is not as it was kept; the credential of a webhook may be."""
        return any(getattr(self, name) != kept.get(name) for name in ("base_url", "principal"))


def _credentials(webhooks: Webhooks | str | None) -> list[str | None]:
    human = webhooks.human_input if isinstance(webhooks, Webhooks) else None
    return [human.token, human.username, human.password] if human else []


def _slow_hash(secrets: object, salt: str) -> str:
    """Hash slowly, so that a weak token cannot be guessed from a record by trying many."""
    text = canonical_json(secrets).encode("utf-8", "surrogatepass")
    return hashlib.pbkdf2_hmac("sha256", text, salt.encode(), ROUNDS, 16).hex()


# --- what is stored ---


# How many earlier POSTs a record names at most.
KEPT = 20


class State(StrEnum):
    """Where a POST stands, as far as its record can tell."""

    NOTHING = "nothing"  # none is on record of which something may have come
    INTENDED = "intended"  # stored before it was sent; unless this try knows better, its outcome is unknown
    STARTED = "started"  # answered with an id
    OVER = "over"  # what it may have started is known to have ended


_ALL = tuple(State)
MOVES: dict[str, dict[State, tuple[State, ...]]] = {
    "intend": dict.fromkeys(_ALL, (State.INTENDED,)),
    "withdraw": {State.INTENDED: _ALL},  # to where the POST before it stands
    "start": {State.INTENDED: (State.STARTED,)},
    # A task whose record Airflow has lost meanwhile ends as well.
    "finish": {**dict.fromkeys(_ALL, (State.OVER,)), State.NOTHING: (State.NOTHING,)},
}


@dataclass(frozen=True)
class StoredPost:
    """What is stored of a POST. What is not known is not written.

    :param fingerprint: of the request; empty if there is no POST
    :param sender: as `Sender.as_dict` returns it; its keys stand beside the others
    :param attempt: the try that has sent it last, as `Attempt.as_dict` returns it; its keys likewise
    :param idempotency_key: under which it was sent, if it was `keyed`
    :param keyed: whether the key was sent; None in a record of release 0.2.0 or before, which did not write it
    :param first_at: when it was sent the first time, in epoch seconds
    :param intended_at: when it was sent the last time, likewise
    :param added: what the operator has added by itself
    :param inbox: its registration with the inbox
    :param kickoff_id: that it was answered with
    :param view: the path of the execution's page, where the answer named it
    :param cleared: whether a user has cleared the task since
    :param finished: whether the execution is known to have ended
    :param over_budget: which limits the execution has passed, with the figures
    :param unknown_since: since when its service does not know the execution, in epoch seconds
    :param more: what the room that has sent it keeps beside, and what another release has stored; its keys likewise
    :param earlier: POSTs before it of which something may have come, the newest first
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
    unknown_since: float | None = None
    more: Json = field(default_factory=dict)
    earlier: tuple[StoredPost, ...] = ()

    @classmethod
    def from_json(cls, kept: Json) -> StoredPost:
        """Read a record of this release or an earlier one; what is not there has its default."""
        return cls(
            sender={name: kept[name] for name in NAMES if name in kept},
            attempt={name: kept[name] for name in _OF_ATTEMPT if name in kept},
            more={name: value for name, value in kept.items() if name not in _NAMED},
            earlier=tuple(cls.from_json(post) for post in kept.get("earlier") or ()),
            **{name: kept[name] for name in _DEFAULTS if kept.get(name) is not None},
        )

    def to_json(self) -> Json:
        """Return what is stored; empty if nothing is known."""
        known = {name: getattr(self, name) for name in _DEFAULTS if getattr(self, name) != _DEFAULTS[name]}
        earlier = {"earlier": [post.to_json() for post in self.earlier]} if self.earlier else {}
        return {**self.more, **known, **self.sender, **self.attempt, **earlier}

    @property
    def state(self) -> State:
        """Where it stands."""
        if not self.fingerprint:
            return State.NOTHING
        if self.finished:
            return State.OVER
        return State.STARTED if self.kickoff_id else State.INTENDED

    @property
    def unsettled(self) -> tuple[StoredPost, ...]:
        """This one and those before it of which something may still come, the newest first."""
        posts = (self, *self.earlier)
        return tuple(replace(post, earlier=()) for post in posts if post.state in (State.INTENDED, State.STARTED))

    def moved(self, move: str, new: StoredPost) -> StoredPost:
        """Return the record after a move.

        :raises RuntimeError: it is not one of `MOVES`
        """
        if new.state not in MOVES[move].get(self.state, ()):
            raise RuntimeError(f"A POST that is {self.state} cannot be {new.state} by {move}")
        return new


_OF_ATTEMPT = tuple(each.name for each in fields(Attempt))
_KEPT_APART = ("sender", "attempt", "more", "earlier")
_DEFAULTS = {each.name: each.default for each in fields(StoredPost) if each.name not in _KEPT_APART}
_NAMED = {*_DEFAULTS, *_OF_ATTEMPT, *NAMES, "earlier"}


# --- what a try makes of it ---


class Earlier(StrEnum):
    """What an earlier run of the same task did."""

    NOTHING = "nothing"
    DONE = "done"  # by an earlier try, with an id
    UNKNOWN = "unknown"  # by an earlier try, whose answer was never recorded
    ANOTHER = "another"  # before the task was cleared, or for another request


class PostRecord:
    """The record of the POSTs of one task instance; the module's docstring shows how to use it.

    :param memory: where the record is kept between tries
    :param attempt: the try that runs
    :param fingerprint: what names the request; another fingerprint is another request
    """

    def __init__(self, memory: TaskState, attempt: Attempt, fingerprint: str = "") -> None:
        self.memory, self.attempt, self.fingerprint = memory, attempt, fingerprint
        self.newest = StoredPost.from_json(memory.recall())
        self._resent = False
        self._followed = StoredPost()  # of an execution that is over, which the POST follows
        if attempt.follows_clear(self.newest.attempt):
            # At once: if this try ends early, the next one must still know.
            since = {**self.newest.attempt, **_generation(attempt)}
            self.keep(replace(self.newest, attempt=since, cleared=True))

    def forget_deleted_run(self) -> None:
        """Forget what a DAG run has left that was deleted and created again under its id, where a try begins.

        A try of this run can only find what earlier tries have recorded.
        """
        self.attempt.tell_doubt(self.newest.attempt)
        if self.memory.outlives_run and not self.attempt.follows(self.newest.attempt):
            log.warning("The record that this task finds is of a deleted DAG run of the same id; it is not used")
            self.newest = StoredPost()
            self.memory.forget()

    @property
    def earlier(self) -> Earlier:
        """Judge the record that was found."""
        if self.newest.state is State.NOTHING:
            return Earlier.NOTHING
        if self.cleared:
            return Earlier.ANOTHER
        if not self.kickoff_id:
            return Earlier.UNKNOWN
        return Earlier.DONE if self.same_request else Earlier.ANOTHER

    @property
    def cleared(self) -> bool:
        """Whether a user has cleared the task since the record's POST."""
        return self.newest.cleared

    @property
    def same_request(self) -> bool:
        """Whether the record is of this very request."""
        return self.newest.state is not State.NOTHING and self.newest.fingerprint == self.fingerprint

    @property
    def kickoff_id(self) -> str | None:
        """The id that was recorded."""
        return self.newest.kickoff_id

    @property
    def posts(self) -> list[StoredPost]:
        """All POSTs of which something may have come, the newest first."""
        return [] if self.newest.state is State.NOTHING else [self.newest, *self.newest.earlier]

    def changes(self, sender: Sender) -> list[str]:
        """Name what has changed since the POST was sent: token, base URL, credential of a webhook."""
        return sender.changes(self.newest.sender)

    def sent_by_another(self, sender: Sender) -> bool:
        """Whether it was sent under another token or to another place, so that resending would not be the same."""
        return sender.is_another(self.newest.sender)

    @property
    def added(self) -> Json:
        """What an operator has added to the POST by itself; empty in a record of release 0.1."""
        return self.newest.added or {}

    def was_keyed(self, *, keyed: bool) -> bool:
        """Whether the service knows the newest POST by its key, so that it may be sent again under it.

        :param keyed: whether the service honours keys now
        """
        # Release 0.2.0 and before did not record it, and promised to send again under the key: there `keyed` decides.
        return keyed and self.newest.keyed is not False

    def added_before(self, *, keyed: bool) -> Json:
        """Return what was added to a POST that may be sent again, and must be the same then."""
        again = self.was_keyed(keyed=keyed) and self.earlier is Earlier.UNKNOWN and self.same_request
        return self.added if again else {}

    def intend(self, sender: Sender, *, keyed: bool = True, added: Json | None = None, **more: Any) -> str:
        """Record that the POST is about to be sent; return its idempotency key, kept if it is sent again.

        :param keyed: whether the key is sent; where it is not, or was not then, a second POST is one of its own
        :param added: what is added to a POST of its own; one that is sent again carries what was added first
        :param more: what the record holds besides
        """
        unknown = self.was_keyed(keyed=keyed) and self.earlier is Earlier.UNKNOWN
        self._resent = unknown and self.same_request and not self.changes(sender)
        now, before = time.time(), self.newest
        self._followed = before if before.state is State.OVER and self.earlier is Earlier.DONE else StoredPost()
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
        self.memory.keep(moved.to_json())
        # Not before: what cannot be stored is not sent either.
        self.newest = moved
        return moved.idempotency_key

    def keep(self, newest: StoredPost) -> None:
        """Store what is known of the newest POST by now; this try knows it even if that fails."""
        self.newest = newest
        self.memory.keep(newest.to_json())

    def note(self, **more: Any) -> None:
        """Store what the room that has sent the POST keeps beside it."""
        self.keep(replace(self.newest, more={**self.newest.more, **more}))

    def record_id(self, kickoff_id: str, view: str | None = None, **more: Any) -> None:
        """Record the id that the POST was answered with, and the path of the execution's page.

        :param more: what the record holds besides
        """
        started = replace(self.newest, kickoff_id=kickoff_id, view=view, more={**self.newest.more, **more})
        self.keep(self.newest.moved("start", started))

    def mark_registered(self, inbox: Json) -> None:
        """Record the registration with the inbox that the POST goes with."""
        self.keep(replace(self.newest, inbox=inbox))

    def mark_over_budget(self, passed: str) -> None:
        """Record which limits the execution has passed, so that a retry starts nothing."""
        self.keep(replace(self.newest, over_budget=passed))

    def mark_unknown_since(self, since: float | None) -> None:
        """Record since when the service does not know the execution; None if it does."""
        self.keep(replace(self.newest, unknown_since=since))

    def mark_finished(self) -> None:
        """Record that the execution is known to have ended."""
        self.keep(self._finished())

    def _finished(self) -> StoredPost:
        return self.newest.moved("finish", replace(self.newest, finished=True))

    def adopt(self, kickoff_id: str) -> None:
        """Record that the POST which was refused is not needed, since an earlier one has started this execution."""
        before, *rest = self.newest.earlier or (StoredPost(),)
        if before.state is State.INTENDED and before.fingerprint == self.fingerprint:
            self.newest = replace(self.newest, earlier=tuple(rest))
        self.record_id(kickoff_id)

    def withdraw_if_refused(self, error: exceptions.CrewError) -> bool:
        """Take the intent back if the POST did nothing; return whether that is so.

        What other POSTs did is not settled by it: see `posts`. Nor is a POST that was sent before under its key: the
        service, or a gateway, may refuse it before it looks the key up.
        """
        if self._resent or not isinstance(error, exceptions.REFUSED):
            return False
        before, *rest = self.newest.earlier or (StoredPost(),)
        before = self._followed if self._followed.state is State.OVER else replace(before, earlier=tuple(rest))
        self.newest = self.newest.moved("withdraw", before)
        try:
            if self.newest.state is State.NOTHING:
                self.memory.forget()
            else:
                self.memory.keep(self.newest.to_json())
        except TaskStateUnavailable as problem:
            # What stays is an open intent: the next try says less than is known, and sends nothing twice.
            log.warning("%s", problem)
        return True

    def close(self, *, finished: bool = False) -> None:
        """Record that the task has ended; the last step before it succeeds.

        :param finished: whether the execution is known to have ended too
        """
        if finished:
            self.newest = self._finished()
        self.memory.close(self.newest.to_json())


def _generation(attempt: Attempt) -> Json:
    """Return what distinguishes a clear from a retry; the same for all tries between two clears."""
    kept = attempt.as_dict()
    del kept["try_number"]
    return kept


def fingerprint(request: Json) -> str:
    """Name a request by its content."""
    return hashlib.sha256(canonical_json(request).encode("utf-8", "surrogatepass")).hexdigest()
