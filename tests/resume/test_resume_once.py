"""An answer of a person is taken once, and only by the draft it was given for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.dialects import LIVE, PENDING_SPEC, SPEC, UNKNOWN_LIVE, Dialect
from faults.server import FaultServer
from faults.wire import RESET, SILENCE, NoReply, Reply
from simulated_airflow import Connect, TaskRun, run

from airflow_crew_provider.api.status import EDITS_OFFER, HASH_FIELD, HASH_OFFER
from airflow_crew_provider.inbox.messages import HumanInputRequest, InboxMessages
from airflow_crew_provider.inbox.registering import put
from airflow_crew_provider.inbox.rows import messages_key
from airflow_crew_provider.models import HumanInputWebhook, Webhooks, output_sha256
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("simulated_airflow", "quick_resume")
POST = "POST /resume"
POLL = "GET /status/k-1"
ANSWER = {"execution_id": "k-1", "crew_task_id": "draft_task", "is_approve": True}
REVIEW = {**ANSWER, "human_feedback": "", "output_sha256": output_sha256("the draft")}
BEFORE = {"spec": PENDING_SPEC, "live": UNKNOWN_LIVE}
EDIT = "edited_output"
POLLED = {"spec": "k-1", "live": "k-2"}


def resume(**more: Any) -> CrewResumeOperator:
    return CrewResumeOperator(**{"task_id": "resume", **(more or {"review": REVIEW})})


def test_an_approval_is_sent_and_the_id_to_poll_returned(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, BEFORE[dialect.name], dialect.running).on(POST, dialect.resumed)
    assert run(resume()) == POLLED[dialect.name]
    body = server.sent(POST)[0].json
    assert (body["human_feedback"], body["humanFeedback"]) == ("Approved.", "Approved.")
    assert (body["is_approve"], body["isApprove"], body["execution_id"]) == (True, True, "k-1")
    assert not [name for name in body if "ebhook" in name]


def test_the_webhooks_of_the_kickoff_are_given_again(server: FaultServer, connect: Connect) -> None:
    connect("https://inbox.example", token="the-token-of-the-inbox", conn_id="inbox")
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    human = HumanInputWebhook("https://inbox.example/human", conn_id="inbox")
    webhooks = Webhooks(task="https://x/t", step="https://x/s", crew="https://x/c", human_input=human)
    run(resume(review=REVIEW, webhooks=webhooks))
    body = server.sent(POST)[0].json
    assert (body["taskWebhookUrl"], body["crewWebhookUrl"]) == ("https://x/t", "https://x/c")
    assert body["humanInputWebhook"]["authentication"]["token"] == "the-token-of-the-inbox"


# --- once ---------------------------------------------------------------------------------------------------


@pytest.mark.row("N13")
@pytest.mark.parametrize("again", ["retry", "clear"])
def test_a_second_run_finds_the_first_and_returns_its_id(server: FaultServer, dialect: Dialect, again: str) -> None:
    server.on(POLL, BEFORE[dialect.name], dialect.running).on(POST, dialect.resumed)
    task_run = TaskRun("resume")
    assert run(resume(), task_run) == POLLED[dialect.name]
    assert run(resume(), getattr(task_run, again)()) == POLLED[dialect.name]
    assert len(server.sent(POST)) == 1


QUESTION = "11111111-2222-3333-4444-555555555555"


def on_live(crew_task_id: str, **answer: Any) -> CrewResumeOperator:
    return resume(review={**REVIEW, "crew_task_id": crew_task_id, **answer})


@pytest.mark.row("N13")
@pytest.mark.parametrize("keyed", [False, True])
def test_a_live_question_that_was_answered_gets_no_other_answer(
    server: FaultServer, connect: Connect, keyed: bool
) -> None:
    connect(server.url, idempotency_keys=keyed)
    server.on(POLL, UNKNOWN_LIVE, LIVE.running).on(POST, LIVE.resumed)
    task_run = TaskRun("resume")
    assert run(on_live(QUESTION), task_run) == "k-2"
    said = (
        rf"^The question {QUESTION} of execution k-1 was already answered \(approved, 20..-..-.. ..:.. UTC\) by an "
        r"earlier run of this task\. This answer was not sent and changed nothing; clear the kickoff to start again"
    )
    for _ in range(2):
        with pytest.raises(CrewTaskFailed, match=said):
            run(on_live(QUESTION, is_approve=False, human_feedback="Shorter."), task_run.clear())
    assert run(on_live(QUESTION), task_run.clear()) == "k-2"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N13", "N21")
@pytest.mark.parametrize("response", [SPEC.resumed, NoReply(RESET)], ids=["seen", "lost"])
@pytest.mark.parametrize("ids_only", [False, True])
def test_an_old_pause_after_a_clear_takes_no_second_answer(server: FaultServer, ids_only: bool, response: Any) -> None:
    """The status lags: the crew waits with its next draft, which the second answer is not about."""
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, response)
    task_run, revise = TaskRun("resume"), {"is_approve": False, "human_feedback": "Shorter."}
    first = resume(**{**ANSWER, **revise}) if ids_only else resume(review={**REVIEW, **revise})
    if response is not SPEC.resumed:
        with pytest.raises(CrewTryFailed, match="its response was lost"):
            run(first, task_run)
        task_run.retry()
    assert run(first, task_run) == "k-1"
    server.on(POLL, *[PENDING_SPEC] * 3, {**PENDING_SPEC, "task_output": "the next draft"})
    with pytest.raises(CrewTaskFailed, match="is waiting with a different draft from the one that was answered"):
        run(resume(), task_run.clear())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N13")
def test_another_answer_to_a_draft_this_task_answered_is_refused(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    task_run = TaskRun("resume")
    assert run(resume(), task_run) == "k-1"
    said = (
        r"^The question draft_task of execution k-1 was already answered \(approved, .* by an earlier run of this task"
    )
    with pytest.raises(CrewTaskFailed, match=said):
        run(resume(review={**REVIEW, "is_approve": False, "human_feedback": "Shorter."}), task_run.clear())
    assert len(server.sent(POST)) == 1


TOO_LARGE = {
    "the service": Reply(status=413, body={"detail": "at most 1048576 bytes"}),
    "a gateway": Reply(status=413, body="<html>413 Request Entity Too Large</html>"),
}


@pytest.mark.parametrize("by", TOO_LARGE)
@pytest.mark.parametrize("keyed", [False, True])
def test_an_answer_that_was_too_long_may_be_shortened(
    server: FaultServer, connect: Connect, dialect: Dialect, by: str, keyed: bool
) -> None:
    connect(server.url, idempotency_keys=keyed)
    server.on(POLL, *[BEFORE[dialect.name]] * 2, dialect.running).on(POST, TOO_LARGE[by], dialect.resumed)
    task_run, question = TaskRun("resume"), QUESTION if dialect is LIVE else "draft_task"
    said = (
        r"^POST /resume returned 413: .*\. This answer is too long and was not accepted; unless somebody else has "
        "answered, the question is still open: clear the review to ask again"
    )
    with pytest.raises(CrewTaskFailed, match=said):
        run(on_live(question, is_approve=False, human_feedback="Longer. " * 100), task_run)
    assert "crew_resume" not in task_run.xcom
    shorter = on_live(question, is_approve=False, human_feedback="Shorter.")
    assert run(shorter, task_run.clear()) == POLLED[dialect.name]
    assert len(server.sent(POST)) == 2


@pytest.mark.parametrize("status", [405, 410, 411, 415, 421, 431, 451])
def test_a_certain_refusal_of_an_answer_is_final(server: FaultServer, dialect: Dialect, status: int) -> None:
    server.on(POLL, BEFORE[dialect.name]).on(POST, Reply(status=status, body={"detail": "no"}))
    with pytest.raises(CrewTaskFailed, match=rf"^POST /resume returned {status}: no\. This answer was not accepted"):
        run(resume())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52")
def test_an_unreadable_record_tells_what_became_of_the_answer(server: FaultServer, a_memory: Any) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    task_run = TaskRun("resume")
    run(resume(), task_run)
    readable = dict(a_memory.kept)
    a_memory.kept.update(dict.fromkeys(readable, "[]"))
    said = (
        r"^The record of this task, .*, cannot be read: .*\. This try sent nothing\. A retry of this task finds out "
        "whether the answer was accepted before sending it again"
    )
    with pytest.raises(CrewTryFailed, match=said):
        run(resume(), task_run.retry())
    a_memory.kept.update(readable)
    assert run(resume(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52")
@pytest.mark.since_airflow("3.0")
def test_a_lost_record_of_an_unconfirmed_answer_is_noticed(server: FaultServer, variables: Any) -> None:
    server.on(POLL, UNKNOWN_LIVE).on(POST, NoReply(RESET), LIVE.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(on_live(QUESTION), task_run)
    for key in [each for each in variables.kept if each.startswith("crew_task__")]:
        del variables.kept[key]
    with pytest.raises(CrewTaskFailed, match="its outcome is unknown"):
        run(on_live(QUESTION), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A40")
@pytest.mark.parametrize("question", [QUESTION, "check"])
@pytest.mark.parametrize("is_refused", [False, True])
def test_an_unconfirmed_live_answer_is_replaced_only_after_a_warning(
    server: FaultServer, question: str, is_refused: bool
) -> None:
    server.on(POLL, UNKNOWN_LIVE).on(POST, NoReply(RESET), *[Reply(status=429)] * is_refused, LIVE.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(on_live(question), task_run)
    with pytest.raises(CrewTaskFailed, match="its outcome is unknown"):
        run(on_live(question), task_run.retry())
    said = (
        rf"^The question {question} .* may already have been answered \(approved, 20..-.* UTC\).*clear this task once"
    )
    other = {"is_approve": False, "human_feedback": "Shorter."}
    task_run.clear()
    for _ in range(2):
        with pytest.raises(CrewTaskFailed, match=said):
            run(on_live(question, **other), task_run)
        task_run.retry()
    assert len(server.sent(POST)) == 1
    task_run.clear()
    if is_refused:
        with pytest.raises(AirflowException):
            run(on_live(question, **other), task_run)
        task_run.retry()
    assert run(on_live(question, **other), task_run) == "k-2"
    assert len(server.sent(POST)) == 2 + is_refused


@pytest.mark.since_airflow("3.0")  # which has the inbox
@pytest.mark.row("A40")
def test_a_clear_never_reanswers_a_live_question_followed_by_another(
    server: FaultServer, connect: Connect, inbox_variables: Any
) -> None:
    connect(server.url, inbox_url="https://airflow.example.com/crew-inbox")
    server.on(POLL, UNKNOWN_LIVE).on(POST, NoReply(RESET), LIVE.resumed)
    task_run, other = TaskRun("resume"), {"is_approve": False, "human_feedback": "Shorter."}

    def answered(**answer: Any) -> Any:
        return resume(review={**REVIEW, "crew_task_id": QUESTION, **answer}, webhooks="inbox")

    def arrives(messages: InboxMessages) -> None:
        put(messages_key(messages.registration), messages.as_dict(), "a webhook", sealed=True)

    with pytest.raises(AirflowException):
        run(answered(), task_run)
    [key] = inbox_variables.keys("crew_inbox_of_")
    messages = InboxMessages(inbox_variables.get(key, deserialize_json=True)["registration"]["id"])
    arrives(messages.with_progress("task", {}))  # without a token, so it proves nothing
    with pytest.raises(CrewTaskFailed, match="clear this task once more"):
        run(answered(**other), task_run.clear())
    asked = {"kickoff_id": "k-2", "execution_id": "k-1", "task_id": QUESTION.replace("1", "9"), "task_output": "x"}
    arrives(messages.asking(HumanInputRequest.read(asked)))
    said = r"already answered \(approved, .*execution has continued since\).*; clear the kickoff to start again"
    for _ in range(2):
        with pytest.raises(CrewTaskFailed, match=said):
            run(answered(**other), task_run.clear())
        arrives(messages)  # the answer is settled for good
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N13")
@pytest.mark.parametrize("crew_task_id", [QUESTION.replace("1", "9"), "check"], ids=["another question", "a Flow's"])
def test_a_live_question_not_known_as_answered_gets_its_answer(server: FaultServer, crew_task_id: str) -> None:
    server.on(POLL, UNKNOWN_LIVE, LIVE.running).on(POST, LIVE.resumed)
    task_run = TaskRun("resume")
    run(on_live("check" if crew_task_id == "check" else QUESTION), task_run)
    run(on_live(crew_task_id, is_approve=False, human_feedback="Shorter."), task_run.clear())
    assert len(server.sent(POST)) == 2


@pytest.mark.row("N13")
def test_a_new_execution_reusing_a_live_question_id_is_answered(
    server: FaultServer,
) -> None:
    server.on(POLL, UNKNOWN_LIVE, LIVE.running).on("GET /status/k-9", UNKNOWN_LIVE).on(POST, LIVE.resumed)
    task_run = TaskRun("resume")
    run(on_live(QUESTION), task_run)
    run(on_live(QUESTION, execution_id="k-9", is_approve=False, human_feedback="Shorter."), task_run.clear())
    assert len(server.sent(POST)) == 2


@pytest.mark.row("A46")
@pytest.mark.parametrize("given", ["four fields", "a review whose record does not name the dialect"])
def test_a_comment_a_live_deployment_reads_as_revision_is_withheld(server: FaultServer, given: str) -> None:
    server.on(POLL, UNKNOWN_LIVE).on(POST, LIVE.resumed)
    answer = {"execution_id": "k-1", "crew_task_id": QUESTION, "is_approve": True, "human_feedback": "Very nice."}
    task_run = TaskRun("resume")
    run(resume(**answer) if given == "four fields" else resume(review={**REVIEW, **answer}), task_run)
    assert [request.json["human_feedback"] for request in server.sent(POST)] == ["Approved."]
    said = task_run.xcom["crew_resume"]
    assert (said["human_feedback"], said["sent_feedback"]) == ("Very nice.", "Approved.")


@pytest.mark.row("A46")
def test_a_flow_answer_reaches_a_live_deployment_unchanged(server: FaultServer) -> None:
    server.on(POLL, UNKNOWN_LIVE).on(POST, LIVE.resumed)
    run(on_live("place", is_approve=None, outcome="publish", human_feedback="On the board."))
    assert [request.json["human_feedback"] for request in server.sent(POST)] == ["On the board."]


LOST: dict[str, Any] = {
    "reset": NoReply(RESET),
    "silence": NoReply(SILENCE),
    "502": Reply(status=502),
    "500": Reply(status=500),
    "unreadable": Reply(body="ok"),
    "neither status nor id": Reply(body={}),
}


@pytest.mark.row("N13")
@pytest.mark.parametrize("again", ["retry", "clear"])
@pytest.mark.parametrize("fault", LOST)
def test_the_next_run_detects_that_a_lost_answer_was_taken(
    server: FaultServer, connect: Connect, fault: str, again: str, log_text: Callable[[], str]
) -> None:
    connect(server.url, kickoff_timeout=2.0 if fault == "silence" else PATIENCE)
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, LOST[fault])
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException) as error:
        run(resume(), task_run)
    assert not isinstance(error.value, CrewTaskFailed)
    assert run(resume(), getattr(task_run, again)()) == "k-1"
    assert len(server.sent(POST)) == 1
    assert "An earlier try sent this answer" in log_text()


@pytest.mark.row("N13")
def test_the_next_run_resends_an_answer_that_never_arrived(server: FaultServer, log_text: Callable[[], str]) -> None:
    server.on(POLL, PENDING_SPEC).on(POST, NoReply(RESET), SPEC.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    assert run(resume(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 2
    assert "the same draft is still waiting" in log_text()


@pytest.mark.row("N13", "N8")
def test_an_old_pause_still_shown_briefly_causes_no_second_answer(
    server: FaultServer,
) -> None:
    server.on(POLL, PENDING_SPEC, PENDING_SPEC, PENDING_SPEC, SPEC.running).on(POST, NoReply(RESET))
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    assert run(resume(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N13")
@pytest.mark.parametrize("again", ["retry", "clear"])
def test_a_lost_answer_is_resent_under_the_same_idempotency_key(
    server: FaultServer, connect: Connect, dialect: Dialect, again: str
) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POLL, BEFORE[dialect.name], dialect.running).on(POST, NoReply(RESET), dialect.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    assert run(resume(), getattr(task_run, again)()) == POLLED[dialect.name]
    first, second = (request.headers["idempotency-key"] for request in server.sent(POST))
    assert first == second


@pytest.mark.row("N13")
def test_a_lost_live_answer_is_left_to_a_person(server: FaultServer) -> None:
    server.on(POLL, UNKNOWN_LIVE).on(POST, NoReply(RESET))
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    with pytest.raises(CrewTaskFailed, match="Sending it again could apply it twice"):
        run(resume(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N13", "N22")
def test_a_keyless_answer_is_still_checked_after_keys_are_enabled(server: FaultServer, connect: Connect) -> None:
    server.on(POLL, PENDING_SPEC).on(POST, NoReply(RESET), SPEC.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    server.on(POLL, SPEC.running)
    connect(server.url, idempotency_keys=True)
    assert run(resume(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N13", "N22")
@pytest.mark.parametrize("then", [False, True])
def test_changing_the_idempotency_setting_sends_no_second_live_answer(
    server: FaultServer, connect: Connect, then: bool
) -> None:
    connect(server.url, idempotency_keys=then)
    server.on(POLL, UNKNOWN_LIVE).on(POST, NoReply(RESET), LIVE.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    connect(server.url, idempotency_keys=not then)
    with pytest.raises(CrewTaskFailed, match="Sending it again could apply it twice"):
        run(resume(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N13", "A35")
def test_a_run_set_to_queued_sends_no_second_answer(server: FaultServer, variables: Any) -> None:
    server.on(POLL, UNKNOWN_LIVE).on(POST, NoReply(RESET), LIVE.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    task_run.run_started += timedelta(minutes=5)
    with pytest.raises(CrewTaskFailed, match="Sending it again could apply it twice"):
        run(resume(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("N8")
def test_the_old_pause_is_gone_before_the_next_task_polls(
    server: FaultServer,
) -> None:
    server.on(POLL, PENDING_SPEC, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    run(resume())
    assert [request.method for request in server.requests] == ["GET", "POST", "GET", "GET"]


@pytest.mark.row("A15", "N13")
def test_an_unrecorded_resume_leaves_its_id_in_log_and_xcom(
    server: FaultServer, dialect: Dialect, full: Callable[[TaskRun], None], log_text: Callable[[], str]
) -> None:
    server.on(POLL, BEFORE[dialect.name], dialect.running).on(POST, dialect.resumed)
    task_run = TaskRun("resume")
    full(task_run)
    polled = POLLED[dialect.name]
    assert run(resume(), task_run) == polled
    assert task_run.xcom["execution_id"] == "k-1"
    assert f"The service accepted the request for execution {polled}, but that could not be recorded" in log_text()


# --- the hash of the draft goes along -----------------------------------------------------------------------


@pytest.mark.row("N20", "A11")
def test_only_a_service_that_checks_drafts_gets_the_hash(server: FaultServer, dialect: Dialect) -> None:
    server.on(POLL, BEFORE[dialect.name], dialect.running).on(POST, dialect.resumed)
    run(resume())
    assert "output_sha256" not in server.sent(POST)[0].json
    if dialect.name == "spec":
        server.on(POLL, Reply(body=PENDING_SPEC, headers={HASH_OFFER: HASH_FIELD}), SPEC.running)
        run(resume(), TaskRun("another_resume"))
        assert server.sent(POST)[1].json["output_sha256"] == REVIEW["output_sha256"]


@pytest.mark.row("N20")
def test_a_keyed_resend_stays_identical_without_the_hash_offer(server: FaultServer, connect: Connect) -> None:
    connect(server.url, idempotency_keys=True)
    server.on(POLL, Reply(body=PENDING_SPEC, headers={HASH_OFFER: HASH_FIELD}), SPEC.running)
    server.on(POST, NoReply(RESET), SPEC.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(AirflowException):
        run(resume(), task_run)
    run(resume(), task_run.retry())
    first, second = server.sent(POST)
    assert first.json == second.json
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


# --- a crew that is completed -------------------------------------------------------------------------------

COMPLETED = {"state": "completed", "kickoff_id": "k-2", "execution_id": "k-1", "crew_task_id": None, "output": "All."}


@pytest.mark.row("A18")
@pytest.mark.parametrize("bring", [dict, str], ids=["XCom", "template"])
def test_a_completed_record_is_passed_on_and_nothing_is_sent(server: FaultServer, bring: Any) -> None:
    task_run = TaskRun("resume")
    assert run(resume(review=bring(COMPLETED)), task_run) == "k-2"
    assert server.requests == []
    assert task_run.xcom["execution_id"] == "k-1"


@pytest.mark.row("A18")
def test_a_completed_record_without_an_id_is_refused(server: FaultServer) -> None:
    with pytest.raises(CrewTaskFailed, match="nothing was sent"):
        run(resume(review={**COMPLETED, "kickoff_id": None}))


# --- not by somebody else, not to another draft -------------------------------------------------------------


@pytest.mark.row("N14")
def test_a_400_says_that_somebody_else_has_answered(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC).on(POST, Reply(status=400, body={"detail": "Execution is not pending"}))
    with pytest.raises(CrewTaskFailed, match="the draft was answered elsewhere, or the execution has ended"):
        run(resume())


@pytest.mark.row("N14")
def test_a_400_to_an_edit_does_not_claim_another_answer(server: FaultServer) -> None:
    server.on(POLL, Reply(body=PENDING_SPEC, headers={EDITS_OFFER: EDIT}))
    server.on(POST, Reply(status=400, body={"detail": "edited_output is not accepted because it is no object."}))
    with pytest.raises(CrewTaskFailed, match="is no object") as failure:
        run(resume(review={**REVIEW, EDIT: "A text."}))
    assert "This answer was not accepted" in str(failure.value)
    assert "elsewhere" not in str(failure.value)


@pytest.mark.row("N14")
@pytest.mark.parametrize(
    "now", [{**PENDING_SPEC, "task_output": "another draft"}, SPEC.running], ids=["new", "being made"]
)
def test_a_late_edit_is_handed_on_to_a_following_round(server: FaultServer, now: Any) -> None:
    """Somebody else's revision arrived between the look and the POST."""
    server.on(POLL, Reply(body=PENDING_SPEC, headers={EDITS_OFFER: EDIT}), now)
    server.on(POST, Reply(status=400, body={"detail": "edited_output is of another draft."}))
    assert run(resume(review={**REVIEW, EDIT: "A text."}, has_next_round=True)) == "k-1"


@pytest.mark.row("N14")
def test_an_edit_is_handed_on_after_somebody_elses_revision(server: FaultServer) -> None:
    server.on(POLL, SPEC.running)
    assert run(resume(review={**REVIEW, EDIT: "A text."}, has_next_round=True)) == "k-1"
    assert server.sent(POST) == []


@pytest.mark.row("N14")
@pytest.mark.parametrize("seen", [SPEC.running, SPEC.completed, SPEC.failed], ids=["running", "completed", "failed"])
def test_an_execution_no_longer_waiting_is_not_answered(server: FaultServer, seen: Any) -> None:
    server.on(POLL, seen)
    with pytest.raises(CrewTaskFailed, match="it was answered elsewhere"):
        run(resume())
    assert server.sent(POST) == []


@pytest.mark.row("N14")
@pytest.mark.parametrize(
    "changed", [{"task_output": "another draft"}, {"task_id": "other_task"}, {"task_output": "the draft "}]
)
def test_no_answer_to_an_old_draft_reaches_a_new_one(server: FaultServer, changed: Any) -> None:
    server.on(POLL, {**PENDING_SPEC, **changed})
    with pytest.raises(CrewTaskFailed, match="a different draft"):
        run(resume())
    assert server.sent(POST) == []


@pytest.mark.parametrize("status", [401, 404, 422])
def test_a_refused_answer_was_not_taken_and_may_be_resent(server: FaultServer, status: int) -> None:
    server.on(POLL, PENDING_SPEC, PENDING_SPEC, SPEC.running).on(POST, Reply(status=status, body={}), SPEC.resumed)
    task_run = TaskRun("resume")
    with pytest.raises(CrewTaskFailed, match="was not accepted"):
        run(resume(), task_run)
    assert run(resume(), task_run.retry()) == "k-1"


# --- the answer ---------------------------------------------------------------------------------------------


@pytest.mark.row("N25")
@pytest.mark.parametrize(
    ("is_approve", "feedback", "sent"),
    [
        (True, "", "Approved."),
        (True, "  ", "Approved."),
        (True, "Publish it on Monday", "Publish it on Monday"),
        (False, "Shorter", "Shorter"),
        (False, "OK.", "Please revise: OK."),
        (False, "Approved!", "Please revise: Approved!"),
        (False, "LGTM", "Please revise: LGTM"),
        (False, "looks good", "Please revise: looks good"),
        (False, "OK?", "Please revise: OK?"),
        (False, "yes :)", "Please revise: yes :)"),
        (False, "\uff4c\uff47\uff54\uff4d 👍", "Please revise: \uff4c\uff47\uff54\uff4d 👍"),
        (False, "{{ params.x }} <b>&amp;</b>", "{{ params.x }} <b>&amp;</b>"),
    ],
)
@pytest.mark.parametrize("bring", [dict, str], ids=["review", "template"])
def test_the_text_says_what_the_flag_says(
    server: FaultServer, bring: Any, is_approve: bool, feedback: str, sent: str
) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    run(resume(review=bring({**REVIEW, "is_approve": is_approve, "human_feedback": feedback})))
    body = server.sent(POST)[0].json
    assert (body["human_feedback"], body["is_approve"]) == (sent, is_approve)


def test_an_approval_comment_goes_to_a_service_reading_the_flag(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    task_run = TaskRun("resume")
    run(resume(review={**REVIEW, "human_feedback": "Publish it on Monday"}), task_run)
    assert server.sent(POST)[0].json["human_feedback"] == "Publish it on Monday"
    assert "sent_feedback" not in task_run.xcom["crew_resume"]


@pytest.mark.parametrize("word", ["True", " true ", "TRUE"])
def test_the_word_true_is_an_approval(server: FaultServer, word: str) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    run(resume(**{**ANSWER, "is_approve": word}))
    assert server.sent(POST)[0].json["is_approve"] is True


@pytest.mark.parametrize("word", ["False", " false "])
def test_the_word_false_is_no_approval(server: FaultServer, word: str) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    run(resume(**{**ANSWER, "is_approve": word, "human_feedback": "Shorter"}))
    assert server.sent(POST)[0].json["is_approve"] is False


REFUSED: list[dict[str, Any]] = [
    *({**ANSWER, "is_approve": value} for value in (1, 0, "yes", "", "None", "approve", [], {}, 1.0)),
    *({**ANSWER, "is_approve": False, "human_feedback": text} for text in (None, "", "   ", "\n")),
    *({**ANSWER, name: None} for name in ANSWER),
    *({**ANSWER, "execution_id": value} for value in ("", "..", "x" * 3000, 5)),
    {**ANSWER, "human_feedback": ["a"]},
    {"review": REVIEW, "is_approve": True},
    {"review": "not a record"},
    {"review": ["a"]},
    {"review": {}},
    {"review": None},
]


@pytest.mark.parametrize("given", REFUSED, ids=str)
def test_an_invalid_answer_is_refused_before_anything_is_sent(server: FaultServer, given: dict[str, Any]) -> None:
    with pytest.raises(CrewTaskFailed, match="nothing was sent"):
        run(resume(**given))
    assert server.requests == []


def test_a_review_rendered_as_text_by_a_template_is_read(server: FaultServer) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    assert run(resume(review=str(REVIEW))) == "k-1"


def test_before_airflow_3_3_a_variable_remembers_the_sent_answer(server: FaultServer, variables: Any) -> None:
    server.on(POLL, PENDING_SPEC, SPEC.running).on(POST, SPEC.resumed)
    task_run = TaskRun("resume")
    run(resume(), task_run)
    assert run(resume(), task_run.clear()) == "k-1"
    assert len(server.sent(POST)) == 1
    of_task = {each.split("__")[0] for each in variables.kept if not each.startswith("crew_execution_")}
    assert of_task == {"crew_resume", "crew_task"}
