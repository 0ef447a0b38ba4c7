"""What may go wrong round a resume: the service acts late, shows old states, or shows nothing at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException
from faults.dialects import PENDING_SPEC, SPEC, UNKNOWN_LIVE
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.client import lookups
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.resume import record as earlier_resume
from airflow_crew_provider.resume import sending
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow", "quick_resume")
POST = "POST /resume"
POLL = "GET /status/k-1"
APPROVAL = {
    "execution_id": "k-1",
    "crew_task_id": "draft_task",
    "is_approve": True,
    "human_feedback": "",
    "output_sha256": output_sha256("the draft"),
}
REVISION = {**APPROVAL, "is_approve": False, "human_feedback": "Shorter"}
SECOND_DRAFT = {**PENDING_SPEC, "task_output": "the second draft"}
NEXT_GATE = {**PENDING_SPEC, "task_id": "other_task", "task_output": "the outline"}
WITH_KEYS = pytest.mark.parametrize("keyed", [False, True], ids=["no keys", "keys"])


def resume(review: Any = APPROVAL, **more: Any) -> CrewResumeOperator:
    return CrewResumeOperator(task_id="resume", review=review, **more)


def lose_the_answer(server: FaultServer, task_run: TaskRun, review: Any = APPROVAL, **more: Any) -> TaskRun:
    """Run a first try whose answer is lost; return the second one."""
    server.on(POLL, PENDING_SPEC).on(POST, NoReply(RESET))
    with pytest.raises(AirflowException):
        run(resume(review, **more), task_run)
    assert len(server.sent(POST)) == 1
    return task_run.retry()


# --- another draft waits by now -----------------------------------------------------------------------------


@pytest.mark.row("N19")
@WITH_KEYS
def test_a_lost_approval_is_not_sent_to_a_revised_draft(server: FaultServer, connect: Connect, keyed: bool) -> None:
    connect(server.url, idempotency_keys=keyed)
    task_run = lose_the_answer(server, TaskRun("resume"))
    server.on(POLL, SECOND_DRAFT).on(POST, SPEC.resumed)
    with pytest.raises(CrewTaskFailed, match="a different draft"):
        run(resume(), task_run)
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N19")
@WITH_KEYS
def test_a_lost_revision_is_not_sent_past_somebody_elses_approval(
    server: FaultServer, connect: Connect, keyed: bool
) -> None:
    connect(server.url, idempotency_keys=keyed)
    task_run = lose_the_answer(server, TaskRun("resume"), REVISION)
    server.on(POLL, NEXT_GATE).on(POST, SPEC.resumed)
    with pytest.raises(CrewTaskFailed, match="a different draft"):
        run(resume(REVISION), task_run)
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N19")
@WITH_KEYS
@pytest.mark.parametrize(("review", "seen"), [(APPROVAL, NEXT_GATE), (REVISION, SECOND_DRAFT)], ids=["yes", "no"])
def test_an_effect_of_this_answer_prevents_sending_it_again(
    server: FaultServer, connect: Connect, keyed: bool, review: Any, seen: Any
) -> None:
    connect(server.url, idempotency_keys=keyed)
    task_run = lose_the_answer(server, TaskRun("resume"), review)
    server.on(POLL, seen)
    assert run(resume(review), task_run) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N19")
def test_four_fields_stay_bound_to_the_draft_they_first_answered(server: FaultServer) -> None:
    fields = {name: value for name, value in REVISION.items() if name != "output_sha256"}
    task_run = lose_the_answer(server, TaskRun("resume"), None, **fields)
    server.on(POLL, SECOND_DRAFT)
    assert run(resume(None, **fields), task_run) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N19", "N22")
@WITH_KEYS
def test_no_answer_of_unknown_outcome_is_resent_with_another_token(
    server: FaultServer, connect: Connect, keyed: bool
) -> None:
    connect(server.url, idempotency_keys=keyed)
    task_run = lose_the_answer(server, TaskRun("resume"))
    connect(server.url, token="another-token", idempotency_keys=keyed)
    with pytest.raises(CrewTaskFailed, match=r"outcome is unknown.*the token.*changed.*answer by hand"):
        run(resume(), task_run)
    assert len(server.sent(POST)) == 1


def unavailable_while_the_token_changes(url: str, connect: Connect, keyed: bool) -> Any:
    """Return a response to a poll, which is then repeated with another token."""

    def respond(request: Any) -> Reply:
        connect(url, token="another-token", idempotency_keys=keyed)
        return Reply(status=503)

    return respond


@pytest.mark.row("N19", "N22")
@WITH_KEYS
def test_a_token_that_changes_during_the_check_resends_no_answer(
    server: FaultServer, connect: Connect, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WHILE_POLLING", 0.0)
    connect(server.url, idempotency_keys=keyed)
    task_run = lose_the_answer(server, TaskRun("resume"))
    server.on(POLL, unavailable_while_the_token_changes(server.url, connect, keyed), PENDING_SPEC).on(
        POST, SPEC.resumed
    )
    with pytest.raises(CrewTaskFailed, match=r"outcome is unknown.*the token.*changed.*answer by hand"):
        run(resume(), task_run)
    assert len(server.sent(POST)) == 1


def lose_a_keyed_answer(server: FaultServer, connect: Connect, shows: Any) -> TaskRun:
    """Run a first try whose answer is lost; its retry finds during its check that keys were turned off."""
    connect(server.url, idempotency_keys=True)
    server.on(POLL, shows).on(POST, NoReply(RESET))
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    return task_run.retry()


def unavailable_while_keys_are_turned_off(url: str, connect: Connect) -> Any:
    """Return a response to a poll, which is then repeated with a connection without keys."""

    def respond(request: Any) -> Reply:
        connect(url, idempotency_keys=False)
        return Reply(status=503)

    return respond


@pytest.mark.row("N20", "N22")
def test_keys_turned_off_during_the_check_leave_time_to_arrive(
    server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WHILE_POLLING", 0.0)
    task_run = lose_a_keyed_answer(server, connect, PENDING_SPEC)
    away = unavailable_while_keys_are_turned_off(server.url, connect)
    server.on(POLL, away, *[PENDING_SPEC] * 3, SPEC.running).on(POST, SPEC.resumed)
    assert run(resume(), task_run) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N22")
def test_keys_turned_off_during_the_check_resend_no_live_answer(
    server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WHILE_POLLING", 0.0)
    task_run = lose_a_keyed_answer(server, connect, UNKNOWN_LIVE)
    server.on(POLL, unavailable_while_keys_are_turned_off(server.url, connect), UNKNOWN_LIVE).on(POST, SPEC.resumed)
    with pytest.raises(CrewTaskFailed, match="Sending it again could apply it twice"):
        run(resume(), task_run)
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N19", "N22")
def test_an_answer_is_recorded_with_the_token_that_sends_it(
    server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WHILE_POLLING", 0.0)
    connect(server.url, idempotency_keys=True)
    server.on(POLL, unavailable_while_the_token_changes(server.url, connect, True), PENDING_SPEC)
    server.on(POST, NoReply(RESET), SPEC.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    assert run(resume(), task_run.retry()) == "k-1"
    sent = server.sent(POST)
    assert {each.headers["authorization"] for each in sent} == {"Bearer another-token"}
    assert len({each.headers["idempotency-key"] for each in sent}) == 1


# --- a gateway gives up, and the service acts later ---------------------------------------------------------

FOR_MINUTES = [PENDING_SPEC] * 60  # the longest pause between two polls is 5 s


@pytest.mark.row("N20")
def test_a_shorter_kickoff_timeout_leaves_an_earlier_answers_time_unchanged(
    server: FaultServer, connect: Connect
) -> None:
    connect(server.url, kickoff_timeout=600.0)
    task_run = TaskRun("resume")
    server.on(POLL, PENDING_SPEC).on(POST, Reply(status=504), SPEC.resumed)
    with pytest.raises(AirflowException):
        run(resume(REVISION), task_run)
    connect(server.url, kickoff_timeout=10.0)
    server.on(POLL, *FOR_MINUTES, SECOND_DRAFT)
    assert run(resume(REVISION), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N20")
def test_after_a_504_the_service_may_act_until_its_timeout(server: FaultServer, connect: Connect) -> None:
    connect(server.url, kickoff_timeout=600.0)
    server.on(POLL, PENDING_SPEC).on(POST, Reply(status=504), SPEC.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(REVISION), task_run)
    server.on(POLL, *FOR_MINUTES, SECOND_DRAFT)
    assert run(resume(REVISION), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N20")
@pytest.mark.parametrize("seen", [[SPEC.running], [SPEC.completed], [NEXT_GATE], [PENDING_SPEC, SPEC.running]])
def test_a_400_to_a_resend_means_the_first_sending_arrived(
    server: FaultServer, seen: list[Any], log_text: Callable[[], str]
) -> None:
    task_run = lose_the_answer(server, TaskRun("resume"))

    def late(request: Any) -> Any:
        server.on(POLL, *seen)
        return Reply(status=400, body={"detail": "Execution is not pending"})

    server.on(POST, late)
    assert run(resume(), task_run) == "k-1"
    assert len(server.sent(POST)) == 2
    assert "An earlier try sent this answer" in log_text()


@pytest.mark.row("N20")
def test_a_400_while_another_draft_waits_is_somebody_else(server: FaultServer) -> None:
    task_run = lose_the_answer(server, TaskRun("resume"))

    def late(request: Any) -> Any:
        server.on(POLL, SECOND_DRAFT)
        return Reply(status=400, body={"detail": "Execution is not pending"})

    server.on(POST, late)
    with pytest.raises(CrewTaskFailed, match="not accepted"):
        run(resume(), task_run)


# --- the old pause still shows ------------------------------------------------------------------------------


@pytest.mark.row("N21")
def test_the_resume_ends_only_when_the_old_pause_is_gone(server: FaultServer) -> None:
    shows = [PENDING_SPEC] * 8
    server.on(POLL, *shows, SPEC.running).on(POST, SPEC.resumed)
    assert run(resume()) == "k-1"
    assert len(server.sent(POLL)) == len(shows) + 1


@pytest.mark.row("N21")
def test_the_time_that_is_given_covers_twenty_seconds() -> None:
    assert sending.SETTLING > 20
    assert earlier_resume.OLD_PAUSE_SHOWS > sending.SETTLING


def chain(**waiting: Any) -> tuple[CrewResumeOperator, CrewStatusSensor]:
    with DAG("chain", schedule=None):
        resumed = resume(REVISION)
        options = {"poke_interval": 0.05, "timeout": 20, "kickoff_id": "k-1", **waiting}
        wait = CrewStatusSensor(task_id="wait", **options)
        resumed >> wait
    return resumed, wait


MODES = pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])


@pytest.mark.row("N21", "N8")
@MODES
def test_a_wait_after_a_resume_ignores_the_old_pause(server: FaultServer, deferrable: bool) -> None:
    resumed, wait = chain(deferrable=deferrable)
    first = TaskRun("resume")
    server.on(POLL, PENDING_SPEC).on(POST, SPEC.resumed)
    run(resumed, first)  # ends while the old pause still shows
    server.on(POLL, PENDING_SPEC, SPEC.running, PENDING_SPEC, PENDING_SPEC, SPEC.running, SECOND_DRAFT)
    record = run(wait, TaskRun("wait", upstream={"resume": first}))
    assert (record["state"], record["output"]) == ("pending", "the second draft")


@pytest.mark.row("N21")
def test_a_new_question_counts_at_once_the_same_draft_later(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_resume, "OLD_PAUSE_SHOWS", 60.0)
    resumed, wait = chain(deferrable=False)
    first = TaskRun("resume")
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    began = time.time()
    run(resumed, first)
    server.on(POLL, NEXT_GATE)
    assert run(wait, TaskRun("wait", upstream={"resume": first}))["crew_task_id"] == "other_task"
    assert time.time() - began < 60.0
    monkeypatch.setattr(earlier_resume, "OLD_PAUSE_SHOWS", 2.0)
    server.on(POLL, PENDING_SPEC)
    assert run(wait, TaskRun("wait", upstream={"resume": first}))["output"] == "the draft"
    assert time.time() - began >= 2.0


@pytest.mark.row("N20")
def test_a_resends_400_is_reported_while_the_draft_still_waits(server: FaultServer) -> None:
    """It may be about anything in the request."""
    task_run = lose_the_answer(server, TaskRun("resume"))
    server.on(POST, Reply(status=400, body={"detail": "taskWebhookUrl is not allowed"}))
    with pytest.raises(CrewTaskFailed, match="taskWebhookUrl is not allowed"):
        run(resume(), task_run)


@pytest.mark.row("N11")
def test_a_lost_answer_is_named_although_recording_it_failed(server: FaultServer, a_memory: Any) -> None:
    server.on(POLL, PENDING_SPEC).on(POST, Reply(status=504))
    a_memory.refused = '"lost_at"'
    with pytest.raises(AirflowException, match=r"504.*it is unknown whether the service acted on it\. A retry"):
        run(resume(), TaskRun("resume"))


# --- the execution is not shown -----------------------------------------------------------------------------


@pytest.mark.row("N23")
@pytest.mark.parametrize("hidden", [SPEC.unknown, {"status": "not found"}], ids=["404", "a word"])
@pytest.mark.parametrize("before", [False, True], ids=["first try", "after a lost answer"])
def test_a_draft_that_cannot_be_compared_is_not_answered(server: FaultServer, hidden: Any, before: bool) -> None:
    task_run = lose_the_answer(server, TaskRun("resume")) if before else TaskRun("resume")
    sent = len(server.sent(POST))
    server.on(POLL, hidden).on(POST, SPEC.resumed)
    with pytest.raises(AirflowException, match=r"othing(| was sent); a retry of this task compares again") as error:
        run(resume(), task_run)
    assert not isinstance(error.value, CrewTaskFailed)
    assert len(server.sent(POST)) == sent
    server.on(POLL, PENDING_SPEC, SPEC.running)
    assert run(resume(), task_run.retry()) == "k-1"


@pytest.mark.row("N7", "N23")
@pytest.mark.parametrize("before", [False, True], ids=["first try", "after a lost answer"])
def test_an_unknown_status_says_nothing_about_the_draft(server: FaultServer, before: bool) -> None:
    task_run = lose_the_answer(server, TaskRun("resume")) if before else TaskRun("resume")
    sent = len(server.sent(POST))
    answered = lambda _: Reply(body=SPEC.running if len(server.sent(POST)) > sent else PENDING_SPEC)  # noqa: E731
    server.on(POLL, {"status": "warming_up"}, answered).on(POST, SPEC.resumed)
    assert run(resume(), task_run) == "k-1"
    assert len(server.sent(POST)) == sent + 1


# --- the continuation fails ---------------------------------------------------------------------------------


@MODES
def test_a_failure_after_a_resume_says_the_answer_was_taken(server: FaultServer, deferrable: bool) -> None:
    resumed, wait = chain(deferrable=deferrable)
    first = TaskRun("resume")
    server.on(POLL, PENDING_SPEC, SPEC.running, SPEC.failed).on(POST, SPEC.resumed)
    run(resumed, first)
    with pytest.raises(CrewTaskFailed, match=r"bad input.*resume of execution k-1 was accepted.*its continuation"):
        run(wait, TaskRun("wait", upstream={"resume": first}))


@MODES
def test_a_failed_continuation_with_its_own_id_reports_the_resume(server: FaultServer, deferrable: bool) -> None:
    _, wait = chain(deferrable=deferrable, kickoff_id="k-2", execution_id="k-1")
    server.on("GET /status/k-2", {**UNKNOWN_LIVE, "state": "FAILED", "status": "ValueError: bad input"})
    with pytest.raises(CrewTaskFailed, match=r"k-2.*bad input.*resume of execution k-1 was accepted"):
        run(wait)


# --- a Flow -------------------------------------------------------------------------------------------------


@pytest.mark.row("N1", "N7")
@pytest.mark.parametrize(
    "first",
    [Reply(status=502), {"state": "WARMING_UP"}, 404, {"state": "NOT FOUND"}, {"state": "RUNNING"}],
    ids=["gateway", "a new word", "404", "not found", "running"],
)
def test_a_flow_answer_goes_by_id_despite_a_failed_poll(server: FaultServer, connect: Connect, first: Any) -> None:
    connect(server.url, kind="flow")
    paused = {"state": "PAUSED", "status": "Waiting", "flow_id": "k-1", "kickoff_id": "k-1"}
    server.on(POLL, first, paused).on("POST /resume_feedback", {"status": "accepted", "request": {}}).on(
        POST, SPEC.resumed
    )
    answer = {**APPROVAL, "outcome": "publish", "human_feedback": "Good."}
    assert run(resume(answer), TaskRun("resume")) == "k-1"
    assert len(server.sent("POST /resume_feedback")) == 1
    assert server.sent(POST) == []


@pytest.mark.row("N21", "N23")
@pytest.mark.parametrize(
    ("seen", "said"),
    [(404, "it does not know the execution"), ({"state": "SUCCESS", "result": "x"}, "the execution is completed")],
    ids=["404", "over"],
)
def test_a_flow_not_waiting_gets_no_crew_style_answer(
    server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, seen: Any, said: str
) -> None:
    monkeypatch.setattr(sending, "SETTLING", 1.0)
    connect(server.url, kind="flow")
    server.on(POLL, seen).on(POST, SPEC.resumed)
    with pytest.raises(AirflowException, match=f"{said}. Nothing was sent; a retry of this task checks again"):
        run(resume({**APPROVAL, "outcome": "publish"}), TaskRun("resume"))
    assert server.sent("POST /*") == []


# --- what became of the answer -------------------------------------------------------------------------------


@pytest.fixture(params=["no Host", "refused token", "no connection"])
def cannot_send(
    request: pytest.FixtureRequest, server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], str]:
    """Let the next try fail before it sends anything; return what there is to do then."""

    def break_it() -> str:
        if request.param == "no Host":
            connect("")
        if request.param == "refused token":
            server.on(POLL, 401)
        if request.param == "no connection":
            monkeypatch.delenv("AIRFLOW_CONN_CREW_DEFAULT")
            return "A retry of this task sends it"
        return "To continue, clear this task"

    return break_it


def test_an_error_before_sending_says_the_answer_was_not_sent(
    server: FaultServer, cannot_send: Callable[[], str]
) -> None:
    what_now = cannot_send()
    with pytest.raises(AirflowException, match=rf"This answer was not sent\. {what_now}"):
        run(resume())
    assert not server.sent(POST)


@pytest.mark.row("N19")
def test_an_error_after_a_lost_answer_says_it_is_unknown(server: FaultServer, cannot_send: Callable[[], str]) -> None:
    task_run = lose_the_answer(server, TaskRun("resume"))
    cannot_send()
    with pytest.raises(AirflowException, match="An earlier try sent this answer, and its outcome is unknown") as error:
        run(resume(), task_run)
    assert "not sent" not in str(error.value)
    assert "this task" in str(error.value)
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N19")
@pytest.mark.parametrize("status", [401, 429])
def test_a_resends_refusal_leaves_the_lost_answers_fate_open(server: FaultServer, status: int) -> None:
    task_run = lose_the_answer(server, TaskRun("resume"))
    server.on(POST, Reply(status=status))
    with pytest.raises(AirflowException, match="An earlier try sent this answer, and its outcome is unknown") as error:
        run(resume(), task_run)
    assert "not accepted" not in str(error.value)
    assert len(server.sent(POST)) == 2


@pytest.mark.row("N19")
def test_a_resend_that_cannot_be_recorded_is_not_called_refused(server: FaultServer, a_memory: Any) -> None:
    task_run = lose_the_answer(server, TaskRun("resume"))
    a_memory.writable = False
    with pytest.raises(AirflowException, match="An earlier try sent this answer, and its outcome is unknown") as error:
        run(resume(), task_run)
    assert "not accepted" not in str(error.value)
    assert len(server.sent(POST)) == 1


def test_an_answer_that_cannot_be_recorded_was_not_sent(server: FaultServer, a_memory: Any) -> None:
    server.on(POLL, PENDING_SPEC).on(POST, SPEC.resumed)
    a_memory.writable = False
    with pytest.raises(AirflowException, match=r"This answer was not sent\. A retry of this task sends it"):
        run(resume())
    assert not server.sent(POST)


def test_an_error_after_an_accepted_answer_says_it_was_accepted(server: FaultServer, connect: Connect) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    task_run = TaskRun("resume")
    run(resume(), task_run)
    connect("")
    with pytest.raises(AirflowException, match=r"The service has accepted this answer\. To continue, clear this task"):
        run(resume(), task_run.clear())
    assert len(server.sent(POST)) == 1
