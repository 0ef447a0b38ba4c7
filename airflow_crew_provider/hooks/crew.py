"""The hook for a deployed crew, as configured in an Airflow connection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Kickoff, Resume
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.exceptions import CrewApiError, CrewError
from airflow_crew_provider.hooks import agent as agents
from airflow_crew_provider.kickoff.files import KickoffFiles, checked_files
from airflow_crew_provider.models import EditedOutput, Execution, Json, Resumed, Webhooks

if TYPE_CHECKING:
    from airflow.providers.common.ai.managed_agents.base import (
        ManagedAgentCapabilities,
        ManagedAgentRef,
        ManagedAgentRequest,
        ManagedAgentResponse,
    )


class CrewHook(ConnectedCrew, agents.BaseManagedAgentHook):  # type: ignore[misc,name-defined]
    """Start, watch, resume and stop executions of a deployed crew.

    With the extra ``common-ai``, ``CrewHook(...).agent("newsroom")`` returns the crew as a common-ai agent.

    :param crew_conn_id: the connection of type ``crew``: base URL as Host, bearer token as Password
    :param prompt_input: the crew's input that takes an agent's prompt; None for its only required input
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
        """Return the connection form for Airflow before 3.2; newer versions read it from the provider info."""
        from airflow_crew_provider.get_provider_info import legacy_field_behaviour

        return legacy_field_behaviour()

    @classmethod
    def get_connection_form_widgets(cls) -> Json:
        """Return the fields of the connection form for Airflow before 3.2."""
        from airflow_crew_provider.compat.connections import widgets
        from airflow_crew_provider.get_provider_info import connection_fields

        return widgets(connection_fields())

    def get_inputs(self) -> list[str]:
        """Return the names of the crew's inputs (specification, section 4.1)."""
        return self.inputs().names

    def kickoff(
        self,
        inputs: Json,
        *,
        files: dict[str, str] | None = None,
        webhooks: Webhooks | Json | None = None,
        meta: Json | None = None,
        restore_from: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Start an execution and return its kickoff id (specification, section 4.2). The request is never repeated.

        :param files: files to upload first, as in `CrewKickoffOperator`, by input name
        :param restore_from: for a Flow with ``@persist``: the id of the state to start from
        :raises CrewFileError: a file cannot be read, or was not taken
        :raises CrewConnectionError: the request could not be sent
        :raises CrewOutcomeUnknown: the service may have started the execution
        """
        request = Kickoff(
            inputs=inputs,
            webhooks=self.with_credentials(webhooks),
            meta=meta,
            restore_from=restore_from,
            idempotency_key=idempotency_key,
        ).checked()
        sent = KickoffFiles(checked_files(files, request.inputs))
        sent.upload(self)
        return self.send_kickoff(replace(request, files=sent.addresses or None)).kickoff_id

    def upload(self, name: str, source: str) -> str:
        """Upload a file and return its address, for a kickoff's ``files`` (observed dialect, Files in).

        :param name: the name of the crew's input
        :param source: an absolute path, or a path of Airflow's object storage
        :raises CrewFileError: the file cannot be read, or was not taken
        :raises CrewInvalidInput: the deployment takes no files, or none of this size
        """
        files = KickoffFiles(checked_files({name: source}, {}))
        files.upload(self)
        return files.addresses[name]

    def get_status(self, kickoff_id: str) -> Execution:
        """Poll an execution (specification, section 4.3)."""
        return self.client.send(endpoints.status(kickoff_id))

    def list_executions(self, state: str | None = None, limit: int = 20) -> list[Execution]:
        """Return the newest executions that the token may see, without outputs.

        :param state: return only executions in this state: ``running``, ``pending``, ``completed`` or ``error``
        :param limit: the maximum number, up to 100
        :raises CrewApiError: the service refused the request or, like live deployments, has no such list
        """
        try:
            return self.client.send(endpoints.executions(state, limit))
        except CrewApiError as error:
            if error.status_code in endpoints.NOT_OFFERED:
                error.detail = "this deployment has no list of executions; only airflow-crew-service has one"
            raise

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
        """Answer an execution that is waiting for a person (specification, section 4.4). The request is never repeated.

        :param execution_id: the id of the first kickoff, never that of a continuation
        :param outcome: for a Flow: one of its outcomes; for a question in the middle of a task: one of its choices;
            ``is_approve`` may then be None
        :param edited_output: the text to approve instead of the draft, if the pending execution
            ``takes_edited_output``; for a tool call, its changed arguments as a JSON object
        :param output_sha256: the hash of the answered draft, if the pending execution ``checks_draft``: the service
            then refuses an answer to another draft
        :raises CrewOutcomeUnknown: the service may have accepted the answer
        """
        request = Resume(
            execution_id=execution_id,
            crew_task_id=crew_task_id,
            human_feedback=human_feedback,
            is_approve=is_approve,
            outcome=outcome,
            edited_output=edited_output,
            output_sha256=output_sha256,
            webhooks=self.with_credentials(webhooks),
            idempotency_key=idempotency_key,
        )
        return self.send_resume(request)

    def resolve_agent(self, agent: str) -> ManagedAgentRef:
        """Return the agent's name for logs and metrics; a connection has one crew, whatever the name."""
        return agents.ref(self.crew_conn_id, agent)

    def get_agent_capabilities(self, agent: str) -> ManagedAgentCapabilities:
        """Return the crew's capabilities as an agent."""
        return agents.capabilities()

    def invoke_agent(self, agent: str, request: ManagedAgentRequest) -> ManagedAgentResponse:
        """Start the crew with the prompt, wait until it ends, and return its output.

        :raises ManagedAgentRejected: the service refused the prompt
        :raises ManagedAgentInvocationError: nothing was started, and asking again cannot help
        :raises CrewAgentFailed: the crew was started, or may have been; it was stopped if it had not ended
        :raises CrewError: nothing was started, and asking again may help
        """
        prompt = agents.prompt_of(request)
        return agents.response(agents.Consultation(self, self.prompt_input, request.timeout).answer(prompt))

    def test_connection(self) -> tuple[bool, str]:
        """Query the crew's inputs, for the Test button on the connection form."""
        try:
            names = self.get_inputs()
        except CrewError as error:
            return False, str(error)
        return True, self.mask(f"The crew responded; its inputs: {', '.join(names) or 'none'}")
