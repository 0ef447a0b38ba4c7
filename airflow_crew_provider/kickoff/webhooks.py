"""The webhooks of a task's POST: a user's own with their credentials, or new addresses in this Airflow's own inbox."""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.inbox import registering
from airflow_crew_provider.kickoff.post_record import PostRecord, Sender
from airflow_crew_provider.models import Json, Webhooks


class PostWebhooks:
    """The webhooks of a task's next POST, which are looked up and checked before it is recorded.

    A failed lookup then does not count as an unknown outcome. The request keeps the webhooks as the user gave them,
    because its fingerprint must not depend on a credential.

    :param checked: from `checked_webhooks`
    :param record: of the POST
    """

    def __init__(self, checked: Webhooks | str | None, hook: ConnectedCrew, record: PostRecord) -> None:
        self._hook, self._record = hook, record
        self._webhooks = checked if isinstance(checked, str) else hook.with_credentials(checked)

    def check(self) -> None:
        """Refuse the word ``inbox`` if there is no inbox."""
        if isinstance(self._webhooks, str):
            registering.check(self._hook)

    @property
    def sender(self) -> Sender:
        """The sender of the POST, with the original inbox URL if the POST may be resent.

        It holds until a request is repeated until it succeeds, which may look the connection up again.
        """
        connection = self._hook.connection
        before = self._record.added_before(keyed=connection.idempotency_keys)
        return Sender.of(connection, self._webhooks, before.get("inbox_url"))

    @property
    def added(self) -> Json:
        """The inbox URL to store with the POST, so that a resend contains the same addresses."""
        url = self._hook.connection.inbox_url if isinstance(self._webhooks, str) else None
        # A URL with credentials is not stored; if it changes, the request counts as a different one.
        return {"inbox_url": url} if url and "@" not in url else {}

    def registered(self, context: Any, execution_id: str | None = None) -> Webhooks | None:
        """Return what the recorded POST sends, after registering it with the inbox if that is what was asked for.

        :param execution_id: of the execution that the POST answers
        """
        if not isinstance(self._webhooks, str):
            return self._webhooks
        key, url = self._record.newest.idempotency_key, self._record.added.get("inbox_url")
        registration, webhooks = registering.register(context, self._hook, key, execution_id, url)
        self._record.mark(inbox=registration.as_dict())
        return webhooks


def tell_inbox(context: Any, record: PostRecord, *, again: bool = False) -> None:
    """Record the kickoff id for the inbox, if the POST used the inbox; ``again`` means that an earlier try sent it."""
    if record.newest.inbox and record.kickoff_id:
        registering.posted(context, record.newest.inbox, record.kickoff_id, again=again)
