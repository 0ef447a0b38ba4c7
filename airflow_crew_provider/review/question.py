"""Asks a person a question and waits; retries and clears do not lose the answer. Needs Airflow 3.1 or newer.

A worker runs the task several times: the task asks and frees its slot, and resumes with an answer, at an escalation
step, at the deadline, or after a lost try. Each time, it creates one `Asking` from the stored record. It asks only if
no form shows this draft, or if nobody can answer that form any more; otherwise it first looks for an answer.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.compat.answer_trigger import unreadable
from airflow_crew_provider.compat.rendered_fields import HidesRecords
from airflow_crew_provider.compat.retries import mapped_at_least
from airflow_crew_provider.compat.task_instance import map_index_of
from airflow_crew_provider.models import Json
from airflow_crew_provider.questions.drafts import as_text
from airflow_crew_provider.review import airflow_form
from airflow_crew_provider.review.airflow_form import HITLOperator
from airflow_crew_provider.review.answer import notice
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.review.people import Escalation, deadline_after, reviewers
from airflow_crew_provider.review.record import QuestionRecord
from airflow_crew_provider.review.usage import UsageForm
from airflow_crew_provider.stored_names import OTHER_QUESTION, REFUSED_KEY
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import NOTHING_FOLLOWS, Do, Steps, drive
from airflow_crew_provider.task.record import Rejected
from airflow_crew_provider.task.store import Stored, record_of
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed, ends_in_a_sentence

log = logging.getLogger(__name__)

UNKNOWN = "unknown"  # the result of a lookup that did not finish
TERMS = "terms"  # the key of the DAG's arguments that determine whether an answer is valid
# The terms that a form shows.
OFFERED = ("words", "allow_edit", "approvals", "round_number", "max_rounds", "fields", "people")


Form = ReviewForm | UsageForm


class Rules(Protocol):
    """The rules for a task's question; its ``content`` is stored while the task waits."""

    @property
    def escalation(self) -> Escalation:
        """The escalation if nobody answers."""

    @property
    def people(self) -> list[Json] | None:
        """The users whom the form admits; None for everybody."""

    @property
    def holds_another(self) -> str:
        """The message if Airflow cannot show this question."""

    def shown_now(self) -> Json:
        """Return the content to show, from the rendered task."""

    def terms(self) -> Json:
        """Return the arguments that determine whether an answer is valid: the shown form's, not an edited DAG's."""

    def by(self, terms: Json) -> Any:
        """Return the rules with the terms of a form that was shown."""

    def offer(self, task: HITLOperator, content: Json) -> None:
        """Set the options, fields and defaults of the task's form."""

    def form(self, context: Any, content: Json, until: str | None, since: datetime) -> Form:
        """Return the form of a question that was first asked at a time."""

    def approving(self, content: Json) -> list[str] | None:
        """Return the choice that approves; None if there is no clear one."""

    def expires(self, content: Json) -> datetime | None:
        """When the question needs no answer any more; None if it always does."""

    def only_by_a_person(self, content: Json, rejected: Sequence[Rejected]) -> str:
        """Return why only a person may approve this, as the beginning of a sentence; empty if the DAG may, too.

        :param rejected: what people have rejected in this task
        """

    def not_approved(self, content: Json) -> str:
        """Return what became of this if the deadline did not approve it, and what to do next."""


AnyRules = TypeVar("AnyRules", bound=Rules)
LONGEST_LABEL = 100


def call(notifiers: Sequence[Any], context: Any) -> None:
    """Call notifiers; a failing one does not affect the question."""
    for notifier in notifiers:
        try:
            notifier(context)
        except Exception:
            log.warning("A notifier failed; the question stays open", exc_info=True)


class Asking(Generic[AnyRules]):
    """A task's question, created each time a worker runs the task. What asks or waits is steps.

    :param stored: the record of the task instance, which the loop that takes the steps stores
    :param task: the asking task
    :param rules: the question's rules
    :param begins: whether a try begins here
    """

    def __init__(
        self, stored: Stored, context: Any, task: HITLOperator, rules: AnyRules, *, begins: bool = False
    ) -> None:
        self.context, self.task, self.rules = context, task, rules
        self.record = QuestionRecord.of(stored, Attempt.of(context, task))
        if begins:
            self.record.begin_try()

    def go_on(self, content: Json, lookup: str = "") -> Steps[NoReturn]:
        """Ask or, if an earlier try has asked, look for an answer given since then; then wait for one.

        :param lookup: the result of the last one: no answer, no form, or unknown; empty if none ran
        """
        identity = DraftId.of(content)
        before, earlier = self.record.about(identity), self._terms_of_kept_form(identity)
        terms = before.terms or content.get(TERMS) or {**self.rules.terms(), **earlier}
        content = {**content, TERMS: terms}
        self.hold_to(content)
        until = before.until or deadline_after(self.task.response_timeout, self.rules.expires(content))
        if not self.record.is_open_for(identity) or self._must_ask_again(lookup):
            if lookup == UNKNOWN:
                yield from self._look_once_more(content, until)
            yield from self.ask(content, until)
        self.record.mark_asked(identity, until, content[TERMS], doubt=self.record.in_doubt and not lookup)
        if lookup:
            yield from self._wait(content, until)
        self.task.log.info("An earlier try showed this draft; an answer given since then counts")
        yield from self.look_again(content, until)
        raise AssertionError(NOTHING_FOLLOWS)

    def _terms_of_kept_form(self, identity: DraftId) -> Json:
        """Return the terms that a form still shows after a clear: before Airflow 3.4, a clear keeps the form.

        Fail if the DAG now assigns different people, because the form keeps the original ones.
        """
        before = self.record.kept.terms if self.record.cleared and self.record.is_about(identity) else None
        if not before or airflow_form.asking_attempt(self.context) is not None:
            return {}
        if "users" in before and before["users"] != self.rules.terms().get("users"):
            raise CrewTaskFailed(
                "Airflow still shows the form to other assigned_users. Nobody was asked, and nothing was sent; "
                "start a new DAG run"
            )
        return {name: before[name] for name in OFFERED if name in before}

    def _look_once_more(self, content: Json, until: str | None) -> Steps[None]:
        """Look for an answer once more in this try: as long as it is not known, asking could remove one."""
        if not self.record.is_open_for(DraftId.of(content)):
            return
        if self.record.kept.once_more:
            raise CrewTryFailed(
                "Airflow could not look for an answer to this task's question twice, perhaps because no triggerer is "
                "running. Nobody was asked again, and any answer is kept; a retry of this task looks again"
            )
        self.task.log.warning("Airflow could not look for an answer; looking once more")
        yield from self.look_again(content, until, once_more=True)

    def _must_ask_again(self, lookup: str) -> bool:
        """Whether no form exists, or only one that nobody can answer any more, e.g. an earlier attempt's."""
        if not lookup:
            return False
        is_of_earlier = self.record.kept.asked_by not in (None, airflow_form.asking_attempt(self.context))
        return is_of_earlier or lookup == airflow_form.NO_FORM or (lookup == UNKNOWN and self.record.in_doubt)

    def hold_to(self, content: Json) -> None:
        """Offer the form's choices, even if the DAG file has been edited since."""
        self.rules = self.rules.by(content.get(TERMS) or {})
        self.rules.offer(self.task, content)

    def ask(self, content: Json, until: str | None, refused: str = "") -> Steps[NoReturn]:
        """Ask and free the worker slot.

        :param refused: the notice about the last answer: that it was not accepted, or that more people must approve
        """
        task, identity = self.task, DraftId.of(content)
        task.assigned_users = self.rules.people  # type: ignore[assignment]
        form = self.rules.form(self.context, content, until, self.record.since(identity))
        task.subject = as_text(task.subject) or f"{form.subject} · {_place_of(self.context['ti'])}"
        body = as_text(task.body)
        task.body = (f"**{refused}**\n\n" if refused else "") + (body or form.body)
        # A form that Airflow has kept shows the last draft, even if the task's own body renders differently now.
        signs = [] if self.record.is_about(identity) else [body] if body else form.signs
        attempt = airflow_form.asking_attempt(self.context)
        self.record.mark_asking(identity, until, attempt)
        at = datetime.now(UTC)
        if airflow_form.shows_another_draft(task, (yield Do(airflow_form.ask, task, self.context)), signs):
            raise CrewTaskFailed(self.rules.holds_another)
        self.record.mark_asked(identity, until, content.get(TERMS), again=bool(refused), by=attempt, at=at)
        task.log.info("Waiting for a person: %s", task.subject)
        yield from self._wait(content, until)
        raise AssertionError(NOTHING_FOLLOWS)

    def refuse(self, content: Json, until: str | None, event: Json, problem: str) -> Steps[NoReturn]:
        """Ask again, which removes the answer."""
        who, where = airflow_form.name_of(event), self._keep_refused(content, event)
        self.task.log.warning("The answer from %s is not accepted because %s.%s Asking again", who, problem, where)
        yield from self.ask(content, until, notice(who, problem))
        raise AssertionError(NOTHING_FOLLOWS)

    def delivered(
        self,
        shown: Json,
        until: str | None,
        event: Json,
        default: Sequence[str] | None,
        at_deadline: Callable[[], Json],
        *,
        step: bool = False,
    ) -> Steps[Json]:
        """Return the event to judge; ask again or look again if nobody has answered yet.

        :param default: the choice that the deadline makes now; None if it makes none
        :param at_deadline: returns the event for a deadline, or raises an error
        :param step: whether the task resumes at an escalation step
        """
        # Asking again removes a default answer that Airflow gave before an escalation step or a clear.
        early = step or self.record.began_after(DraftId.of(shown), event.get("responded_at"))
        if airflow_form.is_old_default(event, None if early else default):
            if early:
                yield from self.ask(shown, until)
            event = {"error_type": "timeout"}
        if event.get("error_type") == "timeout":
            if step:
                yield from self.look_again(shown, until)
            event = at_deadline()
        if event.get("error_type") == "unknown":
            self.task.process_trigger_event_error(event)
        return event

    def came_too_late(self, content: Json, until: str | None, event: Json) -> bool:
        """Whether a person's answer came after the deadline; like any other that is not accepted, it is kept."""
        late = airflow_form.too_late(event, until)
        if late:
            self.task.log.warning("%s.%s The deadline decides", late, self._keep_refused(content, event))
        return late is not None

    def _keep_refused(self, content: Json, event: Json) -> str:
        """Store an answer that is not accepted, and any rejection in it; return a sentence about its content."""
        self.keep_rejection(content, event)
        if not event.get("params_input") or unreadable(event["params_input"]):
            return ""
        self.context["ti"].xcom_push(key=REFUSED_KEY, value=event["params_input"])
        return f" Its content is kept in XCom {REFUSED_KEY}."

    def keep_rejection(self, content: Json, event: Json) -> None:
        """Record a rejection: the question may stay open, and an edited DAG could approve at the deadline."""
        approving, chosen = self.rules.approving(content), event.get("chosen_options")
        is_about_it = not (airflow_form.timed_out(event) or event.get(OTHER_QUESTION))
        if chosen and approving and chosen != approving and is_about_it:
            self.record.reject_draft(DraftId.of(content))

    def only_by_a_person(self, content: Json) -> str:
        """Return why only a person may approve this; empty if the DAG may, too. Whatever else would approve, asks."""
        return self.rules.only_by_a_person(content, self.record.kept.rejected)

    def refuse_late_approval(self, content: Json, event: Json) -> None:
        """Fail if the deadline would approve what only a person may approve."""
        approves = airflow_form.timed_out(event) and event["chosen_options"] == self.rules.approving(content)
        if approves and (why := self.only_by_a_person(content)):
            self.record.close()
            raise CrewTaskFailed(f"{why}, so it was not approved at the deadline. {self.rules.not_approved(content)}")

    def _wait(self, content: Json, until: str | None) -> Steps[NoReturn]:
        yield from self._notify(self.task.notifiers)
        since = self.record.since(DraftId.of(content))
        now = yield from self._escalate(since)
        end = datetime.fromisoformat(until) if until else None
        step = self.rules.escalation.next_after(since, now)
        wakes = {"step": True} if step and (end is None or step < end) else {}
        next_end = step if wakes else end
        left = max(next_end - now, timedelta(seconds=1)) if next_end else None
        kwargs = {"until": until, "shown": content, **wakes}
        yield Do(airflow_form.park, self.task, self.context, left, kwargs)
        raise AssertionError(NOTHING_FOLLOWS)

    def _escalate(self, since: datetime) -> Steps[datetime]:
        """Notify the people in each due step; return the current time, after which later steps are due."""
        now = datetime.now(UTC)
        for number, step in self.rules.escalation.due(since, now):
            if not (yield from self._notify(step.notifiers or self.task.notifiers, step.name)):
                continue
            who = ", ".join(user["id"] for user in step.users)
            addition = f"; {who} may now answer too" if who else ""
            self.task.log.info("Nobody has answered for %s: step %d of the escalation%s", step.after, number, addition)
        return now

    def _notify(self, notifiers: Sequence[Any], step: str = "") -> Steps[bool]:
        """Notify people, for the question or an escalation step; return False if an earlier try has done so."""
        if not self.record.begin_to_notify(step):
            return False
        if notifiers:
            yield Do(call, notifiers, self.context)
        self.record.mark_notified(step)
        return True

    def look_again(self, content: Json, until: str | None, *, once_more: bool = False) -> Steps[NoReturn]:
        """Look for an answer already given, e.g. just as an escalation step began; if there is none, escalate."""
        self.record.mark_looking(content, once_more=once_more)
        kwargs = {"until": until, "shown": content}
        yield Do(airflow_form.find_answer, self.task, self.context, until, kwargs, self.record.kept.asked_by)
        raise AssertionError(NOTHING_FOLLOWS)


def people_of(users: Any) -> Any:
    """Read the assigned users from the rendered task: a subclass may have templated them."""
    try:
        return reviewers(users)
    except ValueError as error:
        raise CrewTaskFailed(f"{error}. Nobody was asked, and nothing was sent") from None


def _place_of(ti: Any) -> str:
    """Name the DAG, and the item of a mapped task, to tell similar questions apart."""
    index = map_index_of(ti)
    label = getattr(ti, "rendered_map_index", None) or (f"#{index}" if index >= 0 else "")
    return " · ".join(each for each in (" ".join(label.split())[:LONGEST_LABEL], ti.dag_id) if each)


class AskingTask(HITLOperator):
    """The base class of operators that ask a person; ``execution_timeout`` limits only the task's own work."""

    def __init__(self, *, response_timeout: timedelta | None = None, **form: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # HITLOperator warns that execution_timeout limits the person; see below
            super().__init__(response_timeout=response_timeout, **form)
        if response_timeout is None and self.response_timeout is not None:
            self.execution_timeout, self.response_timeout = self.response_timeout, None

    @property
    def hitl_summary(self) -> Json:
        """What listeners such as OpenLineage's report: nothing that a crew or a person has written, as outcomes are."""
        return {"timeout_datetime": self.hitl_summary_extra.get("timeout_datetime")}


class QuestionTask(HidesRecords, AskingTask):
    """The base class of operators that only ask."""

    ui_color = "#f8e8c4"

    def rules(self) -> Rules:
        """Return the rules for the question, from the task's rendered arguments."""
        raise NotImplementedError

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Return a mapped task, with the same default retries."""
        return mapped_at_least(super().partial(**kwargs), kwargs)

    @ends_in_a_sentence
    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Continue with an answer, or without one."""
        stored, resume = record_of(context), partial(super().resume_execution, next_method, next_kwargs, context)
        return drive(resume_question(stored, self, context, self.rules, next_kwargs, resume), stored)


def resume_question(
    stored: Stored,
    task: AskingTask,
    context: Any,
    rules: Callable[[], Rules],
    resumed_with: Any,
    resume: Callable[[], Any] | None,
) -> Steps[Any]:
    """Continue with an answer, or if a trigger found no answer or no form, or if Airflow could not deliver the answer.

    :param resume: Airflow's own way to continue; None if a trigger found nothing
    """
    lookup, failure = airflow_form.found_nothing(resumed_with), None
    try:
        if resume and not lookup:
            return resume()
    except (airflow_form.TaskDeferralError, airflow_form.TaskDeferralTimeout) as error:
        failure = error
    question = Asking(stored, context, task, rules())
    if isinstance(failure, airflow_form.TaskDeferralError) and not question.record.in_doubt:
        if question.record.kept.shown:
            raise failure  # the lookup itself failed; the next try repeats it
        task.log.warning("Airflow could not resume this task: %s. Looking for the answer", failure)
        return (yield from question.go_on(question.rules.shown_now()))
    return (yield from question.go_on(question.record.kept.shown or question.rules.shown_now(), lookup or UNKNOWN))
