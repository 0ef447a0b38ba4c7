"""The stub for `task`: other packages cannot extend Airflow's own, so this one adds `crew` to it.

Written by `python -m scripts.arguments` from the signature of `CrewKickoffOperator`.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Unpack, overload

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
        files: Mapping[str, Any] | XComArg | None = None,
        webhooks: Webhooks | Json | str | XComArg | None = None,
        meta: Json | XComArg | None = None,
        restore_from: str | XComArg | None = None,
        crew_conn_id: str = "crew_default",
        check_inputs: bool = True,
        wait_for_completion: bool = True,
        deferrable: bool = ...,
        poll_in_worker: float | str | timedelta = 0,
        poll_interval: float | str | timedelta = 10.0,
        timeout: float | str | timedelta | None = None,
        cancel_on_kill: bool = True,
        on_unknown_outcome: str = "fail",
        retry_from: str = "failed_task",
        output_schema: Json | str | type | None = None,
        max_total_tokens: int | None = None,
        max_cost: float | None = None,
        on_unknown_usage: str = "fail",
        stop_over_budget: bool = True,
        output_to: str | None = None,
        files_to: str | None = None,
        multiple_outputs: bool = False,
        **kwargs: Unpack[DecoratorArguments],
    ) -> TaskDecorator:
        """Run a crew with the inputs that the decorated function returns, and return the completed record.

        :param files: files to send, by input name: an absolute path on the worker, a path of Airflow's object storage
            such as ``s3://bucket/key``, or an ``https://`` address, which is passed on (templated)
        :param webhooks: a dict or `Webhooks` with the URLs to notify, or ``"inbox"`` (templated)
        :param meta: a dict that the service echoes in webhooks; the key ``airflow`` is added (templated)
        :param restore_from: for a Flow with ``@persist``, the id of the state to start from (templated)
        :param crew_conn_id: the connection of type ``crew`` (templated)
        :param check_inputs: request ``GET /inputs`` first, and fail if a required input is missing
        :param wait_for_completion: wait until the execution completes; an execution that is waiting for a person is
            treated as in progress, but a tool call whose outcome is unknown fails it, because nobody is asked about the
            call
        :param deferrable: wait in the triggerer, without a worker slot
        :param poll_in_worker: with ``deferrable``, how long to poll about once a second in the worker before the task
            defers, in seconds or as a timedelta; short runs then avoid the delay of a deferral
        :param poll_interval: the minimum pause between polls, in seconds or as a timedelta
        :param timeout: how long to wait, in seconds or as a timedelta; None for no limit
        :param cancel_on_kill: stop the execution (best effort) when the task is killed, cleared or times out
        :param on_unknown_outcome: what to do after a lost response: ``fail``, or ``retry`` and risk a second execution
        :param retry_from: with ``wait_for_completion``, where a retry continues after the execution has failed: at its
            ``failed_task`` if the service can continue the execution, or at the ``start``
        :param output_schema: the schema of the completed output: a JSON Schema (a dict), a pydantic model, or the
            model's import path, ``package.module:Model``
        :param max_total_tokens: fail the task if the execution uses more tokens; None for no limit
        :param max_cost: fail the task if the execution costs more, in USD; None for no limit
        :param on_unknown_usage: what to do if the service does not report the usage needed to check a completed
            execution against a limit: ``fail``, or ``ignore`` the limit
        :param stop_over_budget: stop an execution that exceeds a limit while it is running or waiting for a person;
            False lets it finish
        :param output_to: an object storage path to write the completed output to, instead of XCom; the record then has
            ``output: null`` and ``output_path`` (templated)
        :param files_to: an object storage folder to copy the crew's files to (templated)
        :param multiple_outputs: push each key of a completed output, which must be an object, as a separate XCom; the
            record is still ``return_value``
        :param kwargs: arguments of every task, such as ``retries`` and ``pool``
        """
    @overload
    def crew(self, python_callable: Callable[FParams, FReturn]) -> Task[FParams, FReturn]: ...

task: CrewTaskDecoratorCollection
