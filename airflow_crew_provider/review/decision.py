"""The question in a draft's review, and the decision that follows an answer. Needs Airflow 3.1 or newer.

An approval is deliberate and belongs to the draft shown:

* Approval is never the default. The DAG's author decides what happens at the deadline, which never approves a draft
  that somebody has rejected in the meantime. A tool call that the form cannot show in full is denied.
* The form that the person saw determines whether an answer is valid, even if the DAG file has been edited since.
* An invalid answer is not accepted, and the person is asked again and shown the reason.
* An answer does not count if the person may not answer yet, or has already approved. Neither does one that was given
  more than a minute after the deadline, no matter when it is delivered.
* A decision is stored together with its draft before the task succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.status import json_object_in
from airflow_crew_provider.api.values import record_or_none
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.answer_trigger import unreadable
from airflow_crew_provider.compat.loops import previous_xcom
from airflow_crew_provider.compat.task_instance import map_index_of
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.flows import questions as flow
from airflow_crew_provider.models import Json
from airflow_crew_provider.review import airflow_form, answer, drafts
from airflow_crew_provider.review.answer import EARLIER, REVISE, VIOLATIONS, identity_of, notice
from airflow_crew_provider.review.drafts import code
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.review.people import Escalation
from airflow_crew_provider.review.question import Question
from airflow_crew_provider.stored_names import (
    FEEDBACK_FIELD,
    OTHER_QUESTION,
    REFUSED_KEY,
    REJECTED_BEFORE,
    REVIEW_KEY,
    SCHEMA_REVISION,
)
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, fail_task
from airflow_crew_provider.wait.schema import listed

TERMS = (
    *("words", "on_timeout", "on_tool_timeout", "allow_edit", "approvals", "may_answer", "users"),
    *("round_number", "max_rounds"),
)
NOBODY_APPROVED = "Denied, because nobody approved the call in time."


@dataclass(frozen=True, kw_only=True)
class ReviewRules:
    """The rendered arguments of `CrewReviewOperator`; those in `TERMS` are the ones shown to the person.

    :param whole: where to find the whole draft, for a form that shows only part of it
    :param again: a sentence about the effect of clearing the task, for messages
    """

    pending: Any
    previous: Any
    previous_task: str | None
    round_number: int | None
    max_rounds: int | None
    words: list[str]
    on_timeout: str | Json
    on_tool_timeout: str
    allow_edit: bool
    approvals: int
    auto_approve: Callable[[Json], Any] | None
    escalation: Escalation
    may_answer: Json | None
    users: list[str] | None
    output_schema: Any
    on_schema_mismatch: str
    crew_conn_id: str
    whole: str
    again: str = answer.ASK_AGAIN

    holds_another: ClassVar[str] = (
        "Airflow still holds the draft from an earlier run of this task and cannot show the new one, so nobody was "
        "asked and nothing was sent. The execution stays paused; start a new DAG run instead of "
        "clearing this one, or answer with CrewResumeOperator"
    )

    def terms(self) -> Json:
        """Return the arguments that determine whether an answer is valid."""
        return {name: getattr(self, name) for name in TERMS}

    def by(self, terms: Json) -> ReviewRules:
        """Return the rules with the terms of a form that was shown."""
        return replace(self, **{name: terms[name] for name in TERMS if name in terms})

    def record(self) -> Json:
        """Return the pending record, or the completed one."""
        try:
            return answer.pending_record(self.pending)
        except CrewInvalidInput as error:
            fail_task(error)

    def shown(self, pending: Json) -> Json:
        """Return the part of a pending record to show to a person, with the draft's violations."""
        try:
            found = answer.violations_of(self.output_schema, pending)
        except CrewInvalidInput as error:
            fail_task(error, "Nobody was asked, and the execution stays paused; correct the rule and clear this task")
        return {**answer.shown_draft(pending), **({VIOLATIONS: listed(found)} if found else {})}

    def shown_now(self) -> Json:
        """Return the content to show now."""
        return self.shown(self.record())

    def at_deadline(self, shown: Json) -> list[str] | None:
        """Return the choice made if nobody answers in time; None if the task then fails."""
        if asks.ask_in(shown):
            return None if self.policy(shown) == "fail" else [self.on_tool_timeout]
        return flow.at_deadline(shown, self.words, self.on_timeout)

    def policy(self, shown: Json) -> str | Json:
        """Return the deadline policy; an agent's question always needs a person's answer."""
        ask = asks.ask_in(shown)
        if ask is None:
            return self.on_timeout
        return self.on_tool_timeout if ask["kind"] == asks.TOOL else "fail"

    def needs_text(self, shown: Json) -> str | None:
        """Return the choice that needs feedback; None if none does."""
        if ask := asks.ask_in(shown):
            return asks.needs_text(ask)
        return None if flow.outcomes_of(shown) else self.words[1]

    def approving(self, shown: Json) -> list[str] | None:
        """Return the choice that approves; None if there is no clear one."""
        if ask := asks.ask_in(shown):
            return [asks.APPROVE] if ask["kind"] == asks.TOOL else None
        return flow.approving(shown, self.words)

    def options(self, shown: Json) -> list[str]:
        """Return the choices."""
        ask = asks.ask_in(shown)
        if ask:
            return asks.words_of(ask, is_whole=drafts.is_whole(shown))
        return flow.outcomes_of(shown) or self.words

    def chosen(self, shown: Json, option: str) -> Json:
        """Return the meaning of a choice."""
        ask = asks.ask_in(shown)
        return asks.answered(ask, option) if ask else flow.chosen(shown, option, self.words)

    def needed(self, shown: Json, choice: Json) -> int:
        """Return how many people must make a choice: only one, except to approve a draft or to let a tool run."""
        runs = choice["outcome"] in asks.RUNS_A_TOOL if asks.ask_in(shown) else choice["is_approve"]
        return self.approvals if runs else 1

    def edits(self, shown: Json) -> bool:
        """Whether the person may edit: a draft if the DAG allows it, a tool's arguments if one approver is enough."""
        return self.approvals == 1 if asks.ask_in(shown) else self.allow_edit

    def offer(self, task: airflow_form.HITLOperator, shown: Json) -> None:
        """Set the form's choices, fields and default; the choices depend on whether an agent, a Flow or a crew asks."""
        ask, edited = asks.ask_in(shown), drafts.editable_text(shown) if self.edits(shown) else None
        task.options = self.options(shown)
        if ask:
            task.body = None  # the DAG's own body might not show the call
            task.params = airflow_form.form_params(task, asks.feedback_hint(ask), edited, "Arguments")
        else:
            task.params = airflow_form.form_params(task, flow.feedback_hint(shown), edited)
        try:
            chosen = self.at_deadline(shown)
            flow.refuse_approvals_of(shown, self.approvals)
        except CrewInvalidInput as error:
            fail_task(error)
        # With defaults, Airflow would answer the question at the first escalation step.
        task.defaults = None if self.escalation.steps or task.response_timeout is None else chosen

    def form(self, context: Any, shown: Json, until: str | None, refused: str, later: list[str]) -> ReviewForm:
        """Return the form, including the previous round."""
        return replace(
            self.page(shown),
            previous=self._round_before(context),
            refused=refused,
            later=later,
            until=(datetime.fromisoformat(until) if until else None),
        )

    def page(self, shown: Json) -> ReviewForm:
        """Return a draft's form, without the previous round, the last refusal, the escalation or the deadline."""
        return ReviewForm(
            pending=shown,
            approve=self.words[0],
            revise=self.words[1],
            round_number=self.round_number,
            max_rounds=self.max_rounds,
            on_timeout=self.policy(shown),
            allow_edit=self.edits(shown),
            approvals=max(self.needed(shown, self.chosen(shown, each)) for each in self.options(shown)),
            whole=self.whole,
        )

    def _round_before(self, context: Any) -> Json | None:
        """Return the previous round's review, with its draft if that review was made in this DAG."""
        review = record_or_none(self.previous)
        if review is None or self.previous_task is None:
            return review
        decision = record_or_none(self._decision_before(context, self.previous_task)) or {}
        is_of_review = decision.get("output_sha256") == review.get("output_sha256")
        return decision if is_of_review else review

    def _decision_before(self, context: Any, task_id: str) -> Any:
        ti = context["ti"]
        if task_id == ti.task_id:  # in a loop
            return previous_xcom(context, task_id, REVIEW_KEY)
        return ti.xcom_pull(task_ids=task_id, key=REVIEW_KEY, map_indexes=map_index_of(ti))


class Decision:
    """The decision on a question's draft.

    :param until: when the question expires, in ISO 8601
    """

    def __init__(self, question: Question[ReviewRules], shown: Json, until: str | None = None) -> None:
        self._question, self._shown, self._until = question, shown, until
        self._task, self._context = question.task, question.context
        self._rules, self._record = question.rules, question.record

    def decide_without_person(self) -> Json | None:
        """Return a review that can be made without a person; None if a person must decide."""
        return self._denied_unseen() or self._by_schema() or self._by_rule()

    def _denied_unseen(self) -> Json | None:
        """Return the review that denies a tool call that a person cannot see in full."""
        ask = asks.ask_in(self._shown)
        if ask is None or ask["kind"] != asks.TOOL or drafts.is_whole(self._shown):
            return None
        return self._written_down(answer.denial_unseen(self._shown, ask))

    def _by_rule(self) -> Json | None:
        """Return the review with which ``auto_approve`` approves a draft before a person sees it."""
        rule, identity = self._rules.auto_approve, identity_of(self._shown)
        if rule is None or asks.ask_in(self._shown) or flow.is_of_flow(self._shown):
            return None
        if self._record.is_open_for(identity) or self._was_rejected():
            return None
        try:
            reason = rule(deepcopy(self._rules.record()))
        except Exception:
            self._task.log.warning("auto_approve failed, so a person is asked", exc_info=True)
            return None
        if not isinstance(reason, str) or not reason.strip():
            return None
        return self._written_down(answer.approval_by_rule(self._shown, reason))

    def _by_schema(self) -> Json | None:
        """Return the review that sends back a draft because of its violations."""
        wanted = self._rules.on_schema_mismatch == REVISE and self._shown.get(VIOLATIONS)
        if not wanted or self._sent_back_before():
            return None
        if self._rules.page(self._shown).is_last or self._record.is_open_for(identity_of(self._shown)):
            return None
        review = answer.revision_by_schema(self._shown)
        self._record.mark_sent_back(identity_of(self._shown))
        return self._written_down(review)

    def end_at_deadline(self) -> Json:
        """Return the event for a deadline that Airflow does not know about or has not noticed.

        :raises CrewTaskFailed: the policy chooses nothing
        """
        chosen = self._rules.at_deadline(self._shown)
        if chosen is None:
            self._record.close()
            raise CrewTaskFailed(answer.no_answer(self._shown, self._task.response_timeout, self._rules.again))
        return airflow_form.deadline_event(chosen)

    def decide(self, event: Json) -> Json:
        """Return the review, or ask again if the answer is invalid."""
        try:
            answer.refuse_changed(self._rules.pending, self._shown)
        except CrewInvalidInput as error:
            fail_task(error)
        if late := airflow_form.too_late(event, self._until):
            # Like any rejection that was not accepted, a late one prevents approval at the deadline.
            self._task.log.warning("%s.%s The deadline decides", late, self._keep_refused(event))
            event = self.end_at_deadline()
        if self._rules.edits(self._shown):
            event = drafts.read_edit(self._shown, event)
        policy = self._rules.policy(self._shown)
        in_time = policy == "fail" or not airflow_form.timed_out(event)
        approves_late = not in_time and policy == "approve"
        if approves_late and self._was_rejected():
            self._refuse_late_approval()
        problem = self._problem(event) if in_time else None
        if problem:
            self._refuse(event, problem)
        review = self._review(event, in_time=in_time)
        if in_time and self._rules.needed(self._shown, review) > 1:
            review = self._with_others(review)
        kind = (asks.ask_in(self._shown) or {}).get("kind", "draft")
        metrics.reviewed(self._rules.crew_conn_id, kind, self._record.asked_at, event["responded_at"])
        review = self._written_down(review)
        if in_time:
            self._keep_rejection(event)
        self._record.close()
        if review["is_approve"] is False and self._rules.page(self._shown).needs_another_round:
            # Keep the decision on record.
            self._context["ti"].xcom_push(key="return_value", value=review)
            raise CrewTaskFailed(answer.no_round_left(review, self._rules.max_rounds))
        return review

    # --- which answers are accepted ---

    def _refuse_late_approval(self) -> None:
        self._record.close()
        raise CrewTaskFailed(
            "Somebody has rejected this draft, so it was not approved at the deadline. Nothing was sent: execution "
            f"{self._shown['execution_id']} stays paused. {self._rules.again}. You can also "
            "answer with CrewResumeOperator"
        )

    def _refuse(self, event: Json, problem: str) -> None:
        """Ask again, which removes the answer."""
        who, kept = airflow_form.name_of(event), self._keep_refused(event)
        self._task.log.warning("The answer from %s is not accepted because %s.%s Asking again", who, problem, kept)
        self._question.ask(self._shown, self._until, notice(who, problem))

    def _keep_refused(self, event: Json) -> str:
        """Store an answer that is not accepted, and any rejection in it; return a sentence about its content."""
        self._keep_rejection(event)
        if not event.get("params_input") or unreadable(event["params_input"]):
            return ""
        self._context["ti"].xcom_push(key=REFUSED_KEY, value=event["params_input"])
        return f" Its content is kept in XCom {REFUSED_KEY}."

    def _keep_rejection(self, event: Json) -> None:
        """Record a rejection: the draft may stay open, and an edited DAG could approve it at the deadline."""
        approving = self._rules.approving(self._shown)
        chosen = event.get("chosen_options")
        is_about_it = not (airflow_form.timed_out(event) or event.get(OTHER_QUESTION))
        if chosen and approving and chosen != approving and is_about_it:
            self._record.reject_draft(identity_of(self._shown))

    def _problem(self, event: Json) -> str | None:
        """Return why an event is not a valid answer; None if it is valid."""
        needs_text = self._rules.needs_text(self._shown)
        return (
            answer.problem_with(event, self._task.options, list(self._task.params), needs_text)
            or self._too_early(event)
            or self._approved_before(event)
            or airflow_form.problem_with_fields(self._task, self._context, event)
            or (self._problem_with_edit(event) if self._rules.edits(self._shown) else None)
        )

    def _too_early(self, event: Json) -> str | None:
        """Return a problem if somebody may not answer this form, or not before a later escalation step."""
        may, user = self._rules.may_answer, event.get("responded_by_user")
        if may is None or user is None:
            return None
        if user.get("id") not in may:
            return f"{code(airflow_form.name_of(event))} is not among those who may answer this form"
        at = self._record.since(identity_of(self._shown)) + timedelta(seconds=may[user["id"]])
        if event["responded_at"] >= at or not may[user["id"]]:
            return None
        return f"{code(airflow_form.name_of(event))} may not answer before {at:%Y-%m-%d %H:%M:%S} UTC"

    def _approved_before(self, event: Json) -> str | None:
        """Return a problem if the same person approved twice, or if the approver is unknown."""
        if self._rules.needed(self._shown, self._choice(event)) == 1:
            return None
        who = (event.get("responded_by_user") or {}).get("id")
        if not who:
            return "Airflow does not report who approved, but different people must approve"
        approvals = self._record.approvals
        # If there are enough approvals, this is the last one redelivered after a failed attempt.
        if who not in _ids(approvals) or len(approvals) >= self._rules.approvals:
            return None
        return f"{code(airflow_form.name_of(event))} has already approved, but another person must also approve"

    def _problem_with_edit(self, event: Json) -> str | None:
        """Return why an edited text is invalid; text that becomes the output must match the schema."""
        edited = drafts.edited_text(self._shown, event)
        if edited is None:
            return None
        if ask := asks.ask_in(self._shown):
            is_sent = self._choice(event)["outcome"] == asks.APPROVE
            return asks.problem_with_arguments(asks.arguments_of(ask), json_object_in(edited)) if is_sent else None
        problem = drafts.edit_problem(drafts.text_of(self._shown["output"]), edited)
        if problem:
            return problem
        review = {**self._choice(event), "human_feedback": ""}
        if "edited_output" not in drafts.with_edit(review, self._shown, edited):
            return None
        try:
            draft = {**(record_or_none(self._rules.pending) or {}), **self._shown, "output": edited}
            found = answer.violations_of(self._rules.output_schema, draft)
        except CrewInvalidInput as error:
            return str(error)
        return f"the edited text does not match the output schema: {code(listed(found))}" if found else None

    # --- the meaning of an answer ---

    def _choice(self, event: Json) -> Json:
        return self._rules.chosen(self._shown, event["chosen_options"][0])

    def _review(self, event: Json, *, in_time: bool) -> Json:
        feedback = (event.get("params_input") or {}).get(FEEDBACK_FIELD) or ""
        policy = self._rules.policy(self._shown)
        if not in_time and isinstance(policy, dict):
            feedback = policy["revise"]
        if not in_time and policy == asks.DENY:
            feedback = NOBODY_APPROVED
        edited = drafts.edited_text(self._shown, event) if self._rules.edits(self._shown) and in_time else None
        reviewer = event.get("responded_by_user") if in_time else None
        choice = self._choice(event)
        review = answer.review_of(self._shown, event, choice=choice, feedback=feedback, reviewer=reviewer)
        if edited is None:
            return review
        review = drafts.with_edit(review, self._shown, edited)
        self._task.log.info(drafts.said_of(review, edited))
        return review

    def _with_others(self, review: Json) -> Json:
        """Return the review once enough people have approved; until then, ask the next person."""
        approval = {name: review[name] for name in ("reviewer", "decided_at", "human_feedback")}
        given = self._record.approvals
        approvals = given if len(given) >= self._rules.approvals else self._record.add_approval(approval)
        missing = self._rules.approvals - len(approvals)
        if missing <= 0:
            return answer.of_all_approvals(review, approvals)
        said = f"Approved by {', '.join(code(each) for each in _ids(approvals))}; {missing} more must approve"
        self._task.log.info("%s. Asking again", said)
        self._question.ask(self._shown, self._until, f"{said}.")

    def _was_rejected(self) -> bool:
        """Whether a person has rejected this draft, here or in an earlier round, even if the answer was refused."""
        is_known = self._record.was_rejected(identity_of(self._shown))
        return is_known or self._shown["output_sha256"] in self._rejected_before()

    def _rejected_before(self) -> list[Any]:
        """Return the hashes of this execution's drafts that people rejected in earlier rounds."""
        previous = record_or_none(self._rules.previous) or {}
        if previous.get("execution_id") != self._shown["execution_id"]:
            return []
        draft = previous.get("output_sha256")
        is_rejection = previous.get("is_approve") is False and previous.get("reviewer") and draft
        earlier = previous.get(REJECTED_BEFORE)
        return [*(earlier if isinstance(earlier, list) else []), *([draft] if is_rejection else [])]

    def _sent_back_before(self) -> Json:
        """Return the field for a review if a schema has already sent back a draft of its execution; empty if not.

        The previous round shows that; from Airflow 3.3 on, so does this task's record from before it was cleared.
        """
        previous, earlier = record_or_none(self._rules.previous) or {}, self._record.draft_sent_back
        execution_id = self._shown["execution_id"]
        used = previous.get(SCHEMA_REVISION) and previous.get("execution_id") == execution_id
        used = used or (earlier and earlier != identity_of(self._shown) and earlier[0] == execution_id)
        return {SCHEMA_REVISION: EARLIER} if used else {}

    def _written_down(self, review: Json) -> Json:
        """Add the facts about earlier rounds that the next one needs; store the review with its draft, and log it."""
        rejected = self._rejected_before()
        review = {**review, **self._sent_back_before(), **({REJECTED_BEFORE: rejected} if rejected else {})}
        rounds = {"round": self._rules.round_number, "max_rounds": self._rules.max_rounds}
        draft = answer.whole_draft(record_or_none(self._rules.pending), self._shown)
        decision = {**review, **rounds, "output": draft}
        self._context["ti"].xcom_push(key=REVIEW_KEY, value=decision)
        self._task.log.info(answer.in_one_line(decision))
        return review


def _ids(approvals: list[Json]) -> list[str]:
    return [each["reviewer"]["id"] for each in approvals]
