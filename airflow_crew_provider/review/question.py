"""Asks a person a question and waits; retries and clears do not lose the answer. Needs Airflow 3.1 or newer.

A worker runs the task several times: the task asks and frees its slot, and resumes with an answer, at an escalation
step, at the deadline, or after a lost try. Each time, it creates one `Question` from the stored record. It asks only if
no form shows this draft, or if nobody can answer that form any more; otherwise it first looks for an answer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from airflow_crew_provider.compat.rendered_fields import HidesRecords
from airflow_crew_provider.compat.retries import mapped_at_least
from airflow_crew_provider.models import Json
from airflow_crew_provider.review import airflow_form
from airflow_crew_provider.review.airflow_form import HITLOperator
from airflow_crew_provider.review.answer import identity_of
from airflow_crew_provider.review.drafts import as_text
from airflow_crew_provider.review.people import Escalation, deadline_after, reviewers
from airflow_crew_provider.review.record import question_of
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed, ends_in_a_sentence

UNKNOWN = "unknown"  # the result of a lookup that did not finish
TERMS = "terms"  # the key of the DAG's arguments that determine whether an answer is valid
OFFERED = ("words", "allow_edit", "approvals", "round_number", "max_rounds")  # the terms that a form shows


class Form(Protocol):
    """The page for a person; ``mark`` is a part of the body that is unique to this question."""

    @property
    def subject(self) -> str:
        """The headline."""

    @property
    def body(self) -> str:
        """The page, as Markdown."""

    @property
    def notice(self) -> str:
        """The notice about the last answer, which the body contains too."""

    @property
    def mark(self) -> str:
        """A string that distinguishes this question from earlier ones of the same task."""


class Rules(Protocol):
    """The rules for a task's question; ``shown`` is the content of the form, stored while the task waits."""

    @property
    def escalation(self) -> Escalation:
        """The escalation if nobody answers."""

    @property
    def holds_another(self) -> str:
        """The message if Airflow cannot show this question."""

    def shown_now(self) -> Json:
        """Return the content to show, from the rendered task."""

    def terms(self) -> Json:
        """Return the arguments that determine whether an answer is valid: the shown form's, not an edited DAG's."""

    def by(self, terms: Json) -> Any:
        """Return the rules with the terms of a form that was shown."""

    def offer(self, task: HITLOperator, shown: Json) -> None:
        """Set the options, fields and defaults of the task's form."""

    def form(self, context: Any, shown: Json, until: str | None, refused: str, later: list[str]) -> Form:
        """Return the form; ``later`` contains sentences about escalation steps."""


AnyRules = TypeVar("AnyRules", bound=Rules)
LONGEST_LABEL = 100


class Question(Generic[AnyRules]):
    """A task's question, created each time a worker runs the task.

    :param task: the asking task
    :param rules: the question's rules
    :param begins: whether a try begins here
    """

    def __init__(self, context: Any, task: HITLOperator, rules: AnyRules, *, begins: bool = False) -> None:
        self.context, self.task, self.rules = context, task, rules
        self.record = question_of(context, task)
        if begins:
            self.record.begin_try()

    def go_on(self, shown: Json, found: str = "") -> NoReturn:
        """Ask or, if an earlier try has asked, look for an answer given since then; then wait for one.

        :param found: the result of the last lookup: no answer, no form, or unknown; empty if none ran
        """
        identity = identity_of(shown)
        kept = self._terms_of_kept_form(identity)
        terms = self.record.terms(identity) or shown.get(TERMS) or {**self.rules.terms(), **kept}
        shown = {**shown, TERMS: terms}
        self.hold_to(shown)
        until = self.record.until(identity) or deadline_after(self.task.response_timeout)
        if not self.record.is_open_for(identity) or self._must_ask_again(found):
            if found == UNKNOWN:
                self._look_once_more(shown, until)
            self.ask(shown, until)
        self.record.mark_asked(identity, until, shown[TERMS], doubt=self.record.in_doubt and not found)
        if found:
            self._wait(shown, until)
        self.task.log.info("An earlier try showed this draft; an answer given since then counts")
        self.look_again(shown, until)

    def _terms_of_kept_form(self, identity: list[Any]) -> Json:
        """Return the terms that a form still shows after a clear: before Airflow 3.4, a clear keeps the form.

        Fail if the DAG now assigns different people, because the form keeps the original ones.
        """
        before = self.record.terms_before_clear(identity)
        if not before or airflow_form.asking_attempt(self.context) is not None:
            return {}
        if "users" in before and before["users"] != self.rules.terms().get("users"):
            raise CrewTaskFailed(
                "Airflow still shows the form to other assigned_users. Nobody was asked, and nothing was sent; "
                "start a new DAG run"
            )
        return {name: before[name] for name in OFFERED if name in before}

    def _look_once_more(self, shown: Json, until: str | None) -> None:
        """Look for an answer once more in this try: as long as it is not known, asking could remove one."""
        if not self.record.is_open_for(identity_of(shown)):
            return
        if self.record.is_looked_for_once_more:
            raise CrewTryFailed(
                "Airflow could not look for an answer to this task's question twice, perhaps because no triggerer is "
                "running. Nobody was asked again, and any answer is kept; a retry of this task looks again"
            )
        self.task.log.warning("Airflow could not look for an answer; looking once more")
        self.look_again(shown, until, once_more=True)

    def _must_ask_again(self, found: str) -> bool:
        """Whether no form exists, or only one that nobody can answer any more, e.g. an earlier attempt's."""
        if not found:
            return False
        is_of_earlier = self.record.asked_by not in (None, airflow_form.asking_attempt(self.context))
        return is_of_earlier or found == airflow_form.NO_FORM or (found == UNKNOWN and self.record.in_doubt)

    def hold_to(self, shown: Json) -> None:
        """Offer the form's choices, even if the DAG file has been edited since."""
        self.rules = self.rules.by(shown.get(TERMS) or {})
        self.rules.offer(self.task, shown)

    def ask(self, shown: Json, until: str | None, refused: str = "") -> NoReturn:
        """Ask and free the worker slot; ``refused`` is the notice about the last answer."""
        task, identity = self.task, identity_of(shown)
        task.assigned_users = _rendered(task.assigned_users)
        later = self.rules.escalation.told(self.record.since(identity))
        form = self.rules.form(self.context, shown, until, refused, later)
        task.subject = as_text(task.subject) or f"{form.subject} · {_place_of(self.context['ti'])}"
        given = as_text(task.body)
        task.body = "\n\n".join(part for part in (form.notice, given) if part) if given else form.body
        # A form that Airflow has kept shows the last draft, even if the task's own body renders differently now.
        signs = [] if self.record.is_about(identity) else [given] if given else [form.mark, shown["execution_id"]]
        attempt = airflow_form.asking_attempt(self.context)
        self.record.mark_asking(identity, until, attempt)
        at = datetime.now(UTC)
        if airflow_form.shows_another_draft(task, airflow_form.ask(task, self.context), signs):
            raise CrewTaskFailed(self.rules.holds_another)
        self.record.mark_asked(identity, until, shown.get(TERMS), again=bool(refused), by=attempt, at=at)
        task.log.info("Waiting for a person: %s", task.subject)
        self._wait(shown, until)

    def _wait(self, shown: Json, until: str | None) -> NoReturn:
        self.record.notify(self.task.notifiers, self.context)
        since = self.record.since(identity_of(shown))
        now = self._escalate(since)
        end = datetime.fromisoformat(until) if until else None
        step = self.rules.escalation.next_after(since, now)
        wakes = {"step": True} if step and (end is None or step < end) else {}
        next_end = step if wakes else end
        left = max(next_end - now, timedelta(seconds=1)) if next_end else None
        airflow_form.park(self.task, self.context, left, {"until": until, "shown": shown, **wakes})

    def _escalate(self, since: datetime) -> datetime:
        """Notify the people in each due step; return the current time, after which later steps are due."""
        now = datetime.now(UTC)
        for number, step in self.rules.escalation.due(since, now):
            if self.record.notify_step(step.name, step.notifiers or self.task.notifiers, self.context):
                who = ", ".join(user["id"] for user in step.users)
                said = f"; {who} may now answer too" if who else ""
                self.task.log.info("Nobody has answered for %s: step %d of the escalation%s", step.after, number, said)
        return now

    def look_again(self, shown: Json, until: str | None, *, once_more: bool = False) -> NoReturn:
        """Look for an answer already given, e.g. just as an escalation step began; if there is none, escalate."""
        self.record.mark_looking(shown, once_more=once_more)
        kept = {"until": until, "shown": shown}
        airflow_form.find_answer(self.task, self.context, until, kept, self.record.asked_by)


def _rendered(users: Any) -> Any:
    """Read the assigned users from the rendered task: a subclass may have templated them."""
    try:
        return reviewers(users)
    except ValueError as error:
        raise CrewTaskFailed(f"{error}. Nobody was asked, and nothing was sent") from None


def _place_of(ti: Any) -> str:
    """Name the DAG, and the item of a mapped task, to tell similar questions apart."""
    index = getattr(ti, "map_index", -1)
    label = getattr(ti, "rendered_map_index", None) or ("" if index in (None, -1) else f"#{index}")
    return " · ".join(each for each in (" ".join(label.split())[:LONGEST_LABEL], ti.dag_id) if each)


class AskingTask(HidesRecords, HITLOperator):
    """The base class of operators that ask a person a question."""

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Return a mapped task, with the same default retries."""
        return mapped_at_least(super().partial(**kwargs), kwargs)

    def rules(self) -> Any:
        """Return the rules for the question, from the task's rendered arguments."""
        raise NotImplementedError

    def _keep_timeouts_apart(self, given: timedelta | None) -> None:
        """Undo `HITLOperator`'s use of ``execution_timeout`` as the person's deadline."""
        if given is None and self.response_timeout is not None:
            self.execution_timeout, self.response_timeout = self.response_timeout, None

    @ends_in_a_sentence
    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Continue if a trigger found no answer or no form, or if Airflow could not deliver the answer."""
        found = airflow_form.found_nothing(next_kwargs)
        if found:
            question = Question(context, self, self.rules())
            return question.go_on(question.record.shown or question.rules.shown_now(), found)
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (airflow_form.TaskDeferralError, airflow_form.TaskDeferralTimeout) as error:
            question = Question(context, self, self.rules())
            if not question.record.in_doubt and isinstance(error, airflow_form.TaskDeferralError):
                if question.record.shown:
                    raise  # the lookup itself failed; the next try repeats it
                self.log.warning("Airflow could not resume this task: %s. Looking for the answer", error)
                return question.go_on(question.rules.shown_now())
        return question.go_on(question.record.shown or question.rules.shown_now(), UNKNOWN)
