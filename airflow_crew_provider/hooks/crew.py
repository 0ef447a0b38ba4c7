"""The hook: one deployed crew behind one Airflow connection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_crew_provider import api
from airflow_crew_provider.client import Client
from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewConnectionError,
    CrewError,
    CrewInvalidInput,
)
from airflow_crew_provider.hooks.connection import CrewConnection, read_connection
from airflow_crew_provider.hooks.looking import Looking
from airflow_crew_provider.jsonvalues import plain_object
from airflow_crew_provider.models import (
    Execution,
    HumanInputWebhook,
    Json,
    Kickoff,
    Resume,
    Resumed,
    Webhooks,
)

T = TypeVar("T")


class CrewHook(Looking, BaseHook):
    """Start, watch, resume and stop executions of a deployed crew.

    :param crew_conn_id: the connection of type ``crew``: base URL as Host, bearer token as Password
    """

    conn_name_attr = "crew_conn_id"
    default_conn_name = "crew_default"
    conn_type = "crew"
    hook_name = "Crew"

    def __init__(self, crew_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.crew_conn_id = crew_conn_id
        self._connection: CrewConnection | None = None
        self._client: Client | None = None

    @classmethod
    def get_ui_field_behaviour(cls) -> Json:
        """Return the connection form of Airflow before 3.2; later ones read it from the provider info."""
        from airflow_crew_provider.get_provider_info import legacy_field_behaviour

        return legacy_field_behaviour()

    @property
    def connection(self) -> CrewConnection:
        """The connection, looked up once."""
        if self._connection is None:
            self._use(read_connection(self.get_connection(self.crew_conn_id)))
        assert self._connection is not None
        return self._connection

    @property
    def client(self) -> Client:
        """The client of this connection."""
        if self._client is None:
            self._client = Client(self.connection.deployment)
        return self._client

    def get_conn(self) -> Client:
        """Return the client, as hooks do."""
        return self.client

    def get_inputs(self) -> list[str]:
        """Return the names of the inputs that the crew asks for (specification, section 4.1)."""
        return self.client.send(api.inputs())

    def kickoff(
        self,
        inputs: Json,
        *,
        webhooks: Webhooks | Json | None = None,
        meta: Json | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Start an execution and return its kickoff id (specification, section 4.2). Sent once, never again.

        :raises CrewConnectionError: nothing was sent
        :raises CrewOutcomeUnknown: the service may have started it all the same
        """
        sent = self.with_credentials(webhooks)
        request = Kickoff(
            inputs=checked_inputs(inputs),
            webhooks=sent,
            meta=None if meta is None else plain_object(meta, "meta"),
            idempotency_key=idempotency_key,
        )
        return self.client.send(api.kickoff(request), secrets=_credentials(sent))

    def get_status(self, kickoff_id: str) -> Execution:
        """Look at an execution (specification, section 4.3)."""
        return self.client.send(api.status(kickoff_id))

    async def aget_status(self, kickoff_id: str) -> Execution:
        """Look at an execution without blocking the event loop."""
        await self._aconnect()
        return await self.client.asend(api.status(kickoff_id))

    def resume(
        self,
        execution_id: str,
        crew_task_id: str,
        human_feedback: str,
        is_approve: bool,
        *,
        webhooks: Webhooks | Json | None = None,
        idempotency_key: str | None = None,
    ) -> Resumed:
        """Answer an execution that waits for a person (specification, section 4.4). Sent once, never again.

        :param execution_id: the id of the first kickoff, never that of a continuation
        :raises CrewOutcomeUnknown: the answer may have been taken all the same
        """
        if not isinstance(is_approve, bool) or not isinstance(human_feedback, str):
            raise CrewInvalidInput("is_approve must be a bool and human_feedback a text; nothing was sent")
        sent = self.with_credentials(webhooks)
        request = Resume(
            execution_id=execution_id,
            crew_task_id=crew_task_id,
            human_feedback=human_feedback,
            is_approve=is_approve,
            webhooks=sent,
            idempotency_key=idempotency_key,
        )
        return self.client.send(api.resume(request), secrets=_credentials(sent))

    def stop(self, kickoff_id: str) -> bool:
        """Stop an execution; False if the service cannot, or if there is nothing to stop (observed dialect)."""
        try:
            return self.client.send(api.stop(kickoff_id))
        except CrewApiError as error:
            return _cannot_stop(error)

    async def astop(self, kickoff_id: str) -> bool:
        """Stop an execution without blocking the event loop."""
        await self._aconnect()
        try:
            return await self.client.asend(api.stop(kickoff_id))
        except CrewApiError as error:
            return _cannot_stop(error)

    def test_connection(self) -> tuple[bool, str]:
        """Ask for the crew's inputs, as the Test button of the connection form does."""
        try:
            names = self.get_inputs()
        except (CrewError, AirflowNotFoundException) as error:
            return False, str(error)
        return True, f"The crew answers; its inputs: {', '.join(names) or 'none'}"

    # --- the connection ---

    async def hold(self) -> None:
        """Look the connection up and keep the session that this event loop shares open until `release`."""
        await self._aconnect()
        await self.client.hold()

    async def release(self) -> None:
        """Give back what `hold` took."""
        if self._client is not None:
            await self._client.release()

    async def _aconnect(self) -> None:
        if self._connection is None:
            self._use(await self._aread())

    async def _aread(self) -> CrewConnection:
        from airflow.providers.common.compat.connection import get_async_connection

        try:
            found = await get_async_connection(self.crew_conn_id)
        except AirflowNotFoundException as error:
            missing, problem = True, str(error)
        except Exception as error:
            missing, problem = False, f"{type(error).__name__}: {error}"
        else:
            return read_connection(found)
        if missing:
            raise CrewInvalidInput(problem)
        raise CrewConnectionError(f"Connection {self.crew_conn_id!r} could not be looked up ({problem})")

    def refresh(self) -> bool:
        """Look the connection up once more; return whether it has changed."""
        return self._replaced_by(read_connection(self.get_connection(self.crew_conn_id)))

    async def arefresh(self) -> bool:
        """Do what `refresh` does; the shared session moves along."""
        before = self.client
        try:
            replaced = self._replaced_by(await self._aread())
        except CrewConnectionError:
            return False
        if replaced:
            # In this order: a cancellation while the old session closes must not leave the new one unheld.
            await self.client.hold()
            await before.release()
        return replaced

    def _replaced_by(self, fresh: CrewConnection) -> bool:
        changed = fresh.deployment != self.connection.deployment
        self._use(fresh)
        return changed

    def _use(self, connection: CrewConnection) -> None:
        if connection != self._connection:
            self._connection, self._client = connection, None

    def with_credentials(self, webhooks: Webhooks | Json | None) -> Webhooks | None:
        """Return the webhooks with the credential of the connection that they name."""
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
        held = self.get_connection(webhook.conn_id)
        if not held.password:
            raise CrewInvalidInput(f"Connection {webhook.conn_id!r} of the human-input webhook has no password")
        if held.login:
            return HumanInputWebhook(webhook.url, username=held.login, password=held.password)
        return HumanInputWebhook(webhook.url, token=held.password)


class HasHook:
    """A mixin of tasks: the hook is made when it is first used, after the connection id was rendered."""

    crew_conn_id: str

    @property
    def hook(self) -> CrewHook:
        """The hook of the rendered connection id."""
        if self.__dict__.get("_hook") is None:
            self.__dict__["_hook"] = CrewHook(self.crew_conn_id)
        return self.__dict__["_hook"]


def checked_inputs(inputs: Any) -> Json:
    """Return the inputs as plain JSON; `id` is refused, since live deployments overwrite records by it."""
    plain = plain_object(inputs, "inputs")
    if "id" in plain:
        raise CrewInvalidInput("inputs.id: is reserved by the service and overwrites records. Nothing was sent")
    return plain


def _credentials(webhooks: Webhooks | None) -> tuple[str, ...]:
    human = webhooks.human_input if webhooks else None
    return tuple(secret for secret in (human.token, human.password) if secret) if human else ()


def _cannot_stop(error: CrewApiError) -> bool:
    if error.status_code in (400, 404, 405, 409, 410, 422, 501):
        return False
    raise error
