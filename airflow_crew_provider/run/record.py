"""The state that one task stores between deferrals and tries. Its moves (`MOVES`)::

    nothing ──begin──> working ──ask──> asking ──answer──> answered
                        │ ^  ^            │                    │
                        │ │  └───again────┘                    │
                        │ └───────────────send─────────────────┘
                        └──finish──> over

* ``begin`` switches from any state to another execution. ``again`` continues with the same execution in a later try,
  which polls to find out whether the question is still open. An unsent answer is sent first.
* A decision is stored before its answer is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from airflow_crew_provider.api.answers import Draft
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import NUMBER_FIELD, OTHER_QUESTION, REJECTED_BEFORE, VALIDATION
from airflow_crew_provider.task.store import Store, check_move
from airflow_crew_provider.wait.watch import AnsweredDraft


class State(StrEnum):
    """The state of the task."""

    NOTHING = "nothing"
    WORKING = "working"  # the crew is working
    ASKING = "asking"  # a person is being asked
    ANSWERED = "answered"  # the answer has not been sent yet, according to the record
    OVER = "over"


_ALL = tuple(State)
MOVES: dict[str, dict[State, State]] = {
    "begin": dict.fromkeys(_ALL, State.WORKING),
    "again": {
        **dict.fromkeys((State.WORKING, State.ASKING, State.OVER), State.WORKING),
        State.ANSWERED: State.ANSWERED,
    },
    "ask": {State.WORKING: State.ASKING},
    "answer": {State.ASKING: State.ANSWERED},
    "send": {State.ANSWERED: State.WORKING},
    "finish": {State.WORKING: State.OVER},
}


@dataclass(frozen=True)
class StoredRun:
    """The stored record. Empty fields are omitted.

    :param execution_id: the execution's first id
    :param kickoff_id: the id to poll
    :param inbox: the address at which its webhooks are stored
    :param since: the time at which the crew started working, in epoch seconds; None while it is not working
    :param worked: the number of seconds it worked before that, in this try
    :param number: the last question's number
    :param draft: the draft that the last question is about, until the question is answered
    :param review: the answer to send
    :param decisions: all reviews, without drafts
    :param answered: the draft that was answered last, which a status may still show
    :param over: whether the execution has completed
    :param earlier: the number of questions that this task's earlier executions asked
    """

    execution_id: str = ""
    kickoff_id: str = ""
    inbox: Json | None = None
    since: float | None = None
    worked: float = 0.0
    number: int = 0
    draft: list[Any] | None = None
    review: Json | None = None
    decisions: list[Json] = field(default_factory=list)
    answered: Json | None = None
    over: bool = False
    earlier: int = 0

    @classmethod
    def from_json(cls, kept: Json) -> StoredRun:
        """Read a record; unknown fields are ignored."""
        return cls(**{each.name: kept[each.name] for each in fields(cls) if kept.get(each.name) is not None})

    def to_json(self) -> Json:
        """Return the JSON to store."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", [], False)}

    @property
    def form(self) -> int:
        """The number of the last form; unique within the task, because a page may stay open after a clear."""
        return self.earlier + self.number

    @property
    def state(self) -> State:
        """The state of the task."""
        if not self.execution_id:
            return State.NOTHING
        if self.over:
            return State.OVER
        if self.review is not None:
            return State.ANSWERED
        return State.ASKING if self.since is None else State.WORKING


class RunRecord:
    """The record of one task, read once each time a worker runs the task.

    :raises TaskStateUnavailable: from every read or write
    """

    def __init__(self, memory: Store) -> None:
        self._memory = memory
        self.kept = StoredRun.from_json(memory.recall())

    def begin(self, execution_id: str, inbox: Json | None, *, now: float) -> None:
        """Begin a try with an execution that this try or an earlier one started."""
        if self.kept.execution_id != execution_id:
            self._move("begin", StoredRun(execution_id, execution_id, inbox, since=now, earlier=self.kept.form))
            return
        works = None if self.kept.state is State.ANSWERED else now
        self._move("again", replace(self.kept, since=works, worked=0.0, over=False))

    def number_of(self, draft: list[Any]) -> int:
        """Return a question's number: the last question's if it is unanswered and about this draft, else the next."""
        return self.kept.number if self.kept.draft == draft else self.kept.number + 1

    def ask(self, draft: list[Any], *, now: float) -> None:
        """Record that a person is about to be asked."""
        assert self.kept.since is not None
        worked = self.kept.worked + now - self.kept.since
        number = self.number_of(draft)
        self._move("ask", replace(self.kept, number=number, draft=draft, since=None, worked=worked))

    def answer(self, review: Json) -> None:
        """Record an answer before it is sent."""
        decision = {**_without_draft(review), "round": self.kept.number}
        decisions = [*self.kept.decisions, decision]
        self._move("answer", replace(self.kept, review=review, draft=None, decisions=decisions))

    def send(
        self,
        said: Json | None,
        *,
        now: float,
        kickoff_id: str | None = None,
        inbox: Json | None = None,
        answered: AnsweredDraft | None = None,
    ) -> None:
        """Record that the answer was processed.

        :param said: the service's response; None if the answer was not sent or changed nothing
        """
        *before, decision = self.kept.decisions
        told = {**decision, "taken": said is not None, "service": said}
        sent = replace(self.kept, review=None, since=now, decisions=[*before, told])
        if said is not None:
            last = {"draft": list(vars(answered.draft).values()), "until": answered.until} if answered else None
            polled = kickoff_id or sent.kickoff_id
            sent = replace(sent, kickoff_id=polled, inbox=inbox or sent.inbox, answered=last)
        self._move("send", sent)

    def finish(self) -> None:
        """Record that the execution has completed."""
        self._move("finish", replace(self.kept, over=True))

    @property
    def answered(self) -> AnsweredDraft | None:
        """The draft that was answered last."""
        last = self.kept.answered
        return AnsweredDraft(Draft(*last["draft"]), last["until"]) if last else None

    def deadline(self, limit: float | None) -> float | None:
        """Return the time at which the current wait must end, in epoch seconds.

        :param limit: the number of seconds that the crew may work
        """
        if limit is None or self.kept.since is None:
            return None
        return self.kept.since + limit - self.kept.worked

    def _move(self, move: str, new: StoredRun) -> None:
        check_move("task", self.kept.state, move, new.state, [MOVES[move].get(self.kept.state)])
        self._memory.keep(new.to_json())
        self.kept = new


def _without_draft(review: Json) -> Json:
    edited = {"edited": True} if "edited_output" in review else {}
    # The question's own record lists the hashes of all rejected drafts; here, every review would repeat them.
    without = ("edited_output", "output", REJECTED_BEFORE)
    return {**{name: value for name, value in review.items() if name not in without}, **edited}


def bound_to(number: int, event: Json) -> Json:
    """Return the event, marked as invalid if it answers another question; an event at a deadline need not name one."""
    if "chosen_options" not in event or "error" in event:
        return event
    given: Any = event.get("params_input") or {}
    named = given.get(NUMBER_FIELD) if isinstance(given, Mapping) else None
    if named == number or (named is None and not event.get("responded_by_user")):
        return event
    said = f"it answers question {named}" if named is not None else f"it has no {NUMBER_FIELD}"
    invalid = {"error": f"{said}, but this is question {number}", "error_type": VALIDATION}
    return {**event, **invalid, OTHER_QUESTION: named is not None}
