"""How a task puts a question to a person, and waits: retries and clears lose no answer. Needs Airflow 3.1 or newer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol

from airflow_crew_provider.compat import human_in_the_loop
from airflow_crew_provider.compat.human_in_the_loop import HITLOperator
from airflow_crew_provider.core.escalation import Escalation
from airflow_crew_provider.core.review_policy import deadline_after
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.review_answer import identity_of
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed
from airflow_crew_provider.tasks.question_record import QuestionRecord, question_of

UNKNOWN = "unknown"  # what a look for an answer has found that did not come to its end
TERMS = "terms"  # of a question: the arguments of the DAG by which its answer is judged


class Form(Protocol):
    """What a person reads; ``mark`` is a part of the body that no other question has."""

    @property
    def subject(self) -> str:
        """The headline."""

    @property
    def body(self) -> str:
        """Markdown."""

    @property
    def notice(self) -> str:
        """Why the last answer was not accepted; it stands in the body too."""

    @property
    def mark(self) -> str:
        """What distinguishes this question from an earlier one of the same task."""


class Question(HITLOperator):
    """The part of a task that asks: what is asked is ``shown``, which is kept while the task waits."""

    escalation: Escalation
    holds_another: str  # said when Airflow cannot show this question

    def _shown_now(self) -> Json:
        """Return what a person is shown, as the task was rendered."""
        raise NotImplementedError

    def _offer(self, shown: Json) -> None:
        """Set the options, fields and defaults of the form."""
        raise NotImplementedError

    def _terms(self) -> Json:
        """Return the arguments that an answer is judged by: those of the form that was shown, not of a later DAG."""
        return {}

    def _form_for(self, context: Any, shown: Json, until: str | None, refused: str, later: list[str]) -> Form:
        """Return the form; ``later`` are sentences about the steps of the escalation."""
        raise NotImplementedError

    def _keep_timeouts_apart(self, given: timedelta | None) -> None:
        """Undo that `HITLOperator` makes a task's ``execution_timeout`` the deadline of the person."""
        if given is None and self.response_timeout is not None:
            self.execution_timeout, self.response_timeout = self.response_timeout, None

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Go on where a trigger has found no answer, or no question, or where Airflow could not bring the answer."""
        found = human_in_the_loop.found_nothing(next_kwargs)
        if found:
            return self._go_on(context, question_of(context, self).shown or self._shown_now(), found)
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (human_in_the_loop.TaskDeferralError, human_in_the_loop.TaskDeferralTimeout) as error:
            question = question_of(context, self)
            if not question.in_doubt and isinstance(error, human_in_the_loop.TaskDeferralError):
                if question.shown:
                    raise  # the look itself has failed; the next try looks again
                self.log.warning("Airflow could not resume this task: %s. Looking for the answer", error)
                return self.execute(context)
        return self._go_on(context, question.shown or self._shown_now(), UNKNOWN)

    def _go_on(self, context: Any, shown: Json, found: str = "") -> NoReturn:
        """Ask, unless an earlier try has: then look for an answer that was given since, and wait for one after that.

        :param found: what such a look has found: no answer, no form, or nothing is known; empty before it
        """
        question = question_of(context, self)
        if not found:
            question.forget_deleted_run()
        shown = {**shown, TERMS: question.terms(identity_of(shown)) or shown.get(TERMS) or self._terms()}
        self._hold_to(shown)
        until = question.until(identity_of(shown)) or deadline_after(self.response_timeout)
        is_open = question.is_open_for(identity_of(shown))
        if not is_open or self._must_ask_again(context, question, found):
            if is_open and found == UNKNOWN and not question.is_looked_for_once_more:
                self.log.warning("Airflow could not look for an answer; looking once more before asking anew")
                self._look_again(context, shown, until, once_more=True)
            self._ask(context, shown, until)
        question.asked(identity_of(shown), until, shown[TERMS], doubt=question.in_doubt and not found)
        if found:
            self._wait(context, question, shown, until)
        self.log.info("An earlier try has shown this draft; an answer that was given since then counts")
        self._look_again(context, shown, until)

    def _must_ask_again(self, context: Any, question: QuestionRecord, found: str) -> bool:
        """Whether nobody was asked, or nobody can answer any more, as to the form of an earlier attempt."""
        if not found:
            return False
        is_of_earlier = question.asked_by not in (None, human_in_the_loop.asking_attempt(context))
        return is_of_earlier or found == human_in_the_loop.NO_FORM or (found == UNKNOWN and question.in_doubt)

    def _hold_to(self, shown: Json) -> None:
        """Offer what the form offers, though the DAG file was edited since."""
        for name, value in (shown.get(TERMS) or {}).items():
            setattr(self, name, value)
        self._offer(shown)

    def _ask(self, context: Any, shown: Json, until: str | None, refused: str = "") -> NoReturn:
        """Put the question and give the worker slot back."""
        question = question_of(context, self)
        later = self.escalation.told(question.since(identity_of(shown)))
        form = self._form_for(context, shown, until, refused, later)
        self.subject = self.subject or form.subject
        given = self.body
        self.body = "\n\n".join(part for part in (form.notice, given) if part) if given else form.body
        signs = [given] if given else [form.mark, shown["execution_id"]]
        attempt = human_in_the_loop.asking_attempt(context)
        question.asking(identity_of(shown), until, attempt)
        if human_in_the_loop.shows_another_draft(self, context, signs):
            raise CrewTaskFailed(self.holds_another)
        question.asked(identity_of(shown), until, shown.get(TERMS), again=bool(refused), by=attempt)
        self._wait(context, question, shown, until)

    def _wait(self, context: Any, question: QuestionRecord, shown: Json, until: str | None) -> NoReturn:
        question.notify(self.notifiers, context)
        since = question.since(identity_of(shown))
        now = self._escalate(context, question, since)
        end = datetime.fromisoformat(until) if until else None
        step = self.escalation.next_after(since, now)
        wakes = {"step": True} if step and (end is None or step < end) else {}
        next_end = step if wakes else end
        left = max(next_end - now, timedelta(seconds=1)) if next_end else None
        human_in_the_loop.park(self, context, left, {"until": until, "shown": shown, **wakes})

    def _escalate(self, context: Any, question: QuestionRecord, since: datetime) -> datetime:
        """Tell those of each step whose time has come, and return that moment: a step that comes since is next."""
        now = datetime.now(UTC)
        for number, step in self.escalation.due(since, now):
            if question.tell(step.name, step.notifiers or self.notifiers, context):
                who = ", ".join(user["id"] for user in step.users)
                said = f"; {who} may answer too from now on" if who else ""
                self.log.info("Nobody has answered for %s: step %d of the escalation%s", step.after, number, said)
        return now

    def _look_again(self, context: Any, shown: Json, until: str | None, *, once_more: bool = False) -> NoReturn:
        """Go on with an answer that came as a step of the escalation began; escalate if there is none."""
        question = question_of(context, self)
        question.looking(shown, once_more=once_more)
        human_in_the_loop.find_answer(self, context, until, {"until": until, "shown": shown}, question.asked_by)
