"""A crew in one task: start, wait, every question, every answer. Against a real crew service; Airflow is simulated."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests
from airflow.providers.common.compat.sdk import DAG, AirflowException, TaskDeferred
from airflow.sdk.api.datamodels._generated import HITLDetailResponse
from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, GetHITLDetailResponse
from airflow_stand_ins import Supervisor, TaskAwaitingInput
from faults.dialects import LIVE, SPEC
from faults.proxy import POLL, RESUME, Fault, FaultProxy, Forward
from faults.server import FaultServer
from faults.wire import Reply
from sampling import crossed, sampled
from simulated_airflow import Connect, TaskRun, fire, fresh

from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.compat import variables as airflow_variables
from airflow_crew_provider.compat import version
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox import rows
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.operators.run import CrewRunOperator
from airflow_crew_provider.review import airflow_form
from airflow_crew_provider.task.drive import Defer
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import COMPLETED, FAILED, PENDING, SEEN, TIMEOUT, Outcome
from scripts.stack.waiting import PATIENCE, wait_until

local = pytest.importorskip("crew_service.local", reason="needs the crew service")
Json = dict[str, Any]
needs_parking = pytest.mark.since_airflow("3.3")  # which parks tasks
pytestmark = pytest.mark.usefixtures("simulated_airflow")
one_task = pytest.mark.usefixtures("a_form_per_attempt")
DRAFT = {
    "id": "draft_task",
    "agent": "Writer",
    "seconds": 0.0,
    "human_input": True,
    "output": "Draft {revision}.",
    "revised": "Draft {revision}, after: {feedback}",
}
LAST = {"id": "print_task", "agent": "Printer", "seconds": 0.0, "output": "Printed."}


@dataclass
class Forms(Supervisor):
    """The forms of Airflow 3.4: one for each attempt, which a repeated question replaces."""

    of_attempt: dict[str, Json] = field(default_factory=dict)

    def send(self, msg: Any) -> Any:
        if isinstance(msg, GetHITLDetailResponse):
            form = self.of_attempt[str(msg.ti_id)]
            given = {"responded_at": None, "chosen_options": [], **(form["answer"] or {})}
            return HITLDetailResponse(**{**given, "response_received": form["answer"] is not None})
        if isinstance(msg, CreateHITLDetailPayload):
            self.of_attempt[str(msg.ti_id)] = {"form": msg, "answer": None}
            return msg
        return None


class Task:
    """A task instance of Airflow 3.4, from its first try to its end."""

    def __init__(self, forms: Forms, **arguments: Any) -> None:
        made = {"inputs": {}, "poll_interval": 0.05, "retry_delay": timedelta(0), **arguments}
        self.operator = CrewRunOperator(task_id="crew", **made)
        self.forms, self.task_run = forms, TaskRun("crew", retries=self.operator.retries)
        self.attempt = str(uuid.uuid4())
        self.waits: Json = {}  # for a person: what the task is resumed with
        self.waits_until: list[tuple[float | None, Json]] = []  # for the crew: the deadline, and what was kept
        self.result: Any = None

    def context(self) -> Json:
        context = self.task_run.context()
        context["ti"].id = self.attempt
        context["ti"].xcom_pull = lambda task_ids, key, map_indexes: self.task_run.xcom.get(key)
        return context

    def start(self) -> Task:
        """Run a try until it ends or a person is asked."""
        return self._go_on(lambda context: fresh(self.operator).execute(context))

    def retry(self) -> Task:
        """Run the next try, after this one was lost or failed."""
        self.attempt = str(uuid.uuid4())
        self.task_run.retry()
        return self.start()

    def clear(self) -> Task:
        self.attempt = str(uuid.uuid4())
        self.task_run.clear()
        return self.start()

    @property
    def form(self) -> Any:
        """The form of this attempt, as Airflow has it now."""
        return self.forms.of_attempt[self.attempt]["form"]

    def event(self, option: str, feedback: str = "", **fields: Any) -> Json:
        """Return an answer as a page of the form gives it, to be delivered by `resume` or left with the attempt."""
        params = {name: each["value"] for name, each in self.form.params.items()}
        answer = {
            "chosen_options": [option],
            "params_input": {**params, "human_feedback": feedback, **fields},
            "responded_at": datetime.now(UTC),
            "responded_by_user": {"id": "7", "name": "Ann"},
        }
        self.forms.of_attempt[self.attempt]["answer"] = answer
        return {**answer, "timedout": False}

    def resume(self, event: Json) -> Task:
        kwargs = {**self.waits, "event": event}
        return self._go_on(lambda context: fresh(self.operator).resume_execution("execute_complete", kwargs, context))

    def answer(self, option: str, feedback: str = "", **fields: Any) -> Task:
        return self.resume(self.event(option, feedback, **fields))

    def lost_in(self, monkeypatch: pytest.MonkeyPatch, where: str, event: Json) -> None:
        """Resume in a worker that is killed where a function of the package is called."""

        def die(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(where, die)
            with pytest.raises(KeyboardInterrupt):
                self.resume(event)

    @property
    def decisions(self) -> list[Json]:
        return self.task_run.xcom["crew_decisions"]

    def _go_on(self, visit: Any) -> Task:
        context = self.context()
        self.waits = {}
        while True:
            try:
                self.result = visit(context)
                return self
            except TaskAwaitingInput as parked:
                self.waits = json.loads(json.dumps(parked.kwargs))
                return self
            except TaskDeferred as deferred:
                trigger, kept = deferred.trigger, json.loads(json.dumps(deferred.kwargs or {}))
            if "waiting" in kept:
                self.waits_until.append((kept["waiting"]["deadline"], stored_run()))
            kwargs = {**kept, "event": self._fired(trigger)}
            visit = lambda context, kwargs=kwargs: fresh(self.operator).resume_execution(  # noqa: E731
                "execute_complete", kwargs, context
            )

    def _fired(self, trigger: Any) -> Json:
        if not hasattr(trigger, "ti_id"):
            return fire(trigger)
        # A look for an answer, whose times are no JSON.
        form = self.forms.of_attempt.get(str(trigger.ti_id))
        if form is None:
            return {"error": "There is no form", "error_type": "no form"}
        if form["answer"] is None:
            return {"error": "There is no answer", "error_type": "no answer"}
        return {**form["answer"], "timedout": False}


def stored_run() -> Json:
    """Return the record of the task, as its Variable has it."""
    variables = airflow_variables.Variable.kept
    [key] = [each for each in variables if each.startswith("crew_task__")]
    return json.loads(variables[key])["parts"]["crew_run"]


class Crew:
    """The service, as its own details show it."""

    def __init__(self, service: Any) -> None:
        self.url, self.token = service.url, service.token
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def call(self, method: str, path: str, **body: Any) -> Any:
        return requests.request(
            method, f"{self.url}{path}", headers=self.headers, json=body or None, timeout=PATIENCE
        ).json()

    @property
    def executions(self) -> list[Json]:
        """All executions, the oldest first."""
        listed = self.call("GET", "/executions")["executions"]
        return [self.call("GET", f"/executions/{each['kickoff_id']}") for each in reversed(listed)]

    def decided(self) -> list[tuple[str, Any]]:
        [execution] = self.executions
        return [(each["draft"], each["is_approve"]) for each in execution["rounds"] if each["decided_at"]]


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Forms:
    from airflow.sdk.execution_time import task_runner

    forms = Forms()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", forms, raising=False)
    return forms


def serving(connect: Connect, tmp_path: Path, *tasks: Json, dialect: str = "spec") -> Iterator[Crew]:
    scenario = {"inputs": [], "tasks": list(tasks)}
    with local.running_service(scenario=scenario, dialect=dialect, db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        yield Crew(service)


@pytest.fixture
def crew(connect: Connect, tmp_path: Path) -> Iterator[Crew]:
    yield from serving(connect, tmp_path, DRAFT, LAST)


# --- when the DAG file is parsed ---


@pytest.mark.parametrize("release", [(3, 1), (3, 3)])
def test_it_is_refused_before_airflow_3_4(monkeypatch: pytest.MonkeyPatch, release: tuple[int, int]) -> None:
    monkeypatch.setattr(version, "RELEASE", release)
    with pytest.raises(ValueError, match=r"^CrewRunOperator needs Airflow 3\.4 or newer, .* use crew_with_review$"):
        CrewRunOperator(task_id="crew", inputs={})


@one_task
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on_timeout": "approve"}, "on_timeout needs a response_timeout"),
        ({"approvals": 0}, "approvals must be"),
        ({"options": ["yes", "yes"]}, "options must be two different words"),
        ({"on_schema_mismatch": "revise"}, "needs output_schema"),
        ({"max_questions": 0}, "max_questions must be an integer >= 1"),
        ({"max_questions": None}, "max_questions must be an integer >= 1, not None"),
        ({"retry_from": "here"}, "retry_from must be"),
    ],
)
def test_what_its_rooms_refuse_is_refused_in_the_dag_file(arguments: Json, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CrewRunOperator(task_id="crew", inputs={}, **arguments)


@one_task
def test_its_dag_has_one_task_that_retries_five_times() -> None:
    with DAG("dag", schedule=None) as dag:
        CrewRunOperator(task_id="crew", inputs={})
        CrewRunOperator(task_id="patient", inputs={}, retries=7, default_args={"retries": 9})
    with DAG("stubborn", schedule=None, default_args={"retries": 9}) as stubborn:
        CrewRunOperator(task_id="crew", inputs={})
    assert {name: task.retries for name, task in dag.task_dict.items()} == {"crew": 5, "patient": 7}
    assert {name: task.retries for name, task in stubborn.task_dict.items()} == {"crew": 9}


@one_task
@pytest.mark.parametrize(
    ("default_args", "given", "retries", "delay"),
    [
        ({}, {}, 5, 10),
        ({"retries": "7", "retry_delay": 300}, {}, 7, 300),
        ({"retries": 9, "retry_delay": timedelta(seconds=1)}, {}, 9, 1),
        ({}, {"retries": 7}, 7, 10),
    ],
    ids=str,
)
def test_a_mapped_task_has_as_many_retries(default_args: Json, given: Json, retries: int, delay: int) -> None:
    with DAG("dag", schedule=None, default_args=default_args) as dag:
        CrewRunOperator.partial(task_id="crew", **given).expand(inputs=[{}, {}])
    mapped: Any = dag.get_task("crew")
    item = mapped.unmap({"inputs": {}})
    assert [(each.retries, each.retry_delay) for each in (mapped, item)] == [(retries, timedelta(seconds=delay))] * 2


# --- rounds ---


@one_task
@needs_parking
def test_two_rounds_and_the_completed_record(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start()
    assert "Draft 1." in task.form.body
    task.answer("revise", "Shorter.")
    assert "Draft 2, after: Shorter." in task.form.body
    assert "Changes since round 1" in task.form.body
    assert task.form.params["question_number"]["value"] == 2
    task.answer("approve")
    assert (task.result["state"], task.result["output"]) == ("completed", "Printed.")
    assert crew.decided() == [("Draft 1.", False), ("Draft 2, after: Shorter.", True)]
    assert [(each["round"], each["is_approve"], each["taken"]) for each in task.decisions] == [
        (1, False, True),
        (2, True, True),
    ]
    assert not any("output" in each for each in task.decisions)
    assert task.task_run.xcom["kickoff_id"] == task.result["kickoff_id"]


@one_task
@needs_parking
@pytest.mark.parametrize("is_retried", [False, True], ids=["one try", "a try for each"])
def test_a_revision_that_equals_the_draft_before_is_another_question(
    connect: Connect, tmp_path: Path, forms: Forms, monkeypatch: pytest.MonkeyPatch, is_retried: bool
) -> None:
    from airflow_crew_provider.resume import record

    monkeypatch.setattr(record, "OLD_PAUSE_SHOWS", 1.0)
    for crew in serving(connect, tmp_path, {**DRAFT, "output": "Same.", "revised": "Same."}, LAST):
        task = Task(forms).start()
        for number in (1, 2, 3):
            assert task.form.params["question_number"]["value"] == number
            if is_retried:
                task.retry()
            task.answer("revise", "Better.") if number < 3 else task.answer("approve")
        assert task.result["output"] == "Printed."
        assert crew.decided() == [("Same.", False), ("Same.", False), ("Same.", True)]


@one_task
@needs_parking
@pytest.mark.row("A21")
def test_the_deadline_never_approves_a_rejected_draft_that_returns(
    connect: Connect, tmp_path: Path, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_crew_provider.resume import record

    monkeypatch.setattr(record, "OLD_PAUSE_SHOWS", 1.0)
    for crew in serving(connect, tmp_path, {**DRAFT, "output": "Same.", "revised": "Same."}, LAST):
        task = Task(forms, on_timeout="approve", response_timeout=3600).start().answer("revise", "Never.")
        assert task.form.params["question_number"]["value"] == 2
        late = {**task.event("approve"), "responded_by_user": None, "timedout": True}
        with pytest.raises(CrewTaskFailed, match="Somebody has rejected this draft"):
            task.resume(late)
        assert crew.decided() == [("Same.", False)]


@one_task
@needs_parking
@pytest.mark.row("A55")
def test_an_old_page_does_not_reject_the_new_draft(connect: Connect, tmp_path: Path, forms: Forms) -> None:
    for crew in serving(connect, tmp_path, DRAFT, LAST):
        task = Task(forms, on_timeout="approve", response_timeout=3600).start()
        old = task.event("revise", "Never.")
        task.resume(old)
        assert task.form.params["question_number"]["value"] == 2
        task.resume({**old, "responded_at": datetime.now(UTC)})
        late = {**task.event("approve"), "responded_by_user": None, "timedout": True}
        task.resume(late)
        assert task.result["output"] == "Printed."
        assert [approved for _, approved in crew.decided()] == [False, True]


@one_task
@needs_parking
def test_two_crew_tasks_are_answered_even_with_new_live_ids(connect: Connect, tmp_path: Path, forms: Forms) -> None:
    for crew in serving(connect, tmp_path, DRAFT, {**DRAFT, "id": "title_task"}, LAST):
        task = Task(forms).start().answer("approve").answer("approve")
        assert task.result["output"] == "Printed."
        assert [approved for _, approved in crew.decided()] == [True, True]


@one_task
@needs_parking
def test_exceeding_max_questions_fails_and_leaves_the_execution_paused(crew: Crew, forms: Forms) -> None:
    task = Task(forms, max_questions=1).start()
    with pytest.raises(CrewTaskFailed, match="asks question 2, but max_questions is 1"):
        task.answer("revise", "Shorter.")
    assert [each["state"] for each in crew.executions] == ["pending"]


@one_task
@needs_parking
def test_a_deadline_without_a_decision_says_what_a_clear_does(crew: Crew, forms: Forms) -> None:
    task = Task(forms, response_timeout=60).start()
    timeout = {"error": "too late", "error_type": "timeout"}
    with pytest.raises(CrewTaskFailed, match="If you clear this task, it stops the execution and starts another"):
        task.resume(timeout)
    assert [each["state"] for each in crew.executions] == ["pending"]


# --- which answers count ---


@one_task
@needs_parking
@pytest.mark.parametrize("fields", [{"question_number": 1}, {"question_number": None}])
def test_an_answer_to_an_older_question_is_not_taken(crew: Crew, forms: Forms, fields: Json) -> None:
    task = Task(forms).start().answer("revise", "Shorter.")
    task.answer("approve", **fields)
    assert "was not accepted because it does not fit the form" in task.form.body
    assert crew.decided() == [("Draft 1.", False)]
    task.answer("approve")
    assert task.result["output"] == "Printed."
    assert [each["round"] for each in task.decisions] == [1, 2]


@one_task
@needs_parking
def test_an_answer_without_any_field_is_not_taken(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start()
    task.resume({**task.event("approve"), "params_input": {}})
    assert "it has no question_number" in task.form.body
    assert crew.decided() == []


@one_task
@needs_parking
def test_an_answer_after_the_execution_was_answered_elsewhere_changes_nothing(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start()
    [execution] = crew.executions
    body = {"execution_id": execution["execution_id"], "task_id": "draft_task", "is_approve": False}
    crew.call("POST", "/resume", **body, human_feedback="Longer.")
    wait_until(lambda: crew.executions[0]["rounds"][-1]["draft"] == "Draft 2, after: Longer.", "the next draft")
    task.answer("approve")
    assert "Draft 2, after: Longer." in task.form.body
    assert task.form.params["question_number"]["value"] == 2
    task.answer("approve")
    assert task.result["output"] == "Printed."
    assert [(each["round"], each["taken"]) for each in task.decisions] == [(1, False), (2, True)]


@one_task
@needs_parking
def test_a_forms_event_that_reaches_a_wait_leaves_it_waiting(connect: Connect, tmp_path: Path, forms: Forms) -> None:
    for crew in serving(connect, tmp_path, {**DRAFT, "seconds": 2.0}, LAST):
        task = Task(forms)
        context = task.context()
        late = {
            **{"chosen_options": ["approve"], "params_input": {"question_number": 1}},
            **{"responded_at": datetime.now(UTC), "responded_by_user": None},
        }
        with pytest.raises(TaskDeferred) as waits:
            fresh(task.operator).execute(context)
        kwargs = {**json.loads(json.dumps(waits.value.kwargs)), "event": late}
        with pytest.raises(TaskDeferred) as still:
            fresh(task.operator).resume_execution("execute_complete", kwargs, context)
        assert still.value.kwargs == waits.value.kwargs
        assert crew.decided() == []


class Editor:
    """A crew that asks about one draft until it is answered; its service refuses each edited text."""

    def __init__(self, server: FaultServer) -> None:
        self.offer = {"Crew-Edited-Output": "yes", "Crew-Draft-Hash": "sha256"}
        self.asks: Json = {"status": "pending", "task_id": "draft_task", "task_output": "Draft 1."}
        server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})
        server.on("GET /status/k-1", lambda _: Reply(body=self.asks, headers=self.offer))
        server.on("POST /resume", Reply(status=400, body={"detail": "The edited output is too short"}))


@one_task
@needs_parking
def test_the_next_form_tells_why_the_service_refused_an_edit(server: FaultServer, forms: Forms) -> None:
    Editor(server)
    task = Task(forms, allow_edit=True).start().answer("approve", edited_draft="D.")
    assert task.form.params["question_number"]["value"] == 2
    assert "**Edited in round 1**, by `Ann`, but not applied:\n\n> " in task.form.body
    assert "The edited output is too short" in task.form.body
    assert "\n\nThe edited text was:\n\n> D." in task.form.body
    assert "the draft had changed" not in task.form.body
    [decision] = task.decisions
    assert (decision["taken"], "too short" in decision["refusal"]) == (False, True)
    task.retry()  # which has the refusal, but not the text
    assert "This answer changed nothing:\n\n> " in task.form.body
    assert "The edited output is too short" in task.form.body


@one_task
@needs_parking
def test_edits_no_longer_taken_lead_to_another_question(server: FaultServer, forms: Forms) -> None:
    editor = Editor(server)
    task = Task(forms, allow_edit=True).start()
    event = task.event("approve", edited_draft="D.")
    editor.offer = {}
    task.resume(event)
    assert server.sent("POST /resume") == []
    assert task.form.params["question_number"]["value"] == 2
    reason = "The service no longer accepts an edited draft of execution k-1. Nothing was sent, and the draft is still "
    assert f"but not applied:\n\n> {reason}waiting\n\nThe edited text was:\n\n> D." in task.form.body
    assert "clear the review" not in task.form.body
    assert task.decisions[0]["taken"] is False


@one_task
@needs_parking
def test_the_next_form_tells_why_the_service_refused_changed_arguments(server: FaultServer, forms: Forms) -> None:
    ask = {"kind": "tool", "agent": "Writer", "tool": "send", "arguments": {"to": "ann"}, "number": 1}
    text = 'Run send?\n{"to": "ann"}'
    editor = Editor(server)
    editor.asks |= {"task_id": "write#1", "task_output": text, "question": "Run?", "ask": ask}
    editor.asks["outcomes"] = ["approve", "deny"]
    task = Task(forms).start().answer("approve", edited_draft='{"to": "bob"}')
    assert len(server.sent("POST /resume")) == 1
    assert "the service did not accept the changed arguments, and the tool has not run:" in task.form.body
    assert "Its reason:\n\n> " in task.form.body
    assert "The edited output is too short" in task.form.body


TOO_LONG = "Much longer. " * 50_000  # 650 kB, twice in a body


@one_task
@needs_parking
def test_a_person_is_asked_for_a_shorter_answer(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start().answer("revise", TOO_LONG)
    assert task.form.params["question_number"]["value"] == 2
    assert "This answer changed nothing:\n\n> POST /resume returned 413: The body is larger than" in task.form.body
    assert "This answer is too long and was not accepted" in task.form.body
    task.answer("revise", "Shorter.").answer("approve")
    assert task.result["output"] == "Printed."
    assert crew.decided() == [("Draft 1.", False), ("Draft 2, after: Shorter.", True)]
    assert [(each["taken"], "413" in each.get("refusal", "")) for each in task.decisions] == [
        (False, True),
        (True, False),
        (True, False),
    ]


@one_task
@needs_parking
def test_feedback_of_a_hundred_thousand_chinese_characters_is_taken(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start().answer("revise", "短" * 100_000)
    assert "Draft 2, after: 短短短" in task.form.body
    assert [each["taken"] for each in task.decisions] == [True]


@one_task
@needs_parking
def test_a_gateway_may_refuse_an_answer_to_a_live_crew(server: FaultServer, forms: Forms) -> None:
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})
    server.on("GET /status/k-1", LIVE_ASKS)
    page = "<html>413 Request Entity Too Large</html>"
    server.on("POST /resume", Reply(status=413, body=page), {"kickoff_id": "k-2"})
    server.on("GET /status/k-2", {"state": "SUCCESS", "status": None, "result": "Printed.", "result_json": None})
    task = Task(forms).start().answer("revise", "Much longer.")
    assert "This answer is too long and was not accepted" in task.form.body
    assert task.answer("revise", "Shorter.").result["output"] == "Printed."
    assert [each["taken"] for each in task.decisions] == [False, True]


# --- a Flow that was answered elsewhere ---


class Flow:
    """A live Flow that asks through the inbox; ``callback`` is whether its webhooks contain one."""

    def __init__(self, server: FaultServer, connect: Connect, variables: Any, *, callback: bool) -> None:
        connect(server.url, kind="flow", flow_webhook_secret="s" * 32)
        server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})
        server.on("GET /status/k-1", lambda _: self.status)
        self.is_over = False
        self._done = {"state": "SUCCESS", "status": None, "result": "Printed.", "result_json": None}
        self._paused = {"state": "PAUSED", "kickoff_id": "k-1", "flow_id": "f-1", "status": None}
        self._variables, self._questions = variables, []  # type: ignore[var-annotated]
        self._address = AnswerAddress(f"{server.url}/respond" if callback else None, None, "f-1")
        self.asks("q-1")

    @property
    def status(self) -> Json:
        return self._done if self.is_over else self._paused

    def asks(self, request_id: str) -> None:
        outcomes = ["publish", "drop"]
        question = FlowQuestion(request_id, "check", "Fine?", f"Draft of {request_id}", outcomes, ["k-1"], "f-1")
        self._questions.append(question.as_dict())
        self._keep(rows.questions_key("crew_default", "k-1"), self._questions)
        self._keep(rows.answer_key("crew_default", request_id), self._address.as_dict())

    def ends_by_another_task(self) -> None:
        self.is_over = True
        self._keep(rows.answer_key("crew_default", "q-1"), rows.USED)

    def _keep(self, key: str, value: Any) -> None:
        self._variables.set(key, value, serialize_json=True)


@one_task
@needs_parking
@pytest.mark.row("F4")
def test_a_flow_that_another_task_has_answered_is_waited_for(
    server: FaultServer, connect: Connect, forms: Forms, a_memory: Any
) -> None:
    flow = Flow(server, connect, a_memory, callback=True)
    task = Task(forms).start()
    event = task.event("publish")
    flow.ends_by_another_task()
    task.resume(event)
    assert task.result["output"] == "Printed."
    assert [each["taken"] for each in task.decisions] == [False]
    assert server.sent("POST /respond") == []


@one_task
@needs_parking
@pytest.mark.row("F4")
@pytest.mark.parametrize("is_lost", [False, True], ids=["one try", "a retry"])
def test_an_answer_after_the_consoles_is_not_listed_as_taken(
    server: FaultServer, connect: Connect, forms: Forms, a_memory: Any, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    flow = Flow(server, connect, a_memory, callback=True)

    def respond(_: Any) -> Reply:
        flow.is_over = True
        return Reply(status=409, body={"status": "already_responded", "responded_by": {"name": "Otto"}})

    server.on("POST /respond", respond)
    task = Task(forms).start()
    if is_lost:
        task.lost_in(monkeypatch, "airflow_crew_provider.task.waiting.Wait.go_on", task.event("drop"))
        task.retry()
    else:
        task.answer("drop")
    assert task.result["output"] == "Printed."
    [decision] = task.decisions
    assert (decision["taken"], decision["service"]["status"]) == (False, "already_responded")
    assert decision["service"]["message"] == "the question was already answered by Otto"


@one_task
@needs_parking
@pytest.mark.row("F4")
def test_a_flow_that_was_answered_elsewhere_asks_its_next_question(
    server: FaultServer, connect: Connect, forms: Forms, a_memory: Any
) -> None:
    flow = Flow(server, connect, a_memory, callback=False)
    task = Task(forms).start()
    assert "Draft of q-1" in task.form.body
    flow.asks("q-2")
    task.answer("publish")
    assert "Draft of q-2" in task.form.body
    assert server.sent("POST /resume*") == []


@one_task
@needs_parking
def test_a_flow_whose_answer_was_too_long_asks_again(
    server: FaultServer, connect: Connect, forms: Forms, a_memory: Any
) -> None:
    flow = Flow(server, connect, a_memory, callback=True)

    def respond(request: Any) -> Reply:
        flow.is_over = "Shorter" in request.json["feedback"]
        return Reply(body={"status": "accepted"}) if flow.is_over else Reply(status=413, body={"detail": "too large"})

    server.on("POST /respond", respond)
    task = Task(forms).start().answer("publish", "Much longer.")
    assert "This answer is too long and was not accepted" in task.form.body
    assert task.answer("publish", "Shorter.").result["output"] == "Printed."
    assert [each["taken"] for each in task.decisions] == [False, True]


@one_task
@needs_parking
@pytest.mark.row("F4")
def test_an_older_question_is_not_asked_after_a_newer_one(
    server: FaultServer, connect: Connect, forms: Forms, a_memory: Any
) -> None:
    """A Flow keeps one question under its id, the last one; an earlier one has been answered elsewhere."""
    flow = Flow(server, connect, a_memory, callback=False)
    flow.asks("q-2")
    server.on("POST /resume_feedback", {"status": "accepted"})
    lagging = iter(range(5))

    def status(_: Any) -> Any:
        flow.is_over = bool(server.sent("POST /resume_feedback")) and next(lagging, None) is None
        return flow.status

    server.on("GET /status/k-1", status)
    task = Task(forms).start()
    assert "Draft of q-2" in task.form.body
    task.answer("publish")
    assert task.result["output"] == "Printed."
    assert [each["crew_task_id"] for each in task.decisions] == ["q-2"]
    assert len(server.sent("POST /resume_feedback")) == 1


# --- workers that are lost ---

LOST = {
    "before the decision": "airflow_crew_provider.review.decision.Decision.decide",
    "when the record has no decision yet": "airflow_crew_provider.run.record.RunRecord.answer",
    "when the answer is stored": "airflow_crew_provider.resume.sending.Resuming.send_once",
    "when the answer is sent": "airflow_crew_provider.run.record.RunRecord.send",
}


@one_task
@needs_parking
@pytest.mark.parametrize(("where", "option"), crossed(LOST, ["approve", "revise"]))
def test_a_lost_worker_loses_no_answer_and_sends_none_twice(
    crew: Crew, forms: Forms, monkeypatch: pytest.MonkeyPatch, where: str, option: str
) -> None:
    task = Task(forms).start()
    task.lost_in(monkeypatch, LOST[where], task.event(option, "Shorter."))
    task.retry()
    if option == "revise":
        assert "Draft 2, after: Shorter." in task.form.body
        task.answer("approve")
    assert task.result["output"] == "Printed."
    assert [approved for _, approved in crew.decided()] == ([True] if option == "approve" else [False, True])
    assert len(task.decisions) == len(crew.decided())


WRITES = 14  # of a task that asks twice: most of them before a request, a form or a pause


@dataclass
class Journal:
    """The writes of a task's record, and what else the task does, in order.

    :param dies_at: the write that kills the task, before or after it is done
    :param fails_at: the write that fails
    """

    did: list[str] = field(default_factory=list)
    dies_at: tuple[str, int] | None = None
    fails_at: int | None = None

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> Journal:
        variables = airflow_variables.Variable
        monkeypatch.setattr(variables, "set", self._recorded(variables.set))
        for name in ("send_kickoff", "send_resume"):
            monkeypatch.setattr(CrewHook, name, self._noted("POST", getattr(CrewHook, name)))
        monkeypatch.setattr(Poller, "poll", self._noted("poll", Poller.poll))
        monkeypatch.setattr(Poller, "poll_once", self._noted("poll", Poller.poll_once))
        monkeypatch.setattr(airflow_form, "ask", self._noted("form", airflow_form.ask))
        monkeypatch.setattr(airflow_form, "park", self._noted("park", airflow_form.park))
        monkeypatch.setattr(Defer, "do", self._noted("deferral", Defer.do))
        return self

    def _noted(self, what: str, call: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            self.did.append(what)
            return call(*given, **named)

        return noted

    def _recorded(self, call: Any) -> Any:
        def recorded(key: str, *given: Any, **named: Any) -> None:
            is_record = key.startswith("crew_task__") and not key.endswith("__readable")
            self.did += ["write"] * is_record
            dies = self.dies_at if is_record and self.dies_at and self.did.count("write") == self.dies_at[1] else None
            if dies == ("before", self.did.count("write")):
                raise KeyboardInterrupt
            if is_record and self.fails_at == self.did.count("write"):
                raise OSError("the database is away")
            call(key, *given, **named)
            if dies:
                raise KeyboardInterrupt

        return recorded


def revised_and_approved(task: Task, *, retried: type[BaseException]) -> Task:
    """Run a task to its end, with a retry after each of these errors."""
    go_on, answers = task.start, iter(["revise", "approve"])
    while task.result is None:
        try:
            go_on()
        except retried:
            go_on = task.retry
            continue
        if task.result is None:
            go_on = partial(task.resume, task.event(next(answers), "Shorter."))
    return task


@one_task
@needs_parking
@pytest.mark.row("A43")
def test_a_task_writes_its_record_once_before_whatever_it_does(
    crew: Crew, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal().begin(monkeypatch)
    task = Task(forms).start()
    for answer in ("revise", "approve"):
        journal.did.append("answer")
        task.answer(answer, "Shorter.")
    assert task.result["output"] == "Printed."
    twice = [number for number, pair in enumerate(pairwise(journal.did)) if pair == ("write", "write")]
    assert all(journal.did[number - 1] == "POST" for number in twice), " ".join(journal.did)
    assert journal.did.count("write") == WRITES, " ".join(journal.did)


@one_task
@needs_parking
@pytest.mark.waits
@pytest.mark.row("A43")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", sampled(range(1, 1 + WRITES), 3))
def test_a_worker_dying_at_any_write_sends_each_answer_once(
    crew: Crew, connect: Connect, forms: Forms, monkeypatch: pytest.MonkeyPatch, number: int, when: str
) -> None:
    connect(crew.url, token=crew.token, idempotency_keys=True)
    Journal(dies_at=(when, number)).begin(monkeypatch)
    task = revised_and_approved(Task(forms), retried=KeyboardInterrupt)
    assert task.result["output"] == "Printed."
    assert crew.decided() == [("Draft 1.", False), ("Draft 2, after: Shorter.", True)]
    assert [each["is_approve"] for each in task.decisions] == [False, True]


@one_task
@needs_parking
@pytest.mark.waits
@pytest.mark.row("A15")
@pytest.mark.parametrize("number", range(1, 1 + WRITES))
def test_a_write_that_fails_once_loses_nothing_and_repeats_nothing(
    crew: Crew, forms: Forms, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    Journal(fails_at=number).begin(monkeypatch)
    task = revised_and_approved(Task(forms), retried=CrewTryFailed)
    assert task.result["output"] == "Printed."
    assert crew.decided() == [("Draft 1.", False), ("Draft 2, after: Shorter.", True)]
    assert [(each["is_approve"], each["taken"]) for each in task.decisions] == [(False, True), (True, True)]


@one_task
@needs_parking
@pytest.mark.row("A15")
def test_a_result_survives_when_the_end_cannot_be_stored(
    crew: Crew, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal(fails_at=WRITES).begin(monkeypatch)
    task = Task(forms).start()
    task.answer("revise", "Shorter.")
    task.answer("approve")
    assert task.result["output"] == "Printed."


@one_task
@needs_parking
def test_a_worker_lost_before_its_second_form_reuses_no_answer(
    crew: Crew, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(forms).start()
    task.lost_in(monkeypatch, "airflow_crew_provider.review.airflow_form.ask", task.event("revise", "Shorter."))
    task.retry()
    assert crew.decided() == [("Draft 1.", False)]
    assert "Draft 2, after: Shorter." in task.form.body
    task.answer("approve")
    assert crew.decided() == [("Draft 1.", False), ("Draft 2, after: Shorter.", True)]


GONE = (
    "^The record of this task, an Airflow Variable, is missing, although it was stored. Nothing is sent or asked "
    "without it. Execution k-1 may still be active; if you clear this task, it starts another one"
)


def asks_once(server: FaultServer, *before: Any) -> None:
    """Script an execution that asks about a draft after these statuses, and completes once it is answered."""
    asks = {"status": "pending", "task_id": "draft_task", "task_output": "Draft 1."}
    done = {"status": "completed", "result": {"output": "Printed.", "tasks": []}, "execution_time": 1.0}
    earlier = iter(before)
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})
    server.on("GET /status/k-1", lambda _: next(earlier, None) or (done if server.sent("POST /resume") else asks))
    server.on("POST /resume", SPEC.resumed)


@one_task
@needs_parking
@pytest.mark.parametrize(
    "where",
    [
        "airflow_crew_provider.resume.sending.Resuming.send_once",
        "airflow_crew_provider.client.crew.ConnectedCrew.send_resume",
        "airflow_crew_provider.task.waiting.Wait.go_on",
        "airflow_crew_provider.task.waiting.UsedByTask.end",
    ],
)
def test_an_answer_delivered_again_to_the_same_try_changes_nothing(
    server: FaultServer, connect: Connect, forms: Forms, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    connect(server.url, idempotency_keys=True)
    asks_once(server)
    task = Task(forms).start()
    waits, event = dict(task.waits), task.event("approve")
    task.lost_in(monkeypatch, where, event)
    task.waits = waits
    task.resume(event)
    assert task.result["output"] == "Printed."
    assert len(server.sent("POST /resume")) == 1
    assert [each["taken"] for each in task.decisions] == [True]


@one_task
@needs_parking
@pytest.mark.row("A37")
@pytest.mark.parametrize(
    "where",
    [
        "airflow_crew_provider.review.airflow_form.ask",
        "airflow_crew_provider.review.airflow_form.park",
        "airflow_crew_provider.resume.sending.Resuming.send_once",
        "airflow_crew_provider.client.crew.ConnectedCrew.send_resume",
        "airflow_crew_provider.task.waiting.Wait.go_on",
    ],
)
def test_a_waits_end_delivered_again_to_its_try_asks_once(
    server: FaultServer, connect: Connect, forms: Forms, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    connect(server.url, idempotency_keys=True)
    asks_once(server, SPEC.running)
    is_by_rule = "review" not in where
    task = Task(forms, auto_approve=(lambda pending: "short") if is_by_rule else None)
    with pytest.raises(TaskDeferred) as waits:
        fresh(task.operator).execute(task.context())
    task.waits = json.loads(json.dumps(waits.value.kwargs))
    kept, event = dict(task.waits), fire(waits.value.trigger)
    assert event["kind"] == "pending"
    task.lost_in(monkeypatch, where, event)
    task.waits = kept
    task.resume(event)
    if not is_by_rule:
        task.answer("approve")
    assert task.result["output"] == "Printed."
    assert len(server.sent("POST /resume")) == 1
    assert [each["taken"] for each in task.decisions] == [True]


@one_task
@needs_parking
@pytest.mark.row("A37")
@pytest.mark.parametrize("before", ["asks", "failed"])
def test_a_waits_end_delivered_after_its_answer_follows_new_ids(
    server: FaultServer, forms: Forms, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    polls = iter([LIVE.running])
    shown = {"asks": LIVE_ASKS, "failed": LIVE_FAILED}[before]
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"})
    server.on("GET /status/k-1", lambda _: next(polls, None) or (shown if server.sent("POST /resume") else LIVE_ASKS))
    server.on("POST /resume", LIVE.resumed).on("GET /status/k-2", LIVE.completed)
    task = Task(forms, auto_approve=lambda pending: "short")
    with pytest.raises(TaskDeferred) as waits:
        fresh(task.operator).execute(task.context())
    kept, event = json.loads(json.dumps(waits.value.kwargs)), fire(waits.value.trigger)
    task.waits = kept
    task.lost_in(monkeypatch, "airflow_crew_provider.task.waiting.Wait.go_on", event)
    task.waits = kept
    assert task.resume(event).result["output"] == "the output"
    assert len(server.sent("POST /resume")) == 1


@one_task
@needs_parking
@pytest.mark.row("A52")
@pytest.mark.parametrize("kind", [SEEN, PENDING, COMPLETED, FAILED, TIMEOUT])
def test_a_wait_whose_record_is_gone_fails_in_a_sentence(
    server: FaultServer, forms: Forms, a_memory: Any, kind: str
) -> None:
    asks_once(server, SPEC.running)
    task = Task(forms)
    with pytest.raises(TaskDeferred) as waits:
        fresh(task.operator).execute(task.context())
    task.waits = json.loads(json.dumps(waits.value.kwargs))
    a_memory.kept.clear()
    with pytest.raises(CrewTaskFailed, match=GONE):
        task.resume(Outcome(kind, "k-1", crew_task_id="draft_task").to_event())
    assert (len(server.sent("POST /kickoff")), forms.of_attempt) == (1, {})


@one_task
@needs_parking
@pytest.mark.row("A52")
def test_an_answer_whose_record_is_gone_is_not_sent(server: FaultServer, forms: Forms, a_memory: Any) -> None:
    asks_once(server)
    task = Task(forms).start()
    a_memory.kept.clear()
    with pytest.raises(CrewTaskFailed, match=GONE):
        task.answer("approve")
    assert server.sent("POST /resume") == []


@one_task
@needs_parking
@pytest.mark.row("A53")
def test_a_search_that_nobody_runs_is_repeated_once(server: FaultServer, forms: Forms) -> None:
    asks = {"status": "pending", "task_id": "draft_task", "task_output": "Draft 1."}
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"}).on("GET /status/k-1", asks)
    task = Task(forms).start()
    before, task.attempt = task.attempt, str(uuid.uuid4())
    task.task_run.retry()
    with pytest.raises(TaskDeferred) as looks:
        fresh(task.operator).execute(task.context())
    ended = ("__fail__", {"error": "Trigger timeout"}, task.context())
    with pytest.raises(TaskDeferred) as looks_again:
        fresh(task.operator).resume_execution(*ended)
    assert [str(each.value.trigger.ti_id) for each in (looks, looks_again)] == [before, before]
    with pytest.raises(CrewTryFailed, match="twice, perhaps because no triggerer is running"):
        fresh(task.operator).resume_execution(*ended)
    assert list(forms.of_attempt) == [before]


@one_task
@needs_parking
def test_a_retry_during_a_question_asks_the_same_question_again(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start().answer("revise", "Shorter.").retry()
    assert task.form.params["question_number"]["value"] == 2
    assert [each["round"] for each in task.decisions] == [1]
    task.answer("approve")
    assert len(crew.executions) == 1


@one_task
@needs_parking
def test_a_clear_stops_the_execution_and_starts_another(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start().answer("revise", "Shorter.").clear()
    assert [each["state"] for each in crew.executions] == ["error", "pending"]  # that is how a stopped one reads
    assert task.form.params["question_number"]["value"] == 3
    first, second = (each["execution_id"] for each in crew.executions)
    assert [each["execution_id"] for each in task.decisions] == [first]
    for number in (1, 2):  # a page that was open before the clear
        task.answer("approve", question_number=number)
        assert "was not accepted because it does not fit the form" in task.form.body
    assert [each["decided_at"] for each in crew.executions[1]["rounds"]] == [None]
    task.answer("approve")
    assert [(each["execution_id"], each["round"]) for each in task.decisions] == [(first, 1), (second, 1)]
    assert task.result["kickoff_id"] == second


@one_task
@needs_parking
def test_a_clear_stops_the_execution_under_its_resumed_id(
    server: FaultServer, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = {"status": "pending", "task_id": "draft_task", "task_output": "Draft 1."}
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"}, {"kickoff_id": "k-3"})
    server.on("GET /status/k-1", asks).on("GET /status/k-3", asks).on("GET /status/k-2", SPEC.running)
    server.on("POST /resume", {**SPEC.resumed, "kickoff_id": "k-2"}).on("POST /stop/k-2", {"status": "stopped"})
    task = Task(forms).start()
    task.lost_in(monkeypatch, "airflow_crew_provider.task.waiting.Wait.go_on", task.event("approve"))
    task.clear()
    assert [len(server.sent(f"POST /stop/{each}")) for each in ("k-1", "k-2")] == [0, 1]
    assert len(server.sent("POST /kickoff")) == 2
    assert "k-3" in task.task_run.xcom["kickoff_id"]


@one_task
@needs_parking
@pytest.mark.parametrize(("after", "starts"), [([SPEC.running, SPEC.completed], 1), ([SPEC.failed], 2)])
def test_a_retry_polls_the_id_that_a_resume_gave(
    server: FaultServer, forms: Forms, monkeypatch: pytest.MonkeyPatch, after: list[Json], starts: int
) -> None:
    """The old id reads as failed."""
    asks = {"status": "pending", "task_id": "draft_task", "task_output": "Draft 1."}
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"}, {"kickoff_id": "k-3"})
    server.on("GET /status/k-1", lambda _: SPEC.failed if server.sent("POST /resume") else asks)
    server.on("GET /status/k-2", *after).on("GET /status/k-3", SPEC.completed)
    server.on("POST /resume", {**SPEC.resumed, "kickoff_id": "k-2"})
    task = Task(forms, retry_from="start").start()
    task.lost_in(monkeypatch, "airflow_crew_provider.task.waiting.Wait.go_on", task.event("approve"))
    task.retry()
    assert len(server.sent("POST /kickoff")) == starts
    assert task.result["execution_id"] == ("k-1" if starts == 1 else "k-3")
    used = [(each["execution_id"], each["kickoff_id"]) for each in task.task_run.xcom["crew_usage"]["executions"]]
    assert used == ([("k-1", "k-2")] if starts == 1 else [("k-1", "k-2"), ("k-3", "k-3")])


@one_task
@needs_parking
def test_a_retry_stops_an_overspent_execution_under_its_new_id(
    server: FaultServer, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = {"status": "pending", "task_id": "draft_task", "task_output": "Draft 1."}
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"}).on("GET /status/k-1", asks)
    server.on("GET /status/k-2", Reply(body=SPEC.running, headers={USAGE: '{"total_tokens": 1250}'}))
    server.on("POST /resume", {**SPEC.resumed, "kickoff_id": "k-2"}).on("POST /stop/k-2", {"status": "stopped"})
    task = Task(forms, max_total_tokens=1000).start()
    task.lost_in(monkeypatch, "airflow_crew_provider.task.drive.Worker.fail_over_budget", task.event("approve"))
    with pytest.raises(CrewTaskFailed, match="Execution k-2 was stopped"):
        task.retry()
    assert [len(server.sent(f"POST /stop/{each}")) for each in ("k-1", "k-2")] == [0, 1]


@one_task
@needs_parking
@pytest.mark.row("A43")
def test_a_retry_after_failure_starts_anew_and_keeps_decisions(connect: Connect, tmp_path: Path, forms: Forms) -> None:
    for crew in serving(connect, tmp_path, DRAFT, {**LAST, "error": "ValueError: no ink"}):
        task = Task(forms, retry_from="start").start()
        with pytest.raises(AirflowException, match="no ink"):
            task.answer("approve")
        task.retry()
        assert task.form.params["question_number"]["value"] == 2
        assert [each["state"] for each in crew.executions] == ["error", "pending"]
        [before] = task.decisions
        assert (before["taken"], before["execution_id"]) == (True, crew.executions[0]["execution_id"])


@one_task
@needs_parking
@pytest.mark.row("A43")
def test_a_try_that_starts_nothing_keeps_the_decisions_too(server: FaultServer, forms: Forms) -> None:
    asks = {"status": "pending", "task_id": "draft_task", "task_output": "Draft 1."}
    server.on("GET /inputs", {"inputs": []}).on("POST /kickoff", {"kickoff_id": "k-1"}, Reply(status=429))
    server.on("GET /status/k-1", lambda _: SPEC.failed if server.sent("POST /resume") else asks)
    server.on("POST /resume", SPEC.resumed)
    task = Task(forms, retry_from="start").start()
    with pytest.raises(CrewTryFailed, match="k-1 failed"):
        task.answer("approve")
    before = task.decisions
    assert [each["taken"] for each in before] == [True]
    with pytest.raises(CrewTryFailed, match="429"):
        task.retry()
    assert task.decisions == before


LIVE_ASKS = {
    **{"state": "PAUSED", "status": None},
    **{"task_id": "8f6c5d1e-0000-4000-8000-000000000001", "task_output": "Draft 1."},
}
LIVE_FAILED = {"state": "FAILED", "status": "ValueError: no ink", "result": None, "progress": None}


def renamed_and_failed(server: FaultServer, inputs: Any) -> None:
    """Let a live deployment answer a resume with a new id, under which the execution then fails."""
    server.on("GET /inputs", {"inputs": []}, inputs)
    server.on("POST /kickoff", {"kickoff_id": "k-1"}, {"kickoff_id": "k-3"}).on("POST /resume", {"kickoff_id": "k-2"})
    server.on("GET /status/k-1", lambda _: LIVE_FAILED if server.sent("POST /resume") else LIVE_ASKS)
    server.on("GET /status/k-2", LIVE_FAILED)
    server.on("GET /status/k-3", {"state": "SUCCESS", "status": None, "result": "Printed.", "result_json": None})


@one_task
@needs_parking
@pytest.mark.row("A40", "N11")
@pytest.mark.parametrize("keyed", [False, True])
def test_a_lost_new_id_starts_no_second_execution(
    server: FaultServer, connect: Connect, forms: Forms, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    """The old id reads as failed, and the execution goes on under one that nobody has recorded."""
    connect(server.url, idempotency_keys=keyed)
    renamed_and_failed(server, {"inputs": []})
    server.on("GET /status/k-2", LIVE.completed)
    task = Task(forms).start()
    task.lost_in(monkeypatch, "airflow_crew_provider.run.record.RunRecord.send", task.event("approve"))
    if keyed:
        assert task.retry().result["kickoff_id"] == "k-2"
    else:
        with pytest.raises(CrewTaskFailed, match=r"An earlier try sent this answer .* its outcome is unknown"):
            task.retry()
    assert len(server.sent("POST /kickoff")) == 1


@one_task
@needs_parking
@pytest.mark.row("A7", "A40")
def test_a_clear_names_the_execution_that_may_go_on(
    server: FaultServer, forms: Forms, monkeypatch: pytest.MonkeyPatch, log_text: Any
) -> None:
    renamed_and_failed(server, {"inputs": []})
    task = Task(forms).start()
    task.lost_in(monkeypatch, "airflow_crew_provider.run.record.RunRecord.send", task.event("approve"))
    assert task.clear().result["kickoff_id"] == "k-3"
    said = "Execution k-1 may go on under another id: the outcome of an answer to it is unknown. Starting a new"
    assert said in log_text()


@one_task
@needs_parking
@pytest.mark.row("A43")
def test_an_execution_that_a_resume_renamed_is_continued_where_possible(server: FaultServer, forms: Forms) -> None:
    renamed_and_failed(server, {"inputs": [], "continues": True})
    task = Task(forms).start()
    with pytest.raises(CrewTryFailed, match=r"no ink.*A retry of this task starts a new execution, from the failed"):
        task.answer("approve")
    task.retry()
    assert server.sent("POST /kickoff")[1].json["continueFrom"] == "k-1"
    assert task.result["output"] == "Printed."
    assert [(each["execution_id"], each["taken"]) for each in task.decisions] == [("k-1", True)]


@one_task
@needs_parking
@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        ({"inputs": []}, {}),
        (Reply(status=503), {}),
        ({"inputs": [], "continues": True}, {"retry_from": "start"}),
    ],
    ids=["not offered", "not known", "not wanted"],
)
def test_a_renamed_execution_that_cannot_be_continued_fails_for_good(
    server: FaultServer, forms: Forms, inputs: Any, arguments: Json
) -> None:
    renamed_and_failed(server, inputs)
    task = Task(forms, **arguments).start()
    with pytest.raises(CrewTaskFailed, match=r"no ink.*its continuation failed. Clear this task to start a new one"):
        task.answer("approve")


# --- facts that hold when another execution continues the work ---


class Reviser:
    """A crew that asks about the same text in each of its executions, and fails when it is to revise it."""

    def __init__(self, server: FaultServer, connect: Connect, output: str = "Same.") -> None:
        connect(server.url, idempotency_keys=True)
        ids = [f"k-{number}" for number in range(1, 6)]
        self.answered: dict[str, bool] = {}
        self._asks = {"status": "pending", "task_id": "draft_task", "task_output": output}
        self._done = {"status": "completed", "result": {"output": output, "tasks": []}, "execution_time": 1.0}
        server.on("GET /inputs", {"inputs": [], "required": [], "continues": True})
        server.on("POST /kickoff", *({"kickoff_id": each} for each in ids)).on("POST /resume", self._resume)
        for each in ids:
            server.on(f"GET /status/{each}", lambda _, each=each: self._status(each))

    def _resume(self, request: Any) -> Json:
        self.answered[request.json["execution_id"]] = request.json["is_approve"]
        return SPEC.resumed

    def _status(self, kickoff_id: str) -> Json:
        return {None: self._asks, True: self._done, False: SPEC.failed}[self.answered.get(kickoff_id)]


NEXT = {
    "continued": ({}, Task.retry, "k-1"),
    "from the start": ({"retry_from": "start"}, Task.retry, None),
    "cleared": ({}, Task.clear, None),
}
of_the_next = pytest.mark.parametrize(("arguments", "go_on", "continued"), list(NEXT.values()), ids=list(NEXT))


def rejected(task: Task, text: str = "Never publish that.") -> Task:
    with pytest.raises(CrewTryFailed, match="A retry of this task starts a new execution"):
        task.answer("revise", text)
    return task


def at_deadline(task: Task) -> Json:
    return {**task.event("approve"), "responded_by_user": None, "timedout": True}


@one_task
@needs_parking
@pytest.mark.row("A21")
@pytest.mark.row("A36")
@pytest.mark.row("A43")
@of_the_next
def test_no_deadline_approves_a_draft_rejected_in_an_earlier_execution(
    server: FaultServer, connect: Connect, forms: Forms, arguments: Json, go_on: Any, continued: str | None
) -> None:
    Reviser(server, connect)
    task = rejected(Task(forms, on_timeout="approve", response_timeout=3600, **arguments).start())
    go_on(task)
    assert server.sent("POST /kickoff")[1].json.get("continueFrom") == continued
    with pytest.raises(CrewTaskFailed, match=r"Somebody has rejected this draft.*execution k-2 stays paused"):
        task.resume(at_deadline(task))
    assert [request.json["is_approve"] for request in server.sent("POST /resume")] == [False]


@one_task
@needs_parking
@pytest.mark.row("A43")
@of_the_next
def test_no_rule_approves_a_draft_rejected_in_an_earlier_execution(
    server: FaultServer, connect: Connect, forms: Forms, arguments: Json, go_on: Any, continued: str | None
) -> None:
    Reviser(server, connect)
    says = iter([None, "fine", "fine"])
    task = rejected(Task(forms, auto_approve=lambda record: next(says), **arguments).start())
    go_on(task)
    assert task.result is None
    assert task.answer("approve").result["output"] == "Same."  # a person may


@one_task
@needs_parking
@pytest.mark.row("A21")
@pytest.mark.row("A43")
def test_the_deadline_never_approves_a_rejected_draft_that_continues(
    connect: Connect, tmp_path: Path, forms: Forms
) -> None:
    from crew_service.engine.crew import CrewFailed
    from crew_service.scripted_crew import ScriptedCrew

    class FailsOnce(ScriptedCrew):
        fails = True

        def run(self, job: Any, report: Any) -> Any:
            if job.decision and self.fails:
                self.fails = False
                raise CrewFailed("no ink")
            return super().run(job, report)

    twice = FailsOnce({"tasks": [{**DRAFT, "output": "Same.", "revised": "Same."}, LAST]})
    with local.running_service(crew=twice, db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token, idempotency_keys=True)
        task = rejected(Task(forms, on_timeout="approve", response_timeout=3600).start())
        task.retry()
        first, second = Crew(service).executions
        assert second["continued_from"] == first["execution_id"]
        assert "**Requested in round 1**, by `Ann`:\n\n> Never publish that." in task.form.body
        with pytest.raises(CrewTaskFailed, match="Somebody has rejected this draft"):
            task.resume(at_deadline(task))


@one_task
@needs_parking
@pytest.mark.row("A43")
@of_the_next
def test_only_a_continued_execution_counts_its_questions_on(
    server: FaultServer, connect: Connect, forms: Forms, arguments: Json, go_on: Any, continued: str | None
) -> None:
    Reviser(server, connect)
    task = rejected(Task(forms, max_questions=2, **arguments).start())
    go_on(task)
    goes_on = continued is not None
    assert task.form.params["question_number"]["value"] == 2
    assert ("round 2" in task.form.subject, "Requested in round 1" in task.form.body) == (goes_on, goes_on)
    rejected(task)
    assert [each["round"] for each in task.decisions] == ([1, 2] if goes_on else [1, 1])
    if not goes_on:
        assert task.retry().form.params["question_number"]["value"] == 3
        return
    with pytest.raises(CrewTaskFailed, match="Execution k-3 asks question 3, but max_questions is 2"):
        task.retry()


@one_task
@needs_parking
@pytest.mark.row("A43")
def test_a_question_that_nobody_answered_counts_once_when_continued(
    server: FaultServer, connect: Connect, forms: Forms
) -> None:
    crew = Reviser(server, connect)
    task = Task(forms, max_questions=1).start()
    crew.answered["k-1"] = False  # elsewhere
    task.retry()
    assert server.sent("POST /kickoff")[1].json["continueFrom"] == "k-1"
    assert (task.form.subject.count("round 1"), task.form.params["question_number"]["value"]) == (1, 2)
    old = {**task.event("approve", question_number=1)}
    assert task.resume(old).result is None
    assert task.answer("approve").result["output"] == "Same."


@one_task
@needs_parking
@of_the_next
def test_the_schema_sends_back_once_across_continued_executions(
    server: FaultServer, connect: Connect, forms: Forms, arguments: Json, go_on: Any, continued: str | None
) -> None:
    Reviser(server, connect)
    rule = {"output_schema": {"type": "object"}, "on_schema_mismatch": "revise", "auto_approve": lambda _: "fine"}
    task = Task(forms, **rule, **arguments)
    with pytest.raises(CrewTryFailed, match="k-1 failed"):
        task.start()
    if continued:
        go_on(task)
        assert "does not match the output schema" in task.form.body
    else:
        with pytest.raises(CrewTryFailed, match="k-2 failed"):
            go_on(task)
    assert [each.get("schema_revision") for each in task.decisions] == ["this"] * (1 if continued else 2)


@one_task
@needs_parking
@pytest.mark.parametrize("policy", ["fail", "revise"])
def test_no_rule_approves_a_draft_that_violates_the_schema(
    connect: Connect, tmp_path: Path, forms: Forms, policy: str
) -> None:
    draft = {**DRAFT, "output": "not JSON", "revised": "still not JSON"}
    rule = {"output_schema": {"type": "object"}, "on_schema_mismatch": policy, "auto_approve": lambda _: "fine"}
    for crew in serving(connect, tmp_path, draft):
        task = Task(forms, **rule).start()
        assert "does not match the output schema" in task.form.body
        assert [approved for _, approved in crew.decided()] == ([False] if policy == "revise" else [])


# --- time ---


@one_task
@needs_parking
@pytest.mark.parametrize("limit", [{"timeout": 1000}, {"execution_timeout": timedelta(seconds=1000)}], ids=list)
def test_the_deadline_of_a_wait_counts_only_the_crews_work(
    connect: Connect, tmp_path: Path, forms: Forms, limit: Json
) -> None:
    for _ in serving(connect, tmp_path, {**DRAFT, "seconds": 1.5}, LAST):
        began = time.time()
        task = Task(forms, **limit).start()
        asked = time.time()
        assert began + 1000 <= (task.waits_until[0][0] or 0) <= asked + 1000
        wait_until(lambda asked=asked: time.time() > asked + 1.5, "a person to think")
        task.answer("revise", "Shorter.")
        deadline, kept = task.waits_until[-1]
        assert 1.4 < kept["worked"] <= asked - began
        assert deadline == pytest.approx(kept["since"] + 1000 - kept["worked"], abs=0.01)


@one_task
@needs_parking
@pytest.mark.row("A6")
def test_a_retry_does_not_restart_a_crew_stopped_by_timeout(connect: Connect, tmp_path: Path, forms: Forms) -> None:
    for crew in serving(connect, tmp_path, DRAFT, {**LAST, "seconds": 60.0}):
        task = Task(forms, timeout=2).start()
        with pytest.raises(CrewTaskFailed, match=r"^The wait timed out .* was stopped\. .* and clear the task"):
            task.answer("approve")
        assert [(each["state"], each["error"]) for each in crew.executions] == [("error", "Stopped on request")]


@one_task
@needs_parking
def test_without_a_limit_no_wait_has_a_deadline(crew: Crew, forms: Forms) -> None:
    task = Task(forms).start().answer("revise", "Shorter.")
    assert [deadline for deadline, _ in task.waits_until if deadline is not None] == []


class Lag:
    """Shows the pause that was answered for some polls more, as a status that lags behind a resume."""

    def __init__(self) -> None:
        self._pause: Any = None
        self._polls = 0

    def poll(self, forward: Forward, random: Any) -> Any:
        reply = forward()
        if self._polls:
            self._polls -= 1
            return self._pause
        self._pause = reply if b"pending" in reply.body else self._pause
        return reply

    def resume(self, forward: Forward, random: Any) -> Any:
        reply = forward()
        self._polls = 4
        return reply


@one_task
@needs_parking
def test_a_pause_still_shown_after_an_answer_is_no_question(
    crew: Crew, connect: Connect, forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_crew_provider.resume import sending

    monkeypatch.setattr(sending, "SETTLING", 0.0)  # else the resume waits until the pause is gone
    lag = Lag()
    faults = [Fault("N21", "lags", POLL, lag.poll), Fault("N21", "begins to lag", RESUME, lag.resume)]
    with FaultProxy(crew.url, seed=0, rate=1.0, faults=faults) as proxy:
        connect(proxy.url, token=crew.headers["Authorization"].removeprefix("Bearer "))
        task = Task(forms).start().answer("revise", "Shorter.")
        assert "Draft 2, after: Shorter." in task.form.body
        assert task.form.params["question_number"]["value"] == 2
