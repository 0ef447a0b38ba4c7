"""Polls that also read what a Flow has asked by webhook: a live status shows the pause and no question."""

from __future__ import annotations

from airflow_crew_provider.compat import flow_variables
from airflow_crew_provider.core.flow_webhooks import FlowQuestion
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution, ExecutionState


class FlowHook(CrewHook):
    """A hook of a connection whose deployment may send signed webhooks; without their secret it is a plain one."""

    def poll(self, kickoff_id: str, timeout: float | None = None) -> Execution | CrewError:
        """Poll the status and, where it shows a pause without its question, what has arrived."""
        reply = super().poll(kickoff_id, timeout)
        if not self._lacks_question(reply):
            return reply
        try:
            return _with(reply, flow_variables.open_question(self.crew_conn_id, _ids(reply)))
        except Exception:
            return self._without_question(reply)

    async def _apoll(self, kickoff_id: str, timeout: float | None) -> Execution | CrewError:  # noqa: ASYNC109 - passed on
        reply = await super()._apoll(kickoff_id, timeout)
        if not self._lacks_question(reply):
            return reply
        try:
            return _with(reply, await flow_variables.aopen_question(self.crew_conn_id, _ids(reply)))
        except Exception:
            return self._without_question(reply)

    def _lacks_question(self, reply: Execution | CrewError) -> bool:
        paused = isinstance(reply, Execution) and reply.state is ExecutionState.PENDING and not reply.crew_task_id
        return paused and self.connection.flow_webhook_secret is not None

    def _without_question(self, reply: Execution | CrewError) -> Execution | CrewError:
        self.log.warning("The questions that arrived by webhook could not be read; polling continues", exc_info=True)
        return reply


def _ids(reply: Execution | CrewError) -> list[str]:
    assert isinstance(reply, Execution)
    return list(dict.fromkeys(each for each in (reply.kickoff_id, reply.flow_id) if each))


def _with(reply: Execution | CrewError, question: FlowQuestion | None) -> Execution | CrewError:
    assert isinstance(reply, Execution)
    return reply if question is None else question.as_execution(reply.kickoff_id, reply.raw)
