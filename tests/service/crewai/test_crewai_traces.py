"""A real crew with a real client of a model's API: from the caller's span to the model's call in one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crew_client import Client, Command, eventually
from four_tasks import next_step
from openai_server import OpenAI, environment

from scripts.stack.collector import Collector

Start = Callable[..., Command]
TOKEN = "a-token-for-tests-only"
TRACE, TASK = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{TASK}-01"}
SECRET = "platypus"  # stands in prompts and in answers
CALL = ["call llm", "execute agent", "execute task", "execute crew", "segment", "POST /kickoff"]


@pytest.fixture
def model() -> Iterator[OpenAI]:
    model = OpenAI(f"All that there is to say of the {SECRET}.")
    yield model
    model.close()


@pytest.fixture
def begin(command: Start, model: OpenAI, collector: Collector) -> Callable[..., tuple[Command, Client]]:
    def start(target: str = "of_a_provider:reviewed", **settings: str) -> tuple[Command, Client]:
        variables = {"CREW_SERVICE_TOKEN": TOKEN, **environment(model), **collector.environment}
        started = command("--crew", target, environment={**variables, **settings})
        return started, started.client(TOKEN)

    return start


def kicked_off(client: Client) -> str:
    said = client.post("/kickoff", {"inputs": {"topic": SECRET}}, headers=HEADERS)
    assert said.ok, said.text
    return str(said.json()["kickoff_id"])


def answered(client: Client, execution: str, *, task: str = "draft", **decision: object) -> None:
    body = {"execution_id": execution, "task_id": task, "human_feedback": f"Praise the {SECRET}.", **decision}
    said = client.post("/resume", body)
    assert said.ok, said.text


def test_one_trace_joins_caller_and_model_over_review_and_restart(
    begin: Callable[..., tuple[Command, Client]], collector: Collector
) -> None:
    service, client = begin()
    execution = kicked_off(client)
    client.until(execution, "pending")
    eventually(lambda: collector.named("execute crew"), "the crew's spans of the first segment")
    eventually(lambda: collector.named("segment"), "the first segment's own")
    service.kill()
    _, client = begin()
    answered(client, execution, is_approve=False)
    client.until(execution, "pending")
    answered(client, execution, is_approve=True)
    client.until(execution, "completed")
    eventually(lambda: len(collector.named("execute crew")) == 3, "the spans of the other segments")
    eventually(lambda: len(collector.named("segment")) == 3, "the segments")
    assert not any(SECRET.encode() in body for body in collector.raw), "neither prompts nor answers leave the service"
    answers = {span.trace_id for span in collector.named("POST /resume")}  # a person's own requests
    assert {span.trace_id for span in collector.spans} - answers == {TRACE}
    calls = collector.named("call llm")
    assert [collector.lineage(call) for call in calls] == [CALL, CALL, CALL]
    [kickoff] = collector.named("POST /kickoff")
    assert kickoff.parent_id == TASK
    assert {call.attributes["gen_ai.operation.name"] for call in calls} == {"chat"}
    assert [call.attributes["gen_ai.usage.input_tokens"] for call in calls] == [10, 10, 10]
    assert {span.service for span in collector.spans} == {"airflow-crew-service"}
    assert [span.name for span in collector.spans if span.is_error] == []
    assert [task.attributes["crewai.task.name"] for task in collector.named("execute task")] == [
        "draft",
        "draft",
        "end",
    ]


def test_prompts_and_answers_are_sent_where_they_are_asked_for(
    begin: Callable[..., tuple[Command, Client]], collector: Collector
) -> None:
    _, client = begin(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true")
    execution = kicked_off(client)
    client.until(execution, "pending")
    eventually(lambda: collector.named("execute crew"), "the spans of the crew")
    assert any(SECRET.encode() in body for body in collector.raw)


@pytest.mark.long
def test_a_failure_is_told_by_its_kind_alone(
    begin: Callable[..., tuple[Command, Client]], collector: Collector
) -> None:
    _, client = begin("of_a_provider:refused_by_a_callback")
    execution = kicked_off(client)
    assert SECRET in client.until(execution, "error")["error"]
    eventually(lambda: collector.named("execute crew"), "the spans of the crew")
    [segment] = eventually(lambda: collector.named("segment"), "the span of the segment")
    assert segment.is_error
    assert not any(SECRET.encode() in body for body in collector.raw)


@pytest.mark.long
@pytest.mark.row("S41")
def test_exception_text_is_sent_without_secrets_where_content_is_requested(
    begin: Callable[..., tuple[Command, Client]], collector: Collector
) -> None:
    content = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    _, client = begin("of_a_provider:refused_by_a_callback", REFUSING_KEY="not this", **content)
    execution = kicked_off(client)
    assert client.until(execution, "error")["error"].startswith("ValueError: ***: All that there is")
    eventually(lambda: any(b"***: All that there is" in body for body in collector.raw), "the text of the exception")
    eventually(lambda: collector.named("execute crew"), "the spans of the crew")
    assert not any(b"not this" in body for body in collector.raw)


@pytest.mark.long
def test_a_tool_not_run_again_has_no_second_span(
    begin: Callable[..., tuple[Command, Client]], model: OpenAI, collector: Collector, tmp_path: Path
) -> None:
    model.script = next_step
    trouble = tmp_path / "trouble"
    trouble.write_text("callback")  # after the third of four tasks
    _, client = begin("failing:four")
    inputs = {"case": "traced", "log": str(tmp_path / "calls"), "trouble": str(trouble)}
    first = client.post("/kickoff", {"inputs": inputs}).json()["kickoff_id"]
    assert "no one listens" in client.until(first, "error")["error"]
    second = client.post("/kickoff", {"inputs": inputs, "continueFrom": first}).json()["kickoff_id"]
    client.until(second, "completed")
    eventually(lambda: len(collector.named("execute crew")) == 2, "the spans of both crews")
    tasks = [span.attributes["crewai.task.name"] for span in collector.named("execute task")]
    assert Counter(tasks) == {"first": 1, "second": 1, "third": 2, "fourth": 1}
    tools = [span.attributes["gen_ai.tool.name"] for span in collector.spans if "gen_ai.tool.name" in span.attributes]
    assert Counter(tools) == {"look": 1, "mail": 1}
    assert len(collector.named("call llm")) == 6


@pytest.mark.long
def test_a_flow_stays_in_the_trace_of_its_kickoff(
    begin: Callable[..., tuple[Command, Client]], collector: Collector
) -> None:
    _, client = begin("of_a_provider:Reviewed")
    execution = kicked_off(client)
    question = client.until(execution, "pending")
    answered(client, execution, task=question["task_id"], is_approve=True)
    client.until(execution, "completed")
    eventually(lambda: len(collector.named("execute flow")) == 2, "the spans of the Flow")
    eventually(lambda: len(collector.named("segment")) == 2, "the segments")
    inside = [span for span in collector.spans if "crewai.event_name" in span.attributes]
    assert {span.trace_id for span in inside} == {TRACE}
    assert [span.name for span in collector.spans if span.is_error] == []
