"""`@task.crew`: turns a function that returns the inputs into a task that runs the crew."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import (
    SET_DURING_EXECUTION,
    BaseOperator,
    TaskDecorator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.providers.common.compat.sdk import DecoratedOperator as AnyDecoratedOperator

from airflow_crew_provider.kickoff.files import with_files_of_function
from airflow_crew_provider.kickoff.request import refuse_literal_credentials
from airflow_crew_provider.models import CrewInputs
from airflow_crew_provider.operators.kickoff import CrewKickoffOperator
from airflow_crew_provider.wait.outcomes import ends_in_a_sentence


class DecoratedOperator(AnyDecoratedOperator):
    """A workaround for Airflow 3.0, which reads the attribute `xcom_push`, although its operators do not have it."""

    if not hasattr(BaseOperator, "xcom_push"):
        xcom_push = None


class _CrewDecoratedOperator(DecoratedOperator, CrewKickoffOperator):
    """Call the function to get the inputs and files, then start the crew with them and wait until it completes."""

    custom_operator_name = "@task.crew"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *CrewKickoffOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **CrewKickoffOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("wait_for_completion", True)
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            inputs=SET_DURING_EXECUTION,
            **kwargs,
        )

    @ends_in_a_sentence
    def execute(self, context: Any) -> Any:
        """Call the function and run the crew; the inputs that it returns are not rendered as templates."""
        known = copy(context)  # a parameter may have the name of a context variable, which the kickoff reads below
        context_merge(known, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, known)
        returned = self.python_callable(*self.op_args, **kwargs)
        returned = asyncio.run(_result(returned)) if inspect.isawaitable(returned) else returned
        if isinstance(returned, CrewInputs):
            self.inputs, self.files = returned.inputs, with_files_of_function(self.files, returned.files)
        else:
            self.inputs = returned
        return super().execute(context)


async def _result(inputs: Awaitable[Any]) -> Any:
    """Await the inputs from an ``async def`` function."""
    return await inputs


def crew_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Wrap a function that returns the crew's inputs. The arguments are those of `CrewKickoffOperator`.

    The function may return `CrewInputs`, with files, and may be ``async def``. The task starts the crew, waits for it
    to complete and returns the completed record.
    """
    refuse_literal_credentials(kwargs.get("webhooks"))  # a mapped task's are stored without calling its constructor
    return task_decorator_factory(
        python_callable=python_callable,
        # Always pass this; otherwise, Airflow infers it from the annotation, which describes the inputs.
        multiple_outputs=bool(multiple_outputs),
        decorated_operator_class=_CrewDecoratedOperator,
        **kwargs,
    )
