"""At most once: what a task records before and after a POST, and how the next try reads it.

The service may have acted on every POST that was sent, whether an answer came or not. So the intent is stored, and
proven to be stored, before anything is sent; what the next try finds is one of four things (`Earlier`)::

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
    record.done(kickoff_id)                             # right after it
    record.failed(error)                                # or: whether this POST did nothing, for certain

The newest POST is a flat dict, `record.record`; what `intend` and `note` were given stands in it too. POSTs before it
of which something may have come are in `record.posts`. Only what is certain to have done nothing is ever removed.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from dataclasses import asdict, dataclass
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


# A service that honours the key answers these only to a request that it has not seen before; otherwise it repeats its
# first answer. Other refusals come before it checks the key.
SETTLES = (exceptions.CrewBadRequest, exceptions.CrewMissingInputs)
# How many earlier POSTs a record names at most.
KEPT = 20


class Earlier(StrEnum):
    """What an earlier run of the same task did."""

    NOTHING = "nothing"
    DONE = "done"  # by an earlier try, with an id
    UNKNOWN = "unknown"  # by an earlier try, whose answer was never recorded
    ANOTHER = "another"  # before the task was cleared, or for another request


class PostRecord:
    """The record of the POSTs of one task instance; the module's docstring shows how to use it.

    Keys of `record`: ``fingerprint`` of the request, ``base_url``, ``principal`` and ``credentials`` of the `Sender`
    (fingerprints, no secrets), ``idempotency_key``, ``try_number`` and ``intended_at`` (epoch seconds) of the try that
    sent it last, ``first_at`` of the first, ``kickoff_id`` once it is known, with the ``view`` that the answer named,
    ``cleared`` if the task was cleared since, ``added`` what the operator has added by itself.

    :param memory: where the record is kept between tries
    :param attempt: the try that runs
    :param fingerprint: what names the request; another fingerprint is another request
    """

    def __init__(self, memory: TaskState, attempt: Attempt, fingerprint: str = "") -> None:
        self.memory, self.attempt, self.fingerprint = memory, attempt, fingerprint
        self.record: Json = memory.recall()
        self._resent = False
        if self.record and attempt.follows_clear(self.record):
            # At once: if this try ends early, the next one must still know.
            self.note(**_generation(attempt), cleared=True)

    def forget_deleted_run(self) -> None:
        """Forget what a DAG run has left that was deleted and created again under its id, where a try begins.

        A try of this run can only find what earlier tries have recorded.
        """
        self.attempt.tell_doubt(self.record)
        if self.memory.outlives_run and not self.attempt.follows(self.record):
            log.warning("The record that this task finds is of a deleted DAG run of the same id; it is not used")
            self.record = {}
            self.memory.forget()

    @property
    def earlier(self) -> Earlier:
        """Judge the record that was found."""
        if not self.record.get("fingerprint"):
            return Earlier.NOTHING
        if self.cleared:
            return Earlier.ANOTHER
        if not self.kickoff_id:
            return Earlier.UNKNOWN
        return Earlier.DONE if self.same_request else Earlier.ANOTHER

    @property
    def cleared(self) -> bool:
        """Whether a user has cleared the task since the record's POST."""
        return bool(self.record.get("cleared"))

    @property
    def same_request(self) -> bool:
        """Whether the record is of this very request."""
        return self.record.get("fingerprint") == self.fingerprint

    @property
    def kickoff_id(self) -> str | None:
        """The id that was recorded."""
        return self.record.get("kickoff_id")

    @property
    def posts(self) -> list[Json]:
        """All POSTs of which something may have come, the newest first."""
        newest = {name: value for name, value in self.record.items() if name != "earlier"}
        return [newest, *self.record.get("earlier", [])] if newest.get("fingerprint") else []

    def changes(self, sender: Sender) -> list[str]:
        """Name what has changed since the POST was sent: token, base URL, credential of a webhook."""
        return sender.changes(self.record)

    def sent_by_another(self, sender: Sender) -> bool:
        """Whether it was sent under another token or to another place, so that resending would not be the same."""
        return sender.is_another(self.record)

    @property
    def added(self) -> Json:
        """What an operator has added to the POST by itself; empty in a record of release 0.2.0 or before."""
        added: Json = self.record.get("added") or {}
        return added

    def added_before(self, *, keyed: bool) -> Json:
        """Return what was added to a POST that may be sent again, and must be the same then."""
        return self.added if keyed and self.earlier is Earlier.UNKNOWN and self.same_request else {}

    def intend(self, sender: Sender, *, keyed: bool = True, added: Json | None = None, **more: Any) -> str:
        """Record that the POST is about to be sent; return its idempotency key, kept if it is sent again.

        :param keyed: whether the service honours the key; if not, a second POST is one of its own
        :param added: what is added to a POST of its own; one that is sent again carries what was added first
        :param more: what the record holds besides
        """
        unknown = keyed and self.earlier is Earlier.UNKNOWN
        self._resent = unknown and self.same_request and not self.changes(sender)
        now, before = time.time(), self.record
        key: str = before["idempotency_key"] if self._resent else str(uuid.uuid4())
        intended = {
            "fingerprint": self.fingerprint,
            **sender.as_dict(),
            **_generation(self.attempt),
            "try_number": self.attempt.try_number,
            "idempotency_key": key,
            "first_at": before.get("first_at", now) if self._resent else now,
            "intended_at": now,
            "earlier": before.get("earlier", []) if self._resent else self._unsettled(),
            **_added(before.get("added") if self._resent else added),
            **more,
        }
        self.memory.keep(intended)
        # Not before: what cannot be stored is not sent either.
        self.record = intended
        return key

    def note(self, **more: Any) -> None:
        """Add to what is known of the POST."""
        self.record = {**self.record, **more}
        self.memory.keep(self.record)

    def done(self, kickoff_id: str, view: str | None = None) -> None:
        """Record the id that the POST was answered with, and the path of the execution's page."""
        self.note(kickoff_id=kickoff_id, **({"view": view} if view else {}))

    def failed(self, error: exceptions.CrewError) -> bool:
        """Take the intent back if the POST did nothing, now or when it was sent before; return whether that is so.

        What other POSTs did is not settled by it: see `posts`.
        """
        if not isinstance(error, SETTLES if self._resent else exceptions.REFUSED):
            return False
        newest, *rest = self.record.get("earlier") or [{}]
        self.record = {**newest, "earlier": rest} if newest else {}
        try:
            self._keep_or_forget()
        except TaskStateUnavailable as problem:
            # What stays is an open intent: the next try says less than is known, and sends nothing twice.
            log.warning("%s", problem)
        return True

    def _keep_or_forget(self) -> None:
        if self.record:
            self.memory.keep(self.record)
        else:
            self.memory.forget()

    def over(self, **more: Any) -> None:
        """Record that the task has ended; the last step before it succeeds.

        :param more: ``finished=True`` if the execution is known to have ended too
        """
        self.record = {**self.record, **more}
        self.memory.over(self.record)

    def _unsettled(self) -> list[Json]:
        return [post for post in self.posts if not post.get("finished")][:KEPT]


def _added(added: Json | None) -> Json:
    return {"added": added} if added else {}


def _generation(attempt: Attempt) -> Json:
    """Return what distinguishes a clear from a retry; the same for all tries between two clears."""
    kept = attempt.as_dict()
    del kept["try_number"]
    return kept


def fingerprint(request: Json) -> str:
    """Name a request by its content."""
    return hashlib.sha256(canonical_json(request).encode("utf-8", "surrogatepass")).hexdigest()
