"""A draft that does not match a schema is sent back with its violations, before anybody is asked.

At most once for an execution; never in the last round, never a draft that a person was asked about, one of a Flow, or
one of a task that others follow. What is not sent back is shown to the person together with its violations.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_crew_provider.core.edited_output import edit_problem
from airflow_crew_provider.core.feedback import record_or_none
from airflow_crew_provider.core.output_schema import listed, matching, refuse_bad_schema, validator_of
from airflow_crew_provider.core.refused_answer import code
from airflow_crew_provider.core.stored_names import BY_SCHEMA, REVIEW_KEY, SCHEMA_REVISION
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.draft_edit import edited_text, with_edit
from airflow_crew_provider.operators.flow_question import chosen, is_of_flow
from airflow_crew_provider.operators.review_answer import (
    VIOLATIONS,
    identity_of,
    in_one_line,
    review_of,
    shown_draft,
    text_of,
    whole_draft,
)
from airflow_crew_provider.operators.review_question import ReviewQuestion
from airflow_crew_provider.tasks.outcomes import fail_task
from airflow_crew_provider.tasks.question_record import question_of

EARLIER = "earlier"
FAIL, REVISE = "fail", "revise"


class SchemaRevision(ReviewQuestion):
    """The part of `CrewReviewOperator` that a schema decides, and the record of any decision."""

    output_schema: Any
    on_schema_mismatch: str

    def _shown(self, pending: Json) -> Json:
        """Return what a person is shown of a pending record, with what is wrong with the draft."""
        try:
            found = violations_of(self.output_schema, pending)
        except CrewInvalidInput as error:
            fail_task(error, "Nobody was asked, and the execution stays paused; correct the rule and clear this task")
        return {**shown_draft(pending), **({VIOLATIONS: listed(found)} if found else {})}

    def _by_schema(self, context: Any, shown: Json) -> Json | None:
        """Return the review that sends a draft back; None if a person is to decide."""
        if self.on_schema_mismatch != REVISE or not shown.get(VIOLATIONS) or self._sent_back_before(context, shown):
            return None
        if self._form(shown, None).is_last or question_of(context, self).is_open_for(identity_of(shown)):
            return None
        review = revision_by_schema(shown)
        question_of(context, self).sent_back(identity_of(shown))
        self._write_down(context, shown, review)
        return review

    def _problem_with_edit(self, shown: Json, event: Json) -> str | None:
        """Say why an edited text is not accepted; one that is to be the output must match the schema."""
        edited = edited_text(shown, event)
        if edited is None:
            return None
        problem = edit_problem(text_of(shown["output"]), edited)
        if problem:
            return problem
        answer = {**chosen(shown, event["chosen_options"][0], self.words), "human_feedback": ""}
        if "edited_output" not in with_edit(answer, shown, edited):
            return None
        try:
            draft = {**(record_or_none(self.pending) or {}), **shown, "output": edited}
            found = violations_of(self.output_schema, draft)
        except CrewInvalidInput as error:
            return str(error)
        return f"the edited text does not match the schema of the output: {code(listed(found))}" if found else None

    def _sent_back_before(self, context: Any, shown: Json) -> Json:
        """Return what a review says after one by the schema; empty if the execution has had none.

        The round before says so, and from Airflow 3.3 on what this task did before it was cleared.
        """
        previous = record_or_none(self.previous) or {}
        earlier = question_of(context, self).draft_sent_back
        used = previous.get(SCHEMA_REVISION) and previous.get("execution_id") == shown["execution_id"]
        used = used or (earlier and earlier != identity_of(shown) and earlier[0] == shown["execution_id"])
        return {SCHEMA_REVISION: EARLIER} if used else {}

    def _write_down(self, context: Any, shown: Json, review: Json) -> None:
        """Store the decision with the draft that it was made on, and log it in one line."""
        rounds = {"round": self.round_number, "max_rounds": self.max_rounds}
        decision = {**review, **rounds, "output": whole_draft(record_or_none(self.pending), shown)}
        context["ti"].xcom_push(key=REVIEW_KEY, value=decision)
        self.log.info(in_one_line(decision))


def refuse_bad_policy(output_schema: Any, on_schema_mismatch: str) -> None:
    """Refuse, when the DAG file is parsed, what cannot be compared or done."""
    if output_schema is not None:
        refuse_bad_schema(output_schema)
    if on_schema_mismatch not in (FAIL, REVISE):
        raise ValueError(f"on_schema_mismatch is 'fail' or 'revise', not {on_schema_mismatch!r}")
    if on_schema_mismatch == REVISE and output_schema is None:
        raise ValueError("on_schema_mismatch='revise' needs output_schema")


def violations_of(schema: Any, pending: Json) -> list[str]:
    """List how a draft violates the schema that the output must match; none of a draft that is not the output.

    Where the service does not report its progress, every draft of a crew counts as the output.
    """
    if schema is None or is_of_flow(pending) or _tasks_follow(pending):
        return []
    return matching(validator_of(schema), pending["output"])[1]


def revision_by_schema(shown: Json) -> Json:
    """Return the review that asks for a revision with the violations as feedback."""
    feedback = (
        "The output does not match the schema that it must match. Violations, each with its path: "
        f"{shown[VIOLATIONS]}. Return the whole output again so that it matches"
    )
    now = {"responded_at": datetime.now(UTC)}
    review = review_of(shown, now, choice={"is_approve": False}, feedback=feedback, reviewer=None)
    return {**review, SCHEMA_REVISION: BY_SCHEMA}


def _tasks_follow(pending: Json) -> bool:
    done, total = pending.get("completed_tasks"), pending.get("total_tasks")
    return isinstance(done, int) and isinstance(total, int) and total - done > 1
