"""A round's tasks in a Task Loop, shared by all iterations; the context names the current one. Needs Airflow 3.4.

The review in the first iteration gets the record of the wait before the loop; later reviews get the record of the
previous iteration's wait, and the previous decision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_crew_provider.compat.loops import previous_xcom
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.review.decision import ReviewRules


class LoopReviewOperator(CrewReviewOperator):
    """A `CrewReviewOperator` that finds its round, draft and previous review in the loop.

    :param pending: the record of the wait before the loop
    """

    custom_operator_name = CrewReviewOperator.__name__

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Read the result of the previous iteration."""
        super().render_template_fields(context, jinja_env)
        loop = context["loop"]
        self.round_number = loop.index + 1
        if loop.index > 0:
            self.pending = loop.previous
            self.previous = previous_xcom(context, self.task_id, "return_value")
            self.hide_rendered()
            self.previous_task = self.task_id

    def rules(self) -> ReviewRules:
        """Return the rules; after the first iteration, no upstream task has the whole draft, so do not name one."""
        rules = super().rules()
        return replace(rules, whole="the record passed to this task") if self.previous_task else rules


class LoopResumeOperator(CrewResumeOperator):
    """A `CrewResumeOperator` that learns from the loop whether there is another round."""

    custom_operator_name = CrewResumeOperator.__name__

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Read the current iteration."""
        super().render_template_fields(context, jinja_env)
        loop = context["loop"]
        self.has_next_round = loop.index + 1 < loop.max_iterations
