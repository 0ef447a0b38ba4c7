"""The deployed crew behind an Airflow connection, as this provider's packages use it."""

from __future__ import annotations

from dataclasses import replace

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.addresses import query_secrets
from airflow_crew_provider.api.requests import Kickoff, Resume
from airflow_crew_provider.client.lookups import CachedConnection
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import ExpectedInputs, HumanInputWebhook, Json, Resumed, Started, Webhooks, shown


class ConnectedCrew(CachedConnection):
    """A deployed crew, with its connection and client. Users see only its subclass, `CrewHook`."""

    def mask(self, text: str) -> str:
        """Return a string with the connection's secrets masked."""
        return self.client.mask(text)

    def inputs(self) -> ExpectedInputs:
        """Return the crew's inputs, and which of them are required if the service reports it."""
        return self.client.send(endpoints.inputs())

    def send_kickoff(self, request: Kickoff, *, timeout: float | None = None) -> Started:
        """Start an execution. The request is sent only once; webhook credentials must already have been looked up.

        :param timeout: limit in seconds for the request, if less than the connection's
        :raises CrewConnectionError: nothing was sent
        :raises CrewOutcomeUnknown: the service may still have started it
        """
        signatures = [secret for url in (request.files or {}).values() for secret in query_secrets(url)]
        secrets = (*_credentials(request.webhooks), *signatures)
        return self.client.send(endpoints.kickoff(request), timeout=timeout, secrets=secrets)

    def send_resume(self, request: Resume) -> Resumed:
        """Answer an execution that is waiting for a person. The request is sent only once; see `send_kickoff`.

        :raises CrewOutcomeUnknown: the service may still have accepted the answer
        """
        return self.client.send(endpoints.resume(request), secrets=_credentials(request.webhooks))

    def stop(self, kickoff_id: str) -> bool:
        """Stop an execution (observed dialect, POST /stop); return False if it is unsupported or nothing is running.

        :raises CrewError: it is not known whether the execution was stopped, e.g. because a gateway answered instead
        """
        return self.client.send(endpoints.stop(kickoff_id))

    async def astop(self, kickoff_id: str) -> bool:
        """Stop an execution without blocking the event loop."""
        await self._aconnect()
        return await self.client.asend(endpoints.stop(kickoff_id))

    def with_credentials(self, webhooks: Webhooks | Json | None) -> Webhooks | None:
        """Return the webhooks with the credential from the connection named in them."""
        try:
            read = Webhooks.of(webhooks)
        except (TypeError, ValueError) as error:
            problem = str(error)
        else:
            if read is None or read.human_input is None or not read.human_input.conn_id:
                return read
            return replace(read, human_input=self._credential(read.human_input))
        raise CrewInvalidInput(f"{problem}; nothing was sent")

    def _credential(self, webhook: HumanInputWebhook) -> HumanInputWebhook:
        assert webhook.conn_id
        held = self.look_up(webhook.conn_id)
        if not held.password:
            raise CrewInvalidInput(f"Connection {shown(webhook.conn_id)} for the human-input webhook has no password")
        if held.login:
            return HumanInputWebhook(webhook.url, username=held.login, password=held.password)
        return HumanInputWebhook(webhook.url, token=held.password)


def _credentials(webhooks: Webhooks | str | None) -> tuple[str, ...]:
    human = webhooks.human_input if isinstance(webhooks, Webhooks) else None
    return tuple(secret for secret in (human.token, human.password) if secret) if human else ()
