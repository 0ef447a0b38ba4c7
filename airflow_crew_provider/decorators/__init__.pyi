"""The stub of `task`: Airflow's own cannot be extended by another package, so this one adds `crew` to it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Unpack, overload

from airflow.sdk import XComArg
from airflow.sdk.bases.decorator import FParams, FReturn, Task, TaskDecorator
from airflow.sdk.definitions.decorators import TaskDecoratorCollection

from airflow_crew_provider.compat.arguments import DecoratorArguments
from airflow_crew_provider.models import Json, Webhooks

__all__ = ["task"]

class CrewTaskDecoratorCollection(TaskDecoratorCollection):
    @overload
    def crew(
        self,
        *,
        webhooks: Webhooks | Json | str | XComArg | None = None,
        meta: Json | XComArg | None = None,
        restore_from: str | XComArg | None = None,
        crew_conn_id: str = "crew_default",
        check_inputs: bool = True,
        wait_for_completion: bool = True,
        deferrable: bool = ...,
        poll_interval: float | str | timedelta = 10.0,
        timeout: float | str | timedelta | None = None,
        cancel_on_kill: bool = True,
        on_unknown_outcome: str = "fail",
        output_schema: Json | str | type | None = None,
        max_total_tokens: int | None = None,
        max_cost: float | None = None,
        on_unknown_usage: str = "fail",
        stop_over_budget: bool = True,
        output_to: str | None = None,
        multiple_outputs: bool = False,
        **kwargs: Unpack[DecoratorArguments],
    ) -> TaskDecorator:
        """Run a crew with the inputs that the decorated function returns, and return the completed record.

        :param webhooks: a dict or `Webhooks` of the addresses to notify, or the word ``inbox`` (templated)
        :param meta: echoed by the service in webhooks; the key ``airflow`` is added (templated)
        :param restore_from: of a Flow with ``@persist``: the id of the state that it starts from (templated)
        :param crew_conn_id: the connection of type ``crew`` (templated)
        :param check_inputs: ask ``GET /inputs`` first, and fail if one that is known to be required is missing
        :param wait_for_completion: wait until the execution is completed; else return its id
        :param deferrable: wait in the triggerer, without a worker slot
        :param poll_interval: the shortest pause between two polls, in seconds or as a timedelta
        :param timeout: how long to wait, in seconds or as a timedelta; None for no end
        :param cancel_on_kill: stop the execution, best effort, when the task is killed, cleared or times out
        :param on_unknown_outcome: after a lost answer: ``fail``, or ``retry`` and risk a second execution
        :param output_schema: what the output must match: a JSON Schema, or a pydantic model or its import path
        :param max_total_tokens: fail if the execution uses more tokens
        :param max_cost: fail if the execution costs more, in USD
        :param on_unknown_usage: ``fail``, or ``ignore`` that the service does not report what a limit is compared with
        :param stop_over_budget: stop an execution that is seen over a limit while it runs or waits for a person
        :param output_to: a path of object storage to write the output to, instead of the XCom (templated)
        :param multiple_outputs: push each key of the output as an XCom of its own
        :param kwargs: arguments of every task, such as ``retries`` and ``pool``
        """
    @overload
    def crew(self, python_callable: Callable[FParams, FReturn]) -> Task[FParams, FReturn]: ...

task: CrewTaskDecoratorCollection
