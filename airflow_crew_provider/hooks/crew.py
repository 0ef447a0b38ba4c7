"""The hook: one deployed crew behind one Airflow connection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.values import plain_object
from airflow_crew_provider.client.lookups import CachedConnection
from airflow_crew_provider.exceptions import CrewApiError, CrewError, CrewInvalidInput
from airflow_crew_provider.hooks import agent as agents
from airflow_crew_provider.models import (
    CrewInputs,
    EditedOutput,
    Execution,
    HumanInputWebhook,
    Json,
    Kickoff,
    Resume,
    Resumed,
    Started,
    Webhooks,
)

if TYPE_CHECKING:
    from airflow.providers.common.ai.managed_agents.base import (
        ManagedAgentCapabilities,
        ManagedAgentRef,
        ManagedAgentRequest,
        ManagedAgentResponse,
    )


class CrewHook(CachedConnection, agents.BaseManagedAgentHook):  # type: ignore[misc,name-defined]
    """Start, watch, resume and stop executions of a deployed crew.

    With the extra ``common-ai``, ``CrewHook(...).agent("newsroom")`` is the crew as an agent of common-ai.

    :param crew_conn_id: the connection of type ``crew``: base URL as Host, bearer token as Password
    :param prompt_input: the crew's input that takes an agent's prompt; None for the only one that it requires
    """

    conn_name_attr = "crew_conn_id"
    default_conn_name = "crew_default"
    conn_type = "crew"
    hook_name = "Crew"
    agent_platform = agents.PLATFORM

    def __init__(self, crew_conn_id: str = default_conn_name, prompt_input: str | None = None, **kwargs: Any) -> None:
        super().__init__(crew_conn_id, **kwargs)
        self.prompt_input = prompt_input

    @classmethod
    def get_ui_field_behaviour(cls) -> Json:
        """Return the connection form of Airflow before 3.2; later ones read it from the provider info."""
        from airflow_crew_provider.get_provider_info import legacy_field_behaviour

        return legacy_field_behaviour()

    @classmethod
    def get_connection_form_widgets(cls) -> Json:
        """Return the fields of the connection form of Airflow before 3.2."""
        from airflow_crew_provider.compat.connections import widgets
        from airflow_crew_provider.get_provider_info import connection_fields

        return widgets(connection_fields())

    def get_inputs(self) -> list[str]:
        """Return the names of the inputs that the crew asks for (specification, section 4.1)."""
        return self.inputs().names

    def inputs(self) -> CrewInputs:
        """Return the inputs that the crew asks for, and which of them are required where the service says so."""
        return self.client.send(endpoints.inputs())

    def mask(self, text: str) -> str:
        """Return a string as it may be shown: without the connection's secrets."""
        return self.client.mask(text)

    def kickoff(
        self,
        inputs: Json,
        *,
        webhooks: Webhooks | Json | None = None,
        meta: Json | None = None,
        restore_from: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Start an execution and return its kickoff id (specification, section 4.2). Sent once, never again.

        :param restore_from: of a Flow with ``@persist``: the id of the state that it starts from
        :raises CrewConnectionError: nothing was sent
        :raises CrewOutcomeUnknown: the service may have started it all the same
        """
        return self.send_kickoff(
            Kickoff(
                inputs=inputs,
                webhooks=self.with_credentials(webhooks),
                meta=meta,
                restore_from=restore_from,
                idempotency_key=idempotency_key,
            )
        ).kickoff_id

    def send_kickoff(self, request: Kickoff, *, timeout: float | None = None) -> Started:
        """Start an execution as `kickoff` does; the credentials of the request's webhooks are looked up already.

        :param timeout: seconds that the request may take, if less than the connection says
        """
        meta = None if request.meta is None else plain_object(request.meta, "meta")
        sent = replace(request, inputs=checked_inputs(request.inputs), meta=meta)
        return self.client.send(endpoints.kickoff(sent), timeout=timeout, secrets=_credentials(sent.webhooks))

    def get_status(self, kickoff_id: str) -> Execution:
        """Poll an execution (specification, section 4.3)."""
        return self.client.send(endpoints.status(kickoff_id))

    def list_executions(self, state: str | None = None, limit: int = 20) -> list[Execution]:
        """Return the newest executions that the token may see, without their outputs.

        :param state: only those in this state: ``running``, ``pending``, ``completed`` or ``error``
        :param limit: how many at most, up to 100
        :raises CrewApiError: also where the deployment has no such list, as live deployments
        """
        try:
            return self.client.send(endpoints.executions(state, limit))
        except CrewApiError as error:
            refused = error
        if refused.status_code in (404, 405, 501):
            refused.detail = "this deployment has no list of executions; the project's own crew service has one"
        raise refused

    async def aget_status(self, kickoff_id: str) -> Execution:
        """Poll an execution without blocking the event loop."""
        await self._aconnect()
        return await self.client.asend(endpoints.status(kickoff_id))

    def resume(
        self,
        execution_id: str,
        crew_task_id: str,
        human_feedback: str,
        is_approve: bool | None,
        *,
        outcome: str | None = None,
        edited_output: EditedOutput | None = None,
        output_sha256: str | None = None,
        webhooks: Webhooks | Json | None = None,
        idempotency_key: str | None = None,
    ) -> Resumed:
        """Answer an execution that waits for a person (specification, section 4.4). Sent once, never again.

        :param execution_id: the id of the first kickoff, never that of a continuation
        :param outcome: of a Flow: one of its outcomes; then ``is_approve`` may be None
        :param edited_output: approved instead of the draft, where the pending execution ``takes_edited_output``
        :param output_sha256: the hash of the draft that is answered, where the pending execution says ``checks_draft``:
            an answer to another one is refused then
        :raises CrewOutcomeUnknown: the answer may have been taken all the same
        """
        decided = isinstance(is_approve, bool) or (is_approve is None and outcome)
        if not isinstance(human_feedback, str) or not decided:
            raise CrewInvalidInput("is_approve must be a bool and human_feedback a string; nothing was sent")
        sent = self.with_credentials(webhooks)
        request = Resume(
            execution_id=execution_id,
            crew_task_id=crew_task_id,
            human_feedback=human_feedback,
            is_approve=is_approve,
            outcome=outcome,
            edited_output=edited_output,
            output_sha256=output_sha256,
            webhooks=sent,
            idempotency_key=idempotency_key,
        )
        return self.client.send(endpoints.resume(request), secrets=_credentials(sent))

    def stop(self, kickoff_id: str) -> bool:
        """Stop an execution (observed dialect, POST /stop); False if the service cannot, or has nothing to stop."""
        try:
            return self.client.send(endpoints.stop(kickoff_id))
        except CrewApiError as error:
            return _cannot_stop(error)

    async def astop(self, kickoff_id: str) -> bool:
        """Stop an execution without blocking the event loop."""
        await self._aconnect()
        try:
            return await self.client.asend(endpoints.stop(kickoff_id))
        except CrewApiError as error:
            return _cannot_stop(error)

    def resolve_agent(self, agent: str) -> ManagedAgentRef:
        """Return how logs and metrics call the crew as an agent; a connection leads to one crew, whatever the name."""
        return agents.ref(self.crew_conn_id, agent)

    def get_agent_capabilities(self, agent: str) -> ManagedAgentCapabilities:
        """Return what the crew can do as an agent."""
        return agents.capabilities()

    def invoke_agent(self, agent: str, request: ManagedAgentRequest) -> ManagedAgentResponse:
        """Start the crew with the prompt, wait for its end, and return its output.

        :raises ManagedAgentRejected: the service refused the prompt
        :raises ManagedAgentInvocationError: nothing was started, and asking again cannot help
        :raises CrewAgentFailed: the crew was started, or may have been; it was stopped if it had not ended
        :raises CrewError: nothing was started, and asking again may help
        """
        prompt = agents.prompt_of(request)
        return agents.response(agents.Consultation(self, self.prompt_input, request.timeout).answer(prompt))

    def test_connection(self) -> tuple[bool, str]:
        """Ask for the crew's inputs, as the Test button of the connection form does."""
        try:
            names = self.get_inputs()
        except CrewError as error:
            return False, str(error)
        return True, self.mask(f"The crew answers; its inputs: {', '.join(names) or 'none'}")

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
        held = self.look_up(webhook.conn_id)
        if not held.password:
            raise CrewInvalidInput(f"Connection {webhook.conn_id!r} of the human-input webhook has no password")
        if held.login:
            return HumanInputWebhook(webhook.url, username=held.login, password=held.password)
        return HumanInputWebhook(webhook.url, token=held.password)


def checked_inputs(inputs: Any) -> Json:
    """Return the inputs as plain JSON; `id` is refused, since live deployments overwrite records by it."""
    plain = plain_object(inputs, "inputs")
    if "id" in plain:
        raise CrewInvalidInput("inputs.id: is reserved by the service and overwrites records. Nothing was sent")
    return plain


def _credentials(webhooks: Webhooks | str | None) -> tuple[str, ...]:
    human = webhooks.human_input if isinstance(webhooks, Webhooks) else None
    return tuple(secret for secret in (human.token, human.password) if secret) if human else ()


def _cannot_stop(error: CrewApiError) -> bool:
    if error.status_code in (400, 404, 405, 409, 410, 422, 501):
        return False
    raise error
