"""What a review asks: its options, its fields and its form. Needs Airflow 3.1 or newer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_crew_provider.compat.human_in_the_loop import form_params
from airflow_crew_provider.core.feedback import record_or_none
from airflow_crew_provider.core.stored_names import REVIEW_KEY
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.draft_edit import editable_text
from airflow_crew_provider.operators.flow_question import at_deadline, feedback_hint, outcomes_of, refuse_approvals_of
from airflow_crew_provider.operators.question import Question
from airflow_crew_provider.operators.review_answer import pending_record, refuse_changed
from airflow_crew_provider.operators.review_form import ReviewForm
from airflow_crew_provider.tasks.outcomes import fail_task


class ReviewQuestion(Question):
    """The asking half of `CrewReviewOperator`, which has the arguments."""

    words: list[str]
    pending: Any
    previous: Any
    previous_task: str | None
    round_number: int | None
    max_rounds: int | None
    on_timeout: str | Json
    allow_edit: bool
    approvals: int
    choice_at_deadline: list[str] | None
    holds_another = (
        "Airflow still holds the draft of an earlier run of this task and cannot show the new one, so nobody was asked "
        "and nothing was sent. The execution stays paused at the service; start a new DAG run instead of clearing this "
        "one, or answer with CrewResumeOperator"
    )

    def _terms(self) -> Json:
        return {name: getattr(self, name) for name in ("words", "on_timeout", "allow_edit", "approvals")}

    def _offer(self, shown: Json) -> None:
        """Let the person choose from the Flow's outcomes, or approve and revise."""
        self.options = outcomes_of(shown) or self.words
        self.params = form_params(self, feedback_hint(shown), editable_text(shown) if self.allow_edit else None)
        try:
            self.choice_at_deadline = at_deadline(shown, self.words, self.on_timeout)
            refuse_approvals_of(shown, self.approvals)
        except CrewInvalidInput as error:
            fail_task(error)
        # With defaults Airflow would answer the question at the first step of escalation.
        self.defaults = None if self.escalation.steps else self.choice_at_deadline

    def _form_for(self, context: Any, shown: Json, until: str | None, refused: str, later: list[str]) -> ReviewForm:
        return self._form(shown, until, refused, previous=self._round_before(context), later=later)

    def _round_before(self, context: Any) -> Json | None:
        """Return the review of the round before, with its draft where that review is a task of this DAG."""
        review = record_or_none(self.previous)
        if review is None or self.previous_task is None:
            return review
        ti = context["ti"]
        index = -1 if ti.map_index is None else ti.map_index
        decision = ti.xcom_pull(task_ids=self.previous_task, key=REVIEW_KEY, map_indexes=index) or {}
        is_of_review = decision.get("output_sha256") == review.get("output_sha256")
        return decision if is_of_review else review

    def _form(self, shown: Json, until: str | None, refused: str = "", **more: Any) -> ReviewForm:
        upstream = sorted(self.upstream_task_ids)
        if len(upstream) == 1:
            more["whole"] = f"the XCom `return_value` of task `{upstream[0]}`"
        return ReviewForm(
            pending=shown,
            approve=self.words[0],
            revise=self.words[1],
            round_number=self.round_number,
            max_rounds=self.max_rounds,
            until=datetime.fromisoformat(until) if until else None,
            on_timeout=self.on_timeout,
            refused=refused,
            allow_edit=self.allow_edit,
            approvals=self.approvals,
            **more,
        )

    def _refuse_changed(self, shown: Json) -> None:
        try:
            refuse_changed(self.pending, shown)
        except CrewInvalidInput as error:
            fail_task(error)

    def _record(self) -> Json:
        try:
            return pending_record(self.pending)
        except CrewInvalidInput as error:
            fail_task(error)
