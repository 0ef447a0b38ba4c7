"""Whose answer counts: that of a user of the escalation from its time on, and of several approvers each one's once."""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.compat import human_in_the_loop
from airflow_crew_provider.core.refused_answer import code
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.flow_question import chosen
from airflow_crew_provider.operators.review_answer import identity_of, of_all_approvals
from airflow_crew_provider.operators.review_question import ReviewQuestion
from airflow_crew_provider.tasks.question_record import question_of


class ReviewPeople(ReviewQuestion):
    """The part of `CrewReviewOperator` that looks at who has answered."""

    def _not_counted(self, context: Any, event: Json, shown: Json) -> str | None:
        return self._too_early(context, event, shown) or self._approved_before(context, event, shown)

    def _approved_before(self, context: Any, event: Json, shown: Json) -> str | None:
        """Say that the same person has approved twice, or nobody can tell who it was."""
        if self.approvals == 1 or not chosen(shown, event["chosen_options"][0], self.words)["is_approve"]:
            return None
        who = (event.get("responded_by_user") or {}).get("id")
        if not who:
            return "Airflow does not say who has approved, and different people must"
        approvals = question_of(context, self).approvals
        # With enough approvals it is the last one, after which a try was lost.
        if who not in _ids(approvals) or len(approvals) >= self.approvals:
            return None
        return f"{code(human_in_the_loop.name_of(event))} has approved already, and another person must"

    def _with_others(self, context: Any, shown: Json, until: str | None, review: Json) -> Json:
        """Return the review once enough people have approved; ask the next one before."""
        approval = {name: review[name] for name in ("reviewer", "decided_at", "human_feedback")}
        question = question_of(context, self)
        given = question.approvals
        approvals = given if len(given) >= self.approvals else question.approved(approval)
        missing = self.approvals - len(approvals)
        if missing <= 0:
            return of_all_approvals(review, approvals)
        said = f"Approved by {', '.join(code(each) for each in _ids(approvals))}; {missing} more must approve"
        self.log.info("%s. Asking again", said)
        self._ask(context, shown, until, f"{said}.")

    def _too_early(self, context: Any, event: Json, shown: Json) -> str | None:
        """Say that somebody has answered before the step of the escalation that names them."""
        if not self.escalation.steps:
            return None
        since = question_of(context, self).since(identity_of(shown))
        may = self.escalation.waits_for(event.get("responded_by_user"), since)
        if may is None or event["responded_at"] >= may:
            return None
        return f"{code(human_in_the_loop.name_of(event))} may answer from {may:%Y-%m-%d %H:%M:%S} UTC on only"


def _ids(approvals: list[Json]) -> list[str]:
    return [each["reviewer"]["id"] for each in approvals]
