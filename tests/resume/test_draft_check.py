"""Whether an answer may be sent: each verdict on what the service shows, before a first POST and after a lost one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from inspect import isgenerator, ismethod
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.answers import DraftId, ReviewAnswer
from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.exceptions import (
    CrewBadRequest,
    CrewError,
    CrewNotFound,
    CrewProtocolError,
    CrewServerError,
    CrewTooLarge,
)
from airflow_crew_provider.inbox.messages import InboxMessages
from airflow_crew_provider.inbox.registering import put
from airflow_crew_provider.inbox.rows import messages_key
from airflow_crew_provider.kickoff.post_record import PostRecord, Sender
from airflow_crew_provider.models import Execution, ExecutionState, output_sha256
from airflow_crew_provider.resume import draft_check
from airflow_crew_provider.resume.draft_check import CrewEditTooLate, DraftCheck
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import drive
from airflow_crew_provider.wait.outcomes import CrewAnswerNotTaken, CrewTaskFailed, CrewTryFailed

SENDER = Sender("https://x", "principal", "credentials")
PATIENCE, LAG = 0.25, 0.5
FIRST, SECOND = output_sha256("the draft"), output_sha256("the second draft")
REFUSED = CrewBadRequest(400, "POST", "/resume", "no")


def execution(state: ExecutionState = ExecutionState.PENDING, **more: Any) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=f"raw {state}", has_details=True, **more)


WAITS = execution(crew_task_id="draft_task", output="the draft")
NEW_DRAFT = execution(crew_task_id="draft_task", output="the second draft")
NEXT_TASK = execution(crew_task_id="other_task", output="the outline")
RUNS, DONE = execution(ExecutionState.RUNNING), execution(ExecutionState.COMPLETED)
HIDDEN = execution(ExecutionState.NOT_FOUND)
LIVE = execution(crew_task_id="draft_task", output="the draft", raw={"state": "PENDING"})


def answer(is_approve: bool = True, sha: str | None = FIRST) -> ReviewAnswer:
    return ReviewAnswer("k-1", "draft_task", "a text", is_approve, sha)


class Memory:
    """Keeps a record as JSON, between tries."""

    kept = "{}"

    def recall(self) -> Any:
        return json.loads(self.kept)

    def keep(self, record: Any) -> None:
        self.kept = json.dumps(record)


class Service:
    """Shows statuses one after the other, the last for ever; time passes by sleeping, and by ``costs`` a poll."""

    def __init__(self) -> None:
        self.hook = self.client = self.poller = self
        self.now, self.costs, self.shows = 100.0, 0.0, [WAITS]
        self.polled: list[Any] = []
        self.round: int | CrewError | None = None  # the number of its question
        self.numbered: list[str] = []
        self.slept: list[float] = []
        self.connection = SimpleNamespace(idempotency_keys=False, deployment=SimpleNamespace(kickoff_timeout=PATIENCE))

    def poll(self, kickoff_id: str, timeout: float | None = None) -> Any:
        self.polled.append((kickoff_id,) if timeout is None else (kickoff_id, timeout))
        assert len(self.polled) < 100, "it polls for ever"
        self.now += self.costs
        return self.shows.pop(0) if len(self.shows) > 1 else self.shows[0]

    def send(self, call: Call[int | None], timeout: float | None) -> int | None:
        self.numbered.append(call.path)
        if isinstance(self.round, CrewError):
            raise self.round
        return self.round

    def poll_patiently(self, kickoff_id: str) -> Execution:
        seen = self.poll(kickoff_id)
        if isinstance(seen, Exception):
            raise seen
        return seen

    @staticmethod
    def mask(text: str) -> str:
        return text

    def save(self) -> None:
        """Nothing is on record here."""

    def pause(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert len(self.slept) < 100, "it waits for ever"
        self.now += seconds


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    monkeypatch.setattr(draft_check, "SHORTEST", 0.25)  # a sum without rounding
    return service


class Check:
    """A check whose steps the service takes, at its own time."""

    def __init__(self, service: Any, given: ReviewAnswer, record: PostRecord, lag: float = LAG) -> None:
        self._service = service
        self._check = DraftCheck(service, given, record, lag, clock=lambda: service.now)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._check, name)
        return partial(self._taken, found) if ismethod(found) else found

    def _taken(self, method: Any, *given: Any) -> Any:
        steps = method(*given)
        return drive(steps, self._service) if isgenerator(steps) else steps


def first(service: Any, given: ReviewAnswer) -> Check:
    """Return the check of a first try."""
    return Check(service, given, PostRecord(Memory(), Attempt(), "this"))


def again(service: Any, given: ReviewAnswer, name: str = "this", **noted: Any) -> Check:
    """Return the check of a try after one whose answer was lost."""
    memory: Any = Memory()
    record = PostRecord(memory, Attempt(), name)
    record.intend(SENDER, draft_sha256=FIRST)
    if kickoff_id := noted.pop("kickoff_id", None):
        record.record_id(kickoff_id)
    record.keep(replace(record.newest, intended_at=noted.pop("intended_at", service.now)))
    record.note(**noted)
    return Check(service, given, PostRecord(memory, Attempt(try_number=2), "this"))


def current_sender() -> Sender:
    return SENDER


def said(check: Check, kind: type[Exception] = CrewTaskFailed, sender: Sender = SENDER) -> str:
    with pytest.raises(kind) as error:
        check.check_before_sending(lambda: sender)
    return str(error.value)


ANOTHER_DRAFT = (
    "Execution k-1 is waiting with a different draft from the one that was answered (task {} now, draft_task then). "
    "{}; review the new draft"
)
UNKNOWN = (
    "An earlier try sent this answer to execution k-1, and its outcome is unknown. {} Sending it again could apply it "
    "twice, so nothing was sent. If the crew is still waiting, answer by hand"
)
NOT_SHOWN = (
    "The service does not show the state of execution k-1 ({}), so its draft cannot be compared with the answered "
    "one. {}; a retry of this task compares again"
)
SENT_NOTHING = {
    first: "Nothing was sent",
    again: "An earlier try sent this answer, and its outcome is unknown. This try sent nothing",
}


# --- a first POST -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sha", [FIRST, None], ids=["review", "four fields"])
def test_the_answer_is_sent_while_the_answered_draft_waits(service: Service, sha: str | None) -> None:
    check = first(service, answer(sha=sha))
    assert check.check_before_sending(current_sender) is False
    assert check.draft == DraftId("k-1", "draft_task", FIRST)
    assert (service.polled, service.slept) == ([("k-1",)], [])


@pytest.mark.parametrize("seen", [NEW_DRAFT, NEXT_TASK])
def test_a_draft_other_than_the_reviewed_one_is_not_answered(service: Service, seen: Execution) -> None:
    service.shows = [seen]
    assert said(first(service, answer()), CrewAnswerNotTaken) == ANOTHER_DRAFT.format(
        seen.crew_task_id, "This answer was not sent and changed nothing"
    )


@pytest.mark.parametrize(("seen", "hash_"), [(NEW_DRAFT, SECOND), (NEXT_TASK, None), (RUNS, None), (DONE, None)])
def test_of_four_fields_the_service_judges_which_draft_waits(
    service: Service, seen: Execution, hash_: str | None
) -> None:
    service.shows = [seen]
    check = first(service, answer(sha=None))
    assert check.check_before_sending(current_sender) is False
    assert check.draft == DraftId("k-1", "draft_task", hash_)


@pytest.mark.parametrize("seen", [RUNS, DONE])
def test_a_review_of_an_execution_not_waiting_is_not_sent(service: Service, seen: Execution) -> None:
    service.shows = [seen]
    assert said(first(service, answer()), CrewAnswerNotTaken) == (
        f"Execution k-1 is not waiting for an answer; it is {seen.state}: it was answered elsewhere, or it was "
        "stopped. This answer was not sent"
    )


@pytest.mark.parametrize("check_of", [first, again])
def test_a_working_crew_that_waits_again_was_a_lagging_status(service: Service, check_of: Any) -> None:
    service.shows = [RUNS, WAITS]
    assert check_of(service, answer()).check_before_sending(current_sender) is False
    assert service.slept[0] == 0.25


@pytest.mark.parametrize(("check_of", "naps"), [(first, 2), (again, 2)])
def test_a_working_crew_proves_something_only_after_the_lag(service: Service, check_of: Any, naps: int) -> None:
    service.shows = [RUNS]
    check = check_of(service, answer())
    if check_of is first:
        assert "it is running: it was answered elsewhere" in said(check, CrewAnswerNotTaken)
    else:
        assert check.check_before_sending(current_sender) is True
    assert service.slept == [0.25] * naps


@pytest.mark.parametrize("check_of", [first, again])
def test_a_hidden_execution_gets_no_answer_in_this_try(service: Service, check_of: Any) -> None:
    service.shows = [HIDDEN]
    assert said(check_of(service, answer()), CrewTryFailed) == NOT_SHOWN.format("raw not_found", SENT_NOTHING[check_of])
    missing: Any = CrewNotFound(404, "GET", "/status/k-1", "gone")
    service.shows = [missing]
    assert said(check_of(service, answer()), CrewTryFailed) == NOT_SHOWN.format(missing, SENT_NOTHING[check_of])


def test_a_live_deployment_judges_a_first_answer_itself(service: Service) -> None:
    service.shows = [LIVE]
    assert first(service, answer()).check_before_sending(current_sender) is False


@pytest.mark.parametrize("checks", [True, False])
def test_the_hash_is_sent_where_the_service_compares_it(service: Service, checks: bool) -> None:
    service.shows = [replace(WAITS, checks_draft=checks)]
    check = first(service, answer())
    assert check.check_before_sending(current_sender) is False
    assert check.hash_to_send == (FIRST if checks else None)
    assert check.noted.get("sends_hash", False) is checks


# --- an edited draft ----------------------------------------------------------------------------------------


EDITED = replace(answer(), edited_output="the edited draft")
TAKES_EDITS = replace(WAITS, takes_edited_output=True)
AT_WORK_ON_IT = execution(ExecutionState.RUNNING, raw={"current_task": "draft_task"})
AT_WORK = execution(ExecutionState.RUNNING, raw={"current_task": "other_task"})


def test_an_edit_is_sent_where_the_service_takes_it(service: Service) -> None:
    service.shows = [TAKES_EDITS]
    assert first(service, EDITED).check_before_sending(current_sender) is False


def test_an_edit_the_service_no_longer_takes_is_not_sent(service: Service) -> None:
    assert said(first(service, EDITED)) == (
        "The service no longer accepts an edited draft of execution k-1. Nothing was sent, and the draft is still "
        "waiting; clear the review to ask again"
    )


@pytest.mark.parametrize(
    ("given", "seen", "kind"),
    [
        (EDITED, NEW_DRAFT, CrewEditTooLate),
        (EDITED, AT_WORK_ON_IT, CrewEditTooLate),
        (EDITED, NEXT_TASK, CrewAnswerNotTaken),
        (EDITED, AT_WORK, CrewAnswerNotTaken),
        (EDITED, DONE, CrewAnswerNotTaken),
        (answer(), NEW_DRAFT, CrewAnswerNotTaken),
        (answer(), AT_WORK_ON_IT, CrewAnswerNotTaken),
    ],
    ids=["new draft", "at work on it", "next task", "at work on the next", "done", "no edit", "no edit, at work"],
)
def test_only_edits_of_revised_drafts_await_the_next_round(
    service: Service, given: ReviewAnswer, seen: Execution, kind: type[Exception]
) -> None:
    service.shows = [seen]
    with pytest.raises(CrewAnswerNotTaken) as error:
        first(service, given).check_before_sending(current_sender)
    assert type(error.value) is kind


def test_an_edit_sent_before_does_not_await_the_next_round(service: Service) -> None:
    service.shows = [NEW_DRAFT]
    with pytest.raises(CrewAnswerNotTaken) as error:
        again(service, EDITED).check_before_sending(current_sender)
    assert type(error.value) is CrewAnswerNotTaken


@pytest.mark.parametrize(
    ("seen", "too_late"),
    [
        (NEW_DRAFT, True),
        (AT_WORK_ON_IT, True),
        (WAITS, False),
        (NEXT_TASK, False),
        (AT_WORK, False),
        (CrewServerError(503, "GET", "/status/k-1", "away"), False),
    ],
    ids=["new draft", "at work on it", "the same draft", "next task", "at work on the next", "no status"],
)
def test_a_refused_edit_of_a_revised_draft_came_too_late(service: Service, seen: Any, too_late: bool) -> None:
    service.shows = [seen]
    assert first(service, EDITED).came_too_late(REFUSED) is too_late
    assert service.polled == [("k-1",)]


def test_any_other_refusal_is_no_edit_that_came_too_late(service: Service) -> None:
    service.shows = [NEW_DRAFT]
    assert first(service, answer()).came_too_late(REFUSED) is False
    assert again(service, EDITED).came_too_late(REFUSED) is False
    assert first(service, EDITED).came_too_late(CrewServerError(500, "POST", "/resume", "no")) is False
    assert service.polled == []


# --- after a POST whose answer was lost ---------------------------------------------------------------------


def test_waiting_drafts_prove_nothing_while_the_lost_post_may_arrive(service: Service) -> None:
    check = again(service, answer())
    assert check.check_before_sending(current_sender) is False
    assert service.slept == [0.25] * 4  # the patience of the POST, as long again, and the lag
    assert service.polled == [("k-1",)] * 5


@pytest.mark.parametrize(("lost", "naps"), [(-0.5, 1), (0.0, 3), (-9.0, 0)])
def test_the_time_counts_from_when_the_answer_was_lost(service: Service, lost: float, naps: int) -> None:
    check = again(service, answer(), lost_at=service.now + lost)
    assert check.check_before_sending(current_sender) is False
    assert service.slept == [0.25] * naps


def test_a_record_without_a_time_is_of_long_ago(service: Service) -> None:
    service.now = 1.0
    check = again(service, answer())
    check._record.newest = replace(check._record.newest, intended_at=0.0)
    assert check.check_before_sending(current_sender) is False
    assert service.slept == []


def test_pauses_grow_with_what_was_waited(service: Service) -> None:
    service.connection.deployment.kickoff_timeout = 30.0
    assert again(service, answer()).check_before_sending(current_sender) is False
    growing = [each for each in service.slept if 0.25 < each < 5.0]
    assert growing[0] == pytest.approx(1.5 / 5)
    assert growing == sorted(growing)
    assert service.slept[-1] == 5.0
    assert [draft_check._pause(waited) for waited in (0, 1, 10, 25, 100)] == [0.25, 0.25, 2.0, 5.0, 5.0]


def test_what_goes_on_while_the_time_runs_was_taken(service: Service) -> None:
    service.shows = [WAITS, WAITS, RUNS]
    assert again(service, answer()).check_before_sending(current_sender) is True
    assert service.slept == [0.25] * 2


@pytest.mark.parametrize(("is_approve", "seen"), [(True, NEXT_TASK), (False, NEW_DRAFT)])
def test_a_possible_successor_draft_shows_the_answer_was_taken(
    service: Service, is_approve: bool, seen: Execution
) -> None:
    service.shows = [seen]
    assert again(service, answer(is_approve)).check_before_sending(current_sender) is True


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("sha", [FIRST, None])
@pytest.mark.parametrize(("is_approve", "seen"), [(True, NEW_DRAFT), (False, NEXT_TASK)])
def test_an_impossible_successor_draft_is_another_even_with_four_fields(
    service: Service, is_approve: bool, seen: Execution, sha: str | None, keyed: bool
) -> None:
    service.shows, service.connection.idempotency_keys = [seen], keyed
    assert said(again(service, answer(is_approve, sha)), CrewAnswerNotTaken) == ANOTHER_DRAFT.format(
        seen.crew_task_id, SENT_NOTHING[again]
    )


def test_four_fields_go_by_the_draft_before_the_lost_post(service: Service) -> None:
    assert again(service, answer(sha=None)).draft == DraftId("k-1", "draft_task", FIRST)
    assert again(service, answer(sha=None), "another request").draft == DraftId("k-1", "draft_task", None)


def test_another_requests_open_post_is_awaited_with_or_without_keys(service: Service) -> None:
    service.connection.idempotency_keys = True
    check = again(service, answer(), "another request")
    assert check.check_before_sending(current_sender) is False
    assert service.slept == [0.25] * 4


def test_a_post_that_was_answered_is_not_waited_for(service: Service) -> None:
    assert again(service, answer(), kickoff_id="k-1").check_before_sending(current_sender) is False
    assert service.slept == []


@pytest.mark.parametrize(("name", "checks", "sent"), [("this", False, True), ("another request", True, False)])
def test_a_repeated_post_has_the_hash_only_if_sent_before(
    service: Service, name: str, checks: bool, sent: bool
) -> None:
    service.shows = [replace(WAITS, checks_draft=checks)]
    check = again(service, answer(), name, sends_hash=True)
    assert check.hash_to_send == (FIRST if sent else None)
    assert check.check_before_sending(current_sender) is False
    assert check.hash_to_send == FIRST
    service.shows = [replace(WAITS, checks_draft=True)]
    check = again(service, answer())
    assert check.check_before_sending(current_sender) is False
    assert check.hash_to_send is None


def test_a_task_may_be_named_like_a_mid_task_question(service: Service) -> None:
    service.shows = [replace(NEW_DRAFT, crew_task_id="part#2")]
    given = replace(answer(), crew_task_id="part#2")
    assert "waiting with a different draft" in said(again(service, given), CrewAnswerNotTaken)


def test_a_live_deployment_does_not_report_a_lost_posts_fate(service: Service) -> None:
    service.shows = [LIVE, RUNS_LIVE]
    assert said(again(service, answer())) == UNKNOWN.format("The service does not report it.")


RUNS_LIVE = execution(ExecutionState.RUNNING, raw={"state": "RUNNING"})


# --- a live deployment, which does not show what it was told ---

UUID = "0b2e8508-ae72-4f6f-9f4f-cb65eed46f4f"
OF_LIVE = replace(answer(), crew_task_id=UUID)
LIVE_QUESTION = replace(LIVE, crew_task_id=UUID)
APPROVED = replace(OF_LIVE, human_feedback="Ok")
REGISTRATION = {"id": "r-1", "human_input": "h", "progress": "p", "execution_id": "k-1", "at": 1.0}
AT = 1_795_176_000.0  # 2026-11-20 12:00 UTC


@pytest.mark.parametrize(
    ("given", "seen", "sent"),
    [
        (OF_LIVE, LIVE_QUESTION, "Approved."),
        (APPROVED, LIVE_QUESTION, "Ok"),
        (replace(OF_LIVE, is_approve=False), LIVE_QUESTION, "a text"),
        (answer(), LIVE, "a text"),
        (OF_LIVE, replace(WAITS, crew_task_id=UUID), "a text"),
    ],
    ids=["a comment", "an approval", "a revision", "a Flow's", "our service"],
)
def test_only_a_live_crew_gets_no_comment_on_an_approval(
    service: Service, given: ReviewAnswer, seen: Execution, sent: str
) -> None:
    service.shows = [seen]
    check = first(service, given)
    assert check.check_before_sending(current_sender) is False
    assert check.feedback_to_send == sent
    assert check.noted.get("leaves_out_comment", False) is (sent == "Approved.")


@pytest.mark.parametrize(
    ("name", "left_out", "sent"),
    [("this", True, "Approved."), ("this", False, "a text"), ("another request", True, "a text")],
)
def test_a_comment_that_was_left_out_stays_so(service: Service, name: str, left_out: bool, sent: str) -> None:
    service.connection.idempotency_keys = True
    check = again(service, OF_LIVE, name, leaves_out_comment=left_out)
    assert check.feedback_to_send == sent
    if name == "this":
        service.shows = [LIVE_QUESTION]
        assert check.check_before_sending(current_sender) is False
        assert check.feedback_to_send == sent


class Earlier:
    """A task that has answered the same question before, and its tries after that."""

    def __init__(self, service: Service, *, taken: bool = False, about: ReviewAnswer = OF_LIVE, **noted: Any) -> None:
        self.service, self.memory = service, Memory()
        service.now, service.shows = AT, [replace(LIVE, crew_task_id=about.crew_task_id)]
        record = PostRecord(self.memory, Attempt(), "another request")  # type: ignore[arg-type]
        record.intend(SENDER, **first(service, about).noted, **noted)
        if taken:
            record.record_id("k-2")
        record.newest = replace(record.newest, intended_at=AT, inbox=REGISTRATION)
        record.keep(record.newest)
        if taken:
            record.note(resumed_at=AT + 60)

    def now(self, given: ReviewAnswer = OF_LIVE, **attempt: Any) -> Check:
        record = PostRecord(self.memory, Attempt(**{"try_number": 2, **attempt}), "this")  # type: ignore[arg-type]
        return Check(self.service, given, record)


QUESTION = f"The question {UUID} of execution k-1"
START_AGAIN = "This answer was not sent and changed nothing; clear the kickoff to start again"
CLEAR_ONCE_MORE = (
    f"{QUESTION} may already have been answered (approved, 2026-11-20 12:00 UTC) by an earlier run of this task, whose "
    "outcome is unknown. This answer was not sent and changed nothing; to send it, clear this task once more"
)


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_question_that_was_answered_gets_no_second_answer(service: Service, a_memory: Any, in_tokyo: None) -> None:
    assert said(Earlier(service, taken=True).now(), CrewAnswerNotTaken) == (
        f"{QUESTION} was already answered (approved, 2026-11-20 12:01 UTC) by an earlier run of this task. "
        f"{START_AGAIN}"
    )


def test_a_second_answer_to_a_lost_one_needs_a_clear(service: Service, a_memory: Any) -> None:
    earlier = Earlier(service)
    cleared = {"max_tries": 1}
    for attempt in (cleared, {**cleared, "try_number": 3}):
        assert said(earlier.now(**attempt), CrewAnswerNotTaken) == CLEAR_ONCE_MORE
    assert earlier.now(try_number=4, max_tries=3).check_before_sending(current_sender) is False


def test_an_execution_that_has_asked_again_gets_no_second_answer(service: Service, a_memory: Any) -> None:
    earlier = Earlier(service)
    put(messages_key("r-1"), InboxMessages("r-1", asked=["k-2"]).as_dict(), "a webhook", sealed=True)
    answered = (
        f"{QUESTION} was already answered (approved, 2026-11-20 12:00 UTC; its outcome was unknown, but the execution "
        f"has continued since) by an earlier run of this task. {START_AGAIN}"
    )
    assert said(earlier.now(), CrewAnswerNotTaken) == answered
    a_memory.kept.clear()
    assert said(earlier.now(try_number=4, max_tries=3), CrewAnswerNotTaken) == answered


def test_a_webhook_for_another_answer_shows_nothing(service: Service, a_memory: Any) -> None:
    put(messages_key("r-2"), InboxMessages("r-2", asked=["k-2"]).as_dict(), "a webhook", sealed=True)
    assert said(Earlier(service).now(), CrewAnswerNotTaken) == CLEAR_ONCE_MORE


@pytest.mark.parametrize("taken", [False, True])
def test_an_answer_to_another_question_counts_for_nothing(service: Service, a_memory: Any, taken: bool) -> None:
    other = replace(OF_LIVE, crew_task_id=UUID.replace("0b", "1c"))
    assert Earlier(service, taken=taken).now(other).check_before_sending(current_sender) is False


@pytest.mark.parametrize(("taken", "is_sent"), [(True, True), (False, False)])
def test_a_later_question_of_a_flow_may_be_named_alike(
    service: Service, a_memory: Any, taken: bool, is_sent: bool
) -> None:
    check = Earlier(service, taken=taken, about=answer()).now(answer())
    if is_sent:
        assert check.check_before_sending(current_sender) is False
    else:
        assert "may already have been answered" in said(check, CrewAnswerNotTaken)


@pytest.mark.parametrize(
    ("taken", "given", "is_told"),
    [(True, answer(), True), (False, answer(), False), (True, replace(answer(), crew_task_id="other"), False)],
    ids=["taken", "lost", "another task"],
)
def test_an_execution_that_no_longer_waits_names_the_answer(
    service: Service, taken: bool, given: ReviewAnswer, is_told: bool
) -> None:
    earlier = Earlier(service, taken=taken, about=answer())
    service.shows = [DONE]
    message = said(earlier.now(given), CrewAnswerNotTaken)
    told = (
        "The question draft_task of execution k-1 was already answered (approved, 2026-11-20 12:01 UTC) by an earlier "
        f"run of this task. {START_AGAIN}"
    )
    assert (message == told) is is_told
    assert ("is not waiting for an answer; it is completed" in message) is not is_told


@pytest.mark.row("N19")
def test_an_execution_that_no_longer_waits_names_a_lost_answer(service: Service) -> None:
    earlier = Earlier(service, taken=False, about=answer())
    service.shows = [DONE]
    assert said(earlier.now(answer(False)), CrewAnswerNotTaken) == (
        "Execution k-1 is not waiting for an answer; it is completed: it was answered elsewhere, or it was stopped, or "
        "the answer of an earlier run of this task (approved, 2026-11-20 12:00 UTC), whose outcome was unknown, has "
        "arrived. This answer was not sent"
    )


# --- the same text after a lost POST, which may be another question ---

REVISION, FLOW = answer(False), replace(answer(), outcome="again")
LOOPS = pytest.mark.parametrize("given", [REVISION, FLOW, replace(FLOW, is_approve=None)], ids=["crew", "Flow", "word"])


@LOOPS
def test_the_question_number_is_kept_before_the_answer_is_sent(service: Service, given: ReviewAnswer) -> None:
    service.round = 1
    check = first(service, given)
    assert check.check_before_sending(current_sender) is False
    assert (check.noted["open_round"], service.numbered) == (1, [endpoints.open_round("k-1").path])
    service.round = CrewServerError(503, "GET", "/executions/k-1", "away")
    check = first(service, given)
    assert check.check_before_sending(current_sender) is False
    assert "open_round" not in check.noted


@LOOPS
@pytest.mark.parametrize(("now", "taken"), [(1, False), (2, True)])
def test_another_number_shows_that_the_answer_was_taken(
    service: Service, given: ReviewAnswer, now: int, taken: bool
) -> None:
    service.round = now
    check = again(service, given, open_round=1)
    assert check.check_before_sending(current_sender) is taken
    assert check.noted["open_round"] == 1


@LOOPS
@pytest.mark.parametrize(("kept", "now"), [(None, 1), (1, None), (1, CrewNotFound(404, "GET", "/executions/k-1", ""))])
def test_without_both_numbers_the_same_text_proves_nothing(
    service: Service, given: ReviewAnswer, kept: int | None, now: Any
) -> None:
    service.round = now
    check = again(service, given, **({"open_round": kept} if kept else {}))
    assert said(check) == UNKNOWN.format("It is not known whether the crew has written the same text again.")


@pytest.mark.parametrize("seen", [replace(WAITS, has_details=False), LIVE], ids=["another service", "live"])
def test_only_our_service_is_asked_for_a_number(service: Service, seen: Execution) -> None:
    service.shows, service.round = [seen], 1
    assert first(service, REVISION).check_before_sending(current_sender) is False
    assert service.numbered == []


def test_an_answer_that_names_no_number_proves_nothing(service: Service) -> None:
    service.round = CrewProtocolError("a page")
    check = again(service, REVISION, open_round=1)
    assert said(check) == UNKNOWN.format("It is not known whether the crew has written the same text again.")


def test_an_unreadable_question_number_is_left_to_the_next_try(service: Service) -> None:
    service.round = CrewServerError(503, "GET", "/executions/k-1", "away")
    check = again(service, REVISION, open_round=1)
    assert said(check, CrewTryFailed) == NOT_SHOWN.format(service.round, SENT_NOTHING[again])


def test_the_number_kept_for_another_answer_is_not_this_ones(service: Service) -> None:
    assert again(service, REVISION, open_round=1).noted["open_round"] == 1
    assert "open_round" not in again(service, REVISION, "another request", open_round=1).noted


IN_THE_MIDDLE = replace(answer(False), crew_task_id="draft_task#1", outcome="deny", in_the_middle=True)


@pytest.mark.parametrize("given", [answer(), IN_THE_MIDDLE], ids=["approval", "in the middle"])
def test_approvals_and_mid_task_questions_need_no_question_number(service: Service, given: ReviewAnswer) -> None:
    service.shows, service.round = [replace(WAITS, crew_task_id=given.crew_task_id)], 2
    assert again(service, given, open_round=1).check_before_sending(current_sender) is False
    check = first(service, given)
    assert check.check_before_sending(current_sender) is False
    assert "open_round" not in check.noted


# --- after a lost POST with a key ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", [answer(), REVISION])
@pytest.mark.parametrize("seen", [WAITS, RUNS, DONE, LIVE, RUNS_LIVE])
def test_with_a_key_the_same_post_is_resent_at_once(service: Service, seen: Execution, given: ReviewAnswer) -> None:
    service.shows, service.connection.idempotency_keys = [seen], True
    assert again(service, given).check_before_sending(current_sender) is False
    assert (service.polled, service.slept) == ([("k-1",)], [])


@pytest.mark.parametrize(("is_approve", "seen"), [(True, NEXT_TASK), (False, NEW_DRAFT)])
def test_with_a_key_a_successor_draft_still_shows_acceptance(
    service: Service, is_approve: bool, seen: Execution
) -> None:
    service.shows, service.connection.idempotency_keys = [seen], True
    assert again(service, answer(is_approve)).check_before_sending(current_sender) is True


@pytest.mark.parametrize("keyed", [False, True])
def test_changes_since_a_lost_post_are_named_and_nothing_sent(service: Service, keyed: bool) -> None:
    service.connection.idempotency_keys = keyed
    other = Sender("https://y", "another", "credentials")
    why = "Since then, the base URL and the token (or an extra header) changed."
    assert said(again(service, answer()), sender=other) == UNKNOWN.format(why)


# --- a refusal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "taken"), [(RUNS, True), (NEXT_TASK, True), (NEW_DRAFT, False), (HIDDEN, False)])
def test_a_refusal_after_a_lost_post_may_confirm_its_arrival(service: Service, seen: Execution, taken: bool) -> None:
    service.shows = [seen]
    assert again(service, answer()).was_taken_after_all(REFUSED) is taken
    assert service.polled == [("k-1",)]


def test_a_refusal_confirms_arrival_only_if_the_draft_stops_waiting(service: Service) -> None:
    service.shows = [WAITS, WAITS, RUNS]
    assert again(service, answer()).was_taken_after_all(REFUSED) is True
    service.shows = [WAITS]
    assert again(service, answer()).was_taken_after_all(REFUSED) is False


def test_any_other_refusal_says_nothing_of_an_earlier_post(service: Service) -> None:
    assert first(service, answer()).was_taken_after_all(REFUSED) is False
    assert again(service, answer()).was_taken_after_all(CrewServerError(500, "POST", "/resume", "no")) is False
    service.connection.idempotency_keys = True
    assert again(service, answer()).was_taken_after_all(REFUSED) is False
    assert service.polled == []


# --- after a POST that was taken ----------------------------------------------------------------------------


def test_a_resume_waits_until_the_draft_no_longer_waits(service: Service) -> None:
    service.shows = [WAITS, CrewServerError(500, "GET", "/status/k-1", "no"), RUNS]
    assert again(service, answer(), resumed_at=service.now + 0.5).wait_until_answered() is True
    assert service.polled == [("k-1", 2.0), ("k-1", 1.75), ("k-1", 1.5)]
    assert service.slept == [0.25, 0.25]


@pytest.mark.parametrize("seen", [WAITS, CrewServerError(500, "GET", "/status/k-1", "no")])
def test_it_does_not_wait_longer_than_the_lag(service: Service, seen: Any) -> None:
    service.shows = [seen]
    assert again(service, answer(), resumed_at=service.now - 0.125).wait_until_answered() is False
    assert service.polled == [("k-1", 1.375), ("k-1", 1.125)]
    assert service.slept == [0.25, 0.125]


def test_a_poll_taking_all_of_the_lag_is_the_last(service: Service) -> None:
    service.costs = 1.0
    assert again(service, answer(), resumed_at=service.now).wait_until_answered() is False
    assert (service.polled, service.slept) == ([("k-1", 1.5)], [0.0])


def test_without_a_recorded_time_the_lag_begins_now(service: Service) -> None:
    check = first(service, answer())
    assert (check.resumed_at, check.wait_until_answered(), service.slept) == (100.0, False, [0.25, 0.25])


def test_a_wait_for_the_lag_pauses_longer_and_longer(service: Service) -> None:
    check = Check(service, answer(), PostRecord(Memory(), Attempt(), "this"), 60.0)
    assert check.wait_until_answered() is False
    assert max(service.slept) == 5.0
    assert sum(service.slept) == pytest.approx(60.0)


# --- questions in the middle of a task ----------------------------------------------------------------------


ASK = {"kind": "tool", "agent": "Writer", "tool": "send", "arguments": {"to": "ann"}, "number": 3}
ASKED = execution(crew_task_id="draft_task#3", output="the draft", ask=ASK)
NEXT_QUESTION = execution(crew_task_id="draft_task#4", output="the next question", ask={**ASK, "number": 4})


def answered(**more: Any) -> ReviewAnswer:
    review = {"execution_id": "k-1", "crew_task_id": "draft_task#3", "ask": ASK, "output_sha256": FIRST, **more}
    return ReviewAnswer.of({"outcome": "approve", "is_approve": True, "human_feedback": "", **review})


def test_changed_arguments_need_no_offer_to_edit_drafts(service: Service) -> None:
    service.shows = [ASKED]
    assert first(service, answered(edited_output='{"to": "bob"}')).check_before_sending(current_sender) is False


def test_an_answer_reaches_no_other_question(service: Service) -> None:
    service.shows = [NEXT_QUESTION]
    message = said(first(service, answered()))
    assert message.startswith("The question draft_task#3 of execution k-1 is no longer open; draft_task#4 is waiting")


@pytest.mark.parametrize(
    ("seen", "is_open"),
    [(ASKED, True), (NEXT_QUESTION, False), (RUNS, False), (CrewServerError(503, "GET", "/status/k-1", "no"), False)],
    ids=["the same question", "the next question", "at work", "no status"],
)
def test_a_tool_that_refuses_changed_arguments_still_has_its_question(
    service: Service, seen: Any, is_open: bool
) -> None:
    service.shows = [seen]
    assert first(service, answered(edited_output='{"to": "bob"}')).is_still_open(REFUSED) is is_open
    assert service.polled == [("k-1",)]


@pytest.mark.parametrize(("seen", "is_open"), [(WAITS, True), (NEW_DRAFT, False), (RUNS, False), (HIDDEN, False)])
def test_an_answer_that_is_too_long_leaves_its_question_open(service: Service, seen: Execution, is_open: bool) -> None:
    service.shows = [seen]
    assert first(service, REVISION).is_still_open(CrewTooLarge(413, "POST", "/resume", "no")) is is_open
    assert again(service, REVISION).is_still_open(CrewTooLarge(413, "POST", "/resume", "no")) is False
    assert service.polled == [("k-1",)]


def test_any_other_refusal_leaves_no_question_open(service: Service) -> None:
    service.shows, changed = [ASKED], answered(edited_output='{"to": "bob"}')
    assert first(service, answered()).is_still_open(REFUSED) is False
    assert first(service, replace(changed, in_the_middle=False)).is_still_open(REFUSED) is False
    assert again(service, changed).is_still_open(REFUSED) is False
    assert first(service, changed).is_still_open(CrewServerError(500, "POST", "/resume", "no")) is False
    assert service.polled == []


@pytest.mark.parametrize("outcome", ["approve", "deny"])
@pytest.mark.parametrize("seen", [NEXT_QUESTION, WAITS, NEXT_TASK, RUNS])
def test_whatever_follows_a_questions_answer_shows_it_was_taken(
    service: Service, outcome: str, seen: Execution
) -> None:
    service.shows = [seen]
    given = answered(outcome=outcome, is_approve=outcome == "approve")
    assert again(service, given).check_before_sending(current_sender) is True


@pytest.mark.parametrize(("is_approve", "taken"), [(False, True), (True, False)])
def test_a_revised_tasks_mid_task_question_follows_a_revision_only(
    service: Service, is_approve: bool, taken: bool
) -> None:
    service.shows = [NEXT_QUESTION]
    check = again(service, answer(is_approve))
    if taken:
        assert check.check_before_sending(current_sender) is True
    else:
        assert "waiting with a different draft" in said(check)
