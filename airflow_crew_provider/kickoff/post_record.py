"""The record that a task stores before and after each POST, so that a POST is sent at most once.

The service may have acted on any POST, even one without a response. So a task stores its intent, and checks that it was
stored, before it sends anything. `task.record` has the states of a POST and the moves between them. A clear does not
change the state, but the next try then finds the POST as ``ANOTHER`` (see below).

The next try finds one of four situations (`Earlier`)::

    NOTHING   no POST, or one that certainly did nothing: send
    STARTED   a POST for this request, with an id: continue with that execution, if it has not failed
    UNKNOWN   a POST without a response, for any request: resend it only with its key, or if a user accepts a second
              execution (`PostRecord.why_not_again`)
    ANOTHER   a POST from before a clear, or with an id and for another request: kept until its execution is over

A key is only reused for an identical body. Two requests are the same if their fingerprints match. The record also keeps
what is sent but is not part of the fingerprint: the fields that the operator adds, which contain no secret, and the
addresses of files, which are sealed.

Usage, in this order::

    record = PostRecord(worker.record.part(NAME, None), Attempt.of(context, self))  # reads it or raises an error
    record.begin_try()                                  # at the start of a try
    record.fingerprint = fingerprint(request)           # identifies the user's request; no secrets or added fields
    record.earlier                                      # NOTHING, STARTED, UNKNOWN or ANOTHER; see `Earlier`
    record.why_not_again(sender, keyed=True)            # if its outcome is unknown: why it must not be resent
    yield SendOnce(record, post, sender)                # the POST; see there how its errors are told apart
    record.added                                        # fields to add to this POST; the original ones if resent
    record.newest.addresses                             # of its files; the original ones if resent

Earlier POSTs that may still have an effect stay on record (`StoredPost.unsettled`), up to `KEPT` of them. Those that
are over or certainly did nothing are removed.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

from airflow_crew_provider import exceptions
from airflow_crew_provider.client.deployment import CrewConnection
from airflow_crew_provider.inbox.messages import WORD
from airflow_crew_provider.models import Json, Resumed, Started, Webhooks, canonical_json
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.record import KEPT, PostState, StoredPost
from airflow_crew_provider.task.store import Failed, Store, TaskStateUnavailable

log = logging.getLogger(__name__)

ROUNDS = 50_000
WHAT_TO_CHECK = (
    "A second kickoff could run the crew twice, so none is sent. Check the service for a running execution of this "
    "task (its meta.airflow names the DAG, run, task and map index); then clear this task to start a new one"
)
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
        texts = (canonical_json(each).encode("utf-8", "surrogatepass") for each in (secrets, added))
        return cls(deployment.base_url, *(_slow_hash(each, deployment.base_url, ROUNDS) for each in texts))

    def as_dict(self) -> Json:
        """Return the sender as stored in a record."""
        return asdict(self)

    def changes(self, before: Json) -> list[str]:
        """List the differences from a stored `as_dict`; a missing value counts as changed."""
        return [NAMES[name] for name, value in self.as_dict().items() if before.get(name) != value]

    def is_another(self, before: Json) -> bool:
        """Return whether the principal or the base URL differs from the stored one; ignore webhook credentials."""
        return any(getattr(self, name) != before.get(name) for name in ("base_url", "principal"))


def _credentials(webhooks: Webhooks | str | None) -> list[str | None]:
    human = webhooks.human_input if isinstance(webhooks, Webhooks) else None
    return [human.token, human.username, human.password] if human else []


@lru_cache(maxsize=16)  # a try asks for its sender again, in case the connection has changed
def _slow_hash(secrets: bytes, salt: str, rounds: int) -> str:
    """Hash slowly, so that a weak token cannot be brute-forced from a record."""
    return hashlib.pbkdf2_hmac("sha256", secrets, salt.encode(), rounds, 16).hex()


class Earlier(StrEnum):
    """The situation that earlier tries of the same task have left on record."""

    NOTHING = "nothing"
    STARTED = "started"  # an earlier try sent a POST and recorded the id
    UNKNOWN = "unknown"  # an earlier try sent a POST but never recorded a response
    ANOTHER = "another"  # a POST was sent before the task was cleared, or started an execution for another request


class CrewPostLost(Exception):
    """A POST may have arrived, although it ended in an error. Its intent stays on record.

    :param error: what happened
    """

    def __init__(self, error: exceptions.CrewError) -> None:
        super().__init__(str(error))
        self.error = error


def unanswered(error: exceptions.CrewError) -> str:
    """Return the message of the error with which a POST ended that may have arrived, now or when it was sent before."""
    if isinstance(error, exceptions.CrewOutcomeUnknown):
        return str(error)
    which = "an earlier request" if isinstance(error, exceptions.REFUSED) else "this request"
    return f"{str(error).removesuffix('.')}. It is unknown whether the service acted on {which}"


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
        before = self.newest.attempt
        if clears_count and attempt.relation_to(before) is Relation.CLEAR:
            # Store this at once: the next try needs it if this one ends early.
            self.keep(replace(self.newest, attempt={**before, **_generation(attempt)}, cleared=True))

    def begin_try(self) -> None:
        """Forget a record of a deleted DAG run with the same id; call this first in a try."""
        before = self.newest.attempt
        self.attempt.tell_doubt(before)
        if self.attempt.relation_to(before) is Relation.OTHER_RUN:
            log.warning("This task's record is from a deleted DAG run with the same id, so it is ignored")
            self.newest = self._stored = StoredPost()
            self.memory.forget()  # at once: a later try of this run may have the number of the one on record

    @property
    def earlier(self) -> Earlier:
        """The situation that this try found."""
        if self.newest.state is PostState.NOTHING:
            return Earlier.NOTHING
        if self.newest.cleared:
            return Earlier.ANOTHER
        if not self.kickoff_id:
            return Earlier.UNKNOWN
        return Earlier.STARTED if self.same_request else Earlier.ANOTHER

    @property
    def same_request(self) -> bool:
        """Whether the record belongs to this request."""
        return self.newest.state is not PostState.NOTHING and self.newest.fingerprint == self.fingerprint

    @property
    def kickoff_id(self) -> str | None:
        """The recorded id."""
        return self.newest.kickoff_id

    def changes(self, sender: Sender) -> list[str]:
        """List the changes since the POST was sent: token, base URL, webhook credentials."""
        return sender.changes(self.newest.sender)

    def why_not_again(self, sender: Sender, *, keyed: bool, at_risk: bool = False) -> str | None:
        """Return why a POST with an unknown outcome must not be sent again; None if it may.

        :param keyed: whether the service currently honours keys
        :param at_risk: whether the user accepts a second execution
        """
        changes = self.changes(sender)
        if not at_risk and not self.was_keyed(keyed=keyed):
            return "without an idempotency key, the service would not recognize it"
        if changes and (not at_risk or sender.is_another(self.newest.sender)):
            return f"the connection has since changed ({', '.join(changes)}), so the service may not recognize it"
        if not at_risk and not self.same_request:
            return "it was for a different request, so its key cannot be used"
        return None

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

    def is_resent(self, sender: Sender, *, keyed: bool) -> bool:
        """Return whether this request is sent again as it is on record, with its key and what was added to it."""
        return self._may_be_resent(keyed=keyed) and not self.changes(sender)

    def intend(
        self,
        sender: Sender,
        *,
        keyed: bool = True,
        added: Json | None = None,
        addresses: Json | None = None,
        **more: Any,
    ) -> str:
        """Record that the POST is about to be sent; return its idempotency key, unchanged for a resend.

        :param keyed: whether the key is sent; if it is not, or was not before, a second POST counts as a new one
        :param added: fields to add to a new POST; a resent one repeats its original ones
        :param addresses: of a new POST's files; a resent one repeats its original ones
        :param more: further fields for the record
        """
        self._resent = self.is_resent(sender, keyed=keyed)
        now, before = time.time(), self.newest
        self._followed = before if before.state is PostState.OVER and self.earlier is Earlier.STARTED else None
        intended = StoredPost(
            fingerprint=self.fingerprint,
            sender=sender.as_dict(),
            attempt=self.attempt.as_dict(),
            idempotency_key=before.idempotency_key if self._resent else str(uuid.uuid4()),
            keyed=keyed,
            first_at=(before.first_at or now) if self._resent else now,
            intended_at=now,
            added=before.added if self._resent else added or None,
            addresses=before.addresses if self._resent else addresses or {},
            more=more,
            earlier=before.earlier if self._resent else before.unsettled[:KEPT],
        )
        moved = before.moved("intend", intended)
        self._check_alone()
        self.memory.keep(moved.to_json())
        # Only now, because the POST must not be sent if the record cannot be stored.
        self.newest = self._stored = moved
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
        self.memory.keep(newest.to_json())
        self._stored = newest

    def note(self, **more: Any) -> None:
        """Store further fields from the package that sent the POST."""
        self.keep(replace(self.newest, more={**self.newest.more, **more}))

    def record_id(self, kickoff_id: str, view: str | None = None, *, failed: Failed | None = None, **more: Any) -> None:
        """Record the id from the response, and the path of the execution's page.

        :param failed: called if this cannot be stored, and later writes will store it; if None, that is an error
        :param more: further fields for the record
        """
        started = replace(self.newest, kickoff_id=kickoff_id, view=view, more={**self.newest.more, **more})
        moved = self.newest.moved("start", started)
        if failed is None:
            self.keep(moved)
            return
        self.newest = self._stored = moved
        self.memory.owe(moved.to_json(), failed)

    def mark(self, **known: Any) -> None:
        """Record what has become known of the POST or its execution: fields of `StoredPost` that no move sets."""
        if any(getattr(self.newest, name) != value for name, value in known.items()):
            self.keep(replace(self.newest, **known))

    def finish(self) -> None:
        """Note that the execution has ended, for the record's next write."""
        self.newest = self.newest.moved("finish", replace(self.newest, finished=True))

    def adopt(self, kickoff_id: str) -> None:
        """Record the execution that an earlier POST started, which makes the refused POST unnecessary."""
        before = self._previous()
        if before.state is PostState.INTENDED and before.fingerprint == self.fingerprint:
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
        is_refused = isinstance(error, exceptions.REFUSED) and not isinstance(error, exceptions.CrewAlreadyContinued)
        if self._resent or not is_refused:
            return False
        self.newest = self.newest.moved("withdraw", self._followed or self._previous())
        try:
            if self.newest.state is PostState.NOTHING:
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
            self.finish()
        self.memory.close(self.newest.to_json())


@dataclass(frozen=True)
class SendOnce:
    """A POST that is sent at most once: its intent is recorded, then it is sent, then its outcome is recorded.

    Every kickoff and answer of a task is sent by this step. Its result is the response.

    :param post: sends it, with this key, if any
    :param taken: changes what else the response changes in the task's record, in the same write as its id, and returns
        further fields of the POST
    :raises CrewPostLost: it may have arrived
    :raises CrewError: it certainly did nothing, and its intent is withdrawn; or it was never sent
    """

    record: PostRecord
    post: Callable[[str | None], Any]
    sender: Sender
    keyed: bool = False
    added: Json | None = None
    taken: Callable[[Any], Json] = lambda response: {}
    more: Json = field(default_factory=dict)
    addresses: Json | None = None

    def do(self, worker: Any) -> Any:
        record = self.record
        key = record.intend(self.sender, keyed=self.keyed, added=self.added, addresses=self.addresses, **self.more)
        try:
            response: Started | Resumed = self.post(key if self.keyed else None)
        except exceptions.CrewError as error:
            if record.withdraw_if_refused(error):
                raise
            raise CrewPostLost(error) from error
        log_failure = partial(_log_unrecorded, response.kickoff_id)
        try:
            view = getattr(response, "view", None)
            record.record_id(response.kickoff_id, view, failed=log_failure, **self.taken(response))
        except Exception as error:  # of any kind: the service has acted, and the id must not be lost
            log_failure(error)
        return response


def _log_unrecorded(kickoff_id: str, error: Exception) -> None:
    log.error(
        "The service accepted the request for execution %s, but that could not be recorded: %s. Later writes of this "
        "try repeat it; if none succeeds, the next try will find a request with an unknown outcome",
        kickoff_id,
        error,
    )


def _generation(attempt: Attempt) -> Json:
    """Return the fields that distinguish a clear from a retry; equal for all tries between two clears."""
    numbers = attempt.as_dict()
    del numbers["try_number"]
    return numbers


def fingerprint(request: Json) -> str:
    """Return the hash of a request's content."""
    return hashlib.sha256(canonical_json(request).encode("utf-8", "surrogatepass")).hexdigest()
