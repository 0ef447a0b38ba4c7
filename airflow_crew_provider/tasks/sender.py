"""The sender and target of a POST, which must be unchanged before a POST of unknown outcome is sent again.

Another token may be another user, whose requests the service keeps apart: it would not find what was sent before.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

from airflow_crew_provider.core.inbox_addresses import WORD
from airflow_crew_provider.hooks.connection import CrewConnection
from airflow_crew_provider.models import Json, Webhooks, canonical_json

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
