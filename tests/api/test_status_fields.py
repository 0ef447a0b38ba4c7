"""Each field of a status body: where it is read from in either dialect, and by which name a wrong one is refused."""

from __future__ import annotations

import gc
import json
import logging
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_crew_provider.api import endpoints, responses, status
from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.api.responses import HttpResponse, masker
from airflow_crew_provider.api.status import LARGEST_KEPT
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import Execution, ExecutionState, Json, Started, TaskResult

S = ExecutionState
HIDE = masker(["secret"])
DONE = {"status": "completed", "result": "text"}
RUNNING = {"status": "running"}


def answer(body: Any) -> HttpResponse:
    return HttpResponse(200, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def read(body: Any) -> Execution:
    return endpoints.read(endpoints.status("k-1"), answer(body), HIDE)


def problem(body: Any) -> str:
    with pytest.raises(CrewProtocolError) as error:
        read(body)
    return str(error.value)


@pytest.mark.parametrize(("body", "name"), [([], "list"), (1, "int"), ("completed", "str")])
def test_a_status_is_an_object(body: Any, name: str) -> None:
    assert problem(body) == f"GET /status returned {name} instead of an object"


def test_a_status_that_is_not_json_is_shown_masked() -> None:
    said = "GET /status returned 200 with a body that is not JSON: a ***"
    assert problem(b"a secret") == said
    with pytest.raises(CrewProtocolError) as error:
        endpoints.read(endpoints.polls("k-1"), answer(b"a secret"), HIDE)
    assert str(error.value) == said


@pytest.mark.parametrize("body", [{}, {"status": ""}, {"state": 5, "status": None}])
def test_a_status_has_a_word(body: Any) -> None:
    assert problem(body) == "GET /status returned no usable 'state' or 'status'"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("result_json", "y", "str as 'result_json', not dict"),
        ("result", 5, "int as 'result', not str or dict"),
        ("result", {"output": 5}, "int as 'output', not str"),
        ("result", {"output": "x", "tasks": "none"}, "str as 'tasks', not list"),
        ("result", {"output": "x", "tasks": [{"task_id": 5}]}, "int as 'task_id', not str"),
        ("result", {"output": "x", "tasks": [{"agent": 5}]}, "int as 'agent', not str"),
        ("result", {"output": "x", "tasks": [{"output": 5}]}, "int as 'output', not str"),
        (
            "result",
            {"output": "x", "tasks": [{"execution_time": "1"}]},
            "str as 'execution_time', not a number",
        ),
        ("execution_time", True, "bool as 'execution_time', not a number"),
        ("usage_metrics", [1], "list as 'usage_metrics', not dict"),
    ],
)
def test_a_wrongly_typed_success_field_is_refused_by_name(field: str, value: Any, said: str) -> None:
    assert problem({**DONE, field: value}) == f"GET /status returned {said}"


@pytest.mark.parametrize(("value", "said"), [("x", "str"), (["x"], "list")])
def test_the_last_task_is_an_object_with_a_text_output(value: Any, said: str) -> None:
    body = {"state": "SUCCESS", "last_executed_task": value}
    assert problem(body) == f"GET /status returned {said} as 'last_executed_task', not dict"
    body["last_executed_task"] = {"output": value}
    assert problem(body) == f"GET /status returned {said} as 'output', not str" if said == "list" else read(body)


def test_a_task_result_is_an_object() -> None:
    body = {**DONE, "result": {"output": "x", "tasks": ["a"]}}
    assert problem(body) == "GET /status returned a task result that is not an object"


@pytest.mark.parametrize("body", [{"status": "completed"}, {"status": "completed", "result": None}])
def test_a_success_without_a_result_is_none(body: Any) -> None:
    assert problem(body) == "GET /status returned 'completed' without a result"
    assert problem({"state": "SUCCESS"}) == "GET /status returned 'SUCCESS' without a result"


def test_a_flow_that_returns_nothing_succeeds_on_a_live_deployment() -> None:
    assert read({"state": "SUCCESS", "result": None}).output == ""


def test_a_result_text_or_object_comes_before_the_last_task() -> None:
    last = {"last_executed_task": {"output": "last"}}
    assert read({**DONE, **last}).output == "text"
    assert read({**DONE, **last, "result": None}).output == "last"
    found = read({**DONE, **last, "result": None, "result_json": {"a": "ü"}})
    assert (found.output, found.output_json) == ('{"a": "ü"}', {"a": "ü"})
    both = read({**DONE, "result_json": {}})
    assert (both.output, both.output_json) == ("text", {})


def test_every_field_of_a_success() -> None:
    task = {"task_id": "t", "agent": "a", "output": "o", "execution_time": 1.5}
    body = {
        **{"status": "completed", "execution_time": 2, "usage_metrics": {"total_tokens": 5}},
        **{"result": {"output": '{"a": 1}', "tasks": [task, {}]}, "current_task": "now", "progress": None},
    }
    found = read(body)
    assert found == Execution(
        kickoff_id="k-1",
        state=S.COMPLETED,
        raw_state="completed",
        output='{"a": 1}',
        output_json={"a": 1},
        tasks=(TaskResult(**task), TaskResult(task_id=None, agent=None, output=None, execution_time=None)),
        execution_time=2,
        usage={"total_tokens": 5},
        current_task="now",
    )
    assert found.raw == body


@pytest.mark.parametrize(
    ("body", "progress"),
    [
        ({"progress": {"completed_tasks": 1, "total_tasks": 2}}, (None, 1, 2)),
        ({"progress": {"completed": 1, "total": 2, "current": "a secret"}}, ("a ***", 1, 2)),
        ({"progress": {"completed_tasks": 1, "completed": 9, "total_tasks": 2, "total": 9}}, (None, 1, 2)),
        ({"progress": {"completed_tasks": None, "completed": 0, "total_tasks": True, "total": 3}}, (None, 0, 3)),
        ({"progress": {"completed": True, "total": "3"}}, (None, None, None)),
        ({"current_task": "a secret", "progress": {"current": "b"}}, ("a ***", None, None)),
        ({"current_task": "", "progress": {"current": "b"}}, ("b", None, None)),
        ({"current_task": 5, "progress": {"current": 5}}, (None, None, None)),
        ({"current_task": "", "progress": {"current": ""}}, (None, None, None)),
        ({"progress": [1]}, (None, None, None)),
    ],
)
def test_progress_is_read_in_both_dialects(body: Any, progress: Any) -> None:
    for word in ("status", "state"):
        found = read({word: "running", **body})
        assert (found.current_task, found.completed_tasks, found.total_tasks) == progress


@pytest.mark.parametrize(
    ("body", "task_id", "draft"),
    [
        ({"status": "pending", "task_id": "t", "task_output": "d"}, "t", "d"),
        ({"status": "pending", "current_task": "c", "task_output": "d"}, "c", "d"),
        ({"status": "pending", "task_id": "t", "current_task": "c"}, "t", None),
        ({"status": "pending", "task_id": "", "current_task": ""}, None, None),
        ({"status": "pending", "task_id": 5, "last_executed_task": {"output": "l"}}, None, "l"),
        ({"status": "pending", "task_output": "d", "last_executed_task": {"output": "l"}}, None, "d"),
        ({"status": "pending", "task_output": 5, "last_executed_task": {"output": 5}}, None, None),
        ({"status": "pending", "last_executed_task": "l"}, None, None),
        ({"state": "PAUSED", "task_id": "t", "current_task": "c"}, "t", None),
        ({"state": "PAUSED", "current_task": "c"}, None, None),
    ],
)
def test_a_pause_tells_the_task_and_its_draft(body: Any, task_id: str | None, draft: str | None) -> None:
    found = read(body)
    assert (found.state, found.crew_task_id, found.output, found.output_json) == (S.PENDING, task_id, draft, None)
    assert (found.question, found.outcomes, found.flow_id) == (None, [], None)


def test_a_draft_that_is_an_object_is_read_as_one() -> None:
    assert read({"status": "pending", "task_output": '{"a": 1}'}).output_json == {"a": 1}


@pytest.mark.parametrize("given", [None, "yes", {"yes": 1}, 5])
def test_a_pause_of_a_flow_tells_its_question_and_outcomes(given: Any) -> None:
    body = {"state": "PAUSED", "question": "Fine?", "flow_id": "f", "outcomes": ["yes", 5, "no"]}
    found = read(body)
    assert (found.question, found.outcomes, found.flow_id) == ("Fine?", ["yes", "no"], "f")
    other = read({**body, "outcomes": given, "question": 5, "flow_id": 5})
    assert (other.question, other.outcomes, other.flow_id) == (None, [], None)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"status": "error", "error": "a secret", "message": "m"}, "a ***"),
        ({"status": "error", "message": "m"}, "m"),
        ({"status": "error", "error": "", "message": 5}, "no reason given"),
        ({"state": "FAILED", "status": "a secret", "message": "m"}, "a ***"),
        ({"state": "FAILED", "status": "s", "error": "e"}, "e"),
        ({"state": "FAILED", "status": "", "message": "m"}, "m"),
        (
            {"status": "error", "error": {"type": "RateLimit", "message": "a secret"}},
            '{"type": "RateLimit", "message": "a ***"}',
        ),
        ({"state": "FAILED", "status": ["é"], "message": "m"}, '["é"]'),
        ({"status": "error", "error": {}, "message": "m"}, "m"),
    ],
)
def test_a_failure_tells_the_first_reason_that_is_given(body: Any, error: str) -> None:
    assert read(body).error == error


@pytest.mark.parametrize(("given", "seconds"), [(1.5, 1.5), (2, 2), ("3", None), (True, None), (None, None)])
def test_a_failure_tells_its_time_where_it_is_a_number(given: Any, seconds: Any) -> None:
    assert read({"status": "error", "execution_time": given}).execution_time == seconds


@pytest.mark.parametrize(
    "word", ["pending", " Pending ", "waiting_for_human", "Waiting for human\tinput", "pending - human  input"]
)
def test_words_are_compared_without_case_dashes_and_spaces(word: str) -> None:
    assert read({"status": word}).state is S.PENDING


def test_an_unknown_state_is_logged_once_masked_and_shortened(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_unknown_words", set())
    body = {"status": "a-secret-" + "y" * 200, "note": "secret " + "x" * 2000}
    with caplog.at_level(logging.WARNING):
        assert read(body).state is read(body).state is S.RUNNING
    shown = HIDE(json.dumps(body))[:1000]
    word = HIDE(body["status"])[:100]
    said = f"The crew service returned an unknown state, {word!r}; it is treated as in progress: {shown}"
    assert caplog.messages == [said]


def test_at_most_a_hundred_unknown_states_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_unknown_words", set())
    with caplog.at_level(logging.WARNING):
        for number in range(110):
            read({"status": f"odd-{number}"})
    assert len(caplog.messages) == 100


def test_an_unchanged_status_is_reread_only_if_progress_is_possible() -> None:
    call = endpoints.polls("k-1")
    first = endpoints.read(call, answer({"status": "running", "current_task": "a"}))
    assert endpoints.read(call, answer({"status": "running", "current_task": "a"})) is first
    second = endpoints.read(call, answer({"status": "running", "current_task": "b"}))
    assert second.current_task == "b"
    pending = {"status": "pending", "task_id": "t"}
    third = endpoints.read(call, answer(pending))
    assert third.state is S.PENDING
    assert endpoints.read(call, answer(pending)) is not third


def test_a_repeated_response_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[HttpResponse] = []

    def json_of(given: HttpResponse, *more: Any) -> Any:
        parsed.append(given)
        return responses.json_of(given, *more)

    monkeypatch.setattr(status, "json_of", json_of)
    call, spaced = endpoints.polls("k-1"), answer(b'{"status":  "running"}')
    together, alone = combined(RUNNING), answer(RUNNING)
    for each in (together, alone, alone, spaced, spaced, alone):
        assert endpoints.read(call, each).raw == RUNNING
    assert parsed == [together, alone, spaced, alone]


EVENTS = {"events": [{"type": "task_started", "data": f"event {number}"} for number in range(3000)]}
LARGE = {
    "many fields": {
        "status": "running",
        "current_task": "a",
        **{str(number): f"{number:0200}" for number in range(99)},
    },
    "many items": {"status": "running", "current_task": "a", "items": [f"{number:0200}" for number in range(99)]},
    "spec": {"status": "running", "current_task": "a", **EVENTS},
    "live": {"state": "RUNNING", "status": None, "progress": {"current": "a"}, **EVENTS},
    "unknown word": {"status": "polishing " + "x" * 10**6, "current_task": "a"},
}


def combined(body: Json, usage: Any = None) -> HttpResponse:
    return HttpResponse(200, {}, b"", body, usage)


def test_a_small_status_is_whole_for_a_wait_too() -> None:
    body = {"status": "running", "note": "x"}
    assert endpoints.read(endpoints.polls("k-1"), answer(body)).raw == body


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
def test_a_large_status_is_shortened_for_waits_not_single_polls(body: Json) -> None:
    call = endpoints.polls("k-1")
    seen, whole = endpoints.read(call, answer(body)), read(body)
    assert whole.raw == body
    assert len(json.dumps(seen.raw)) < 10_000
    assert replace(seen, raw_state=whole.raw_state) == whole
    assert seen.raw_state == whole.raw_state[:200]
    assert (seen.is_live, seen.raw.get("current_task")) == (whole.is_live, body.get("current_task"))
    assert endpoints.read(call, answer(body)) is seen, "byte for byte the same"


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("respond", [answer, combined])
def test_after_a_large_status_another_one_is_read(body: Json, respond: Callable[[Json], HttpResponse]) -> None:
    call = endpoints.polls("k-1")
    seen = endpoints.read(call, respond(body))
    now = endpoints.read(call, respond({**seen.raw, "progress": {"current": "b"}, "current_task": "b"}))
    assert now.current_task == "b"
    now = endpoints.read(call, respond(body))
    assert now.current_task == "a"
    less = {name: text for name, text in seen.raw.items() if name != "current_task"}
    assert endpoints.read(call, respond(less)).current_task is None


def test_usage_too_large_to_be_kept_is_read_again() -> None:
    call, running = endpoints.polls("k-1"), {"status": "running"}
    names = {str(number): {"total_tokens": 1} for number in range(5000)}
    for tokens in (5000, 6000):
        used = {"total_tokens": tokens, "by_model": names}
        seen = endpoints.read(call, combined(running, used))
        assert (seen.usage or {})["total_tokens"] == tokens
    assert endpoints.read(call, combined(running)).usage is None


def test_usage_too_large_to_be_kept_is_freed() -> None:
    class Usage(dict[str, Any]):
        """One of which it is known whether it is still there."""

    call, used = endpoints.polls("k-1"), Usage({"by_model": {str(number): {} for number in range(9999)}})
    still = weakref.ref(used)
    endpoints.read(call, combined({"status": "running"}, used))
    del used
    gc.collect()
    assert still() is None


@pytest.mark.parametrize("respond", [answer, combined])
def test_what_a_wait_keeps_does_not_grow_with_the_status(respond: Callable[[Json], HttpResponse]) -> None:
    def kept() -> Any:
        calls = [endpoints.polls("k-1") for _ in range(10)]
        return calls, [endpoints.read(call, respond(json.loads(texts[name]))) for name in texts for call in calls]

    texts = {name: json.dumps(body) for name, body in LARGE.items()}
    kept()  # what is made once
    tracemalloc.start()
    try:
        still = kept()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(still) == 2
    assert size < 30 * LARGEST_KEPT


def test_unknown_states_with_the_same_beginning_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: set[str] = set()
    monkeypatch.setattr(status, "_unknown_words", known)
    with caplog.at_level(logging.WARNING):
        for end in ("a", "b"):
            read({"status": "x" * 10**6 + end})
    assert len(caplog.messages) == 1
    assert sum(map(len, known)) < 1000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, None),
        ("", None),
        ("[1]", None),
        ('{"a": 1', None),
        ('{"a": Infinity}', None),
        ('{"a": 1e999}', {"a": None}),
        (' \n{"a": "\\ud800"}\n ', {"a": "\ufffd"}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        (' ```x-y \t\n{"a": 1}```  \n', {"a": 1}),
        ('```json\r\n{"a": 1}\r\n```\r\n', {"a": 1}),
        ('``` \r\r\n{"a": 1}\n```', None),
        ('```json\n{"a": 1}\n```\nmore', None),
        ('```json\n{"a": 1}end', None),
        ('{"a": ' * 100_000, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_text_is_an_object_only_as_a_whole(text: str | None, found: Any) -> None:
    assert status.json_object_in(text) == found


@pytest.mark.parametrize("text", ["```json\n```", "```\n\n```", ""])
def test_between_fences_there_may_be_nothing(text: str) -> None:
    assert status.without_fence(text) == ""


@pytest.mark.parametrize("text", ["```", "``````", "```json```", "\n```"])
def test_fences_without_a_line_between_them_are_text(text: str) -> None:
    assert status.without_fence(text) == text.strip()


def test_a_constant_that_json_has_no_word_for_is_named() -> None:
    with pytest.raises(ValueError, match=r"^NaN is not JSON$"):
        status.json_in("[NaN]")
    assert status.json_in("[1]") == [1]


GROWING = [{"total_tokens": 400}, {"total_tokens": 500}]


@pytest.mark.parametrize("state", ["running", "pending", "error", "completed"])
def test_usage_beside_the_body_is_read_in_every_state(state: str) -> None:
    body = {"status": state, "task_id": "t", "task_output": "x", "error": "no paper", "result": "x"}
    alone = HttpResponse(200, {"crew-usage": '{"total_tokens": 400}'}, json.dumps(body).encode())
    together = HttpResponse(200, {}, b"", body, {"total_tokens": 400})
    for each in (alone, together):
        assert endpoints.read(endpoints.status("k-1"), each).usage == {"total_tokens": 400}
    assert endpoints.read(endpoints.status("k-1"), answer(body)).usage is None


def test_an_unchanged_status_body_with_grown_usage_is_read_anew() -> None:
    body, call = {"status": "running"}, endpoints.polls("k-1")
    alone = [HttpResponse(200, {"crew-usage": json.dumps(used)}, json.dumps(body).encode()) for used in GROWING]
    together = [HttpResponse(200, {}, b"", body, used) for used in GROWING]
    for answers in (alone, together):
        assert [endpoints.read(call, each).usage for each in answers] == GROWING
    again = [endpoints.read(call, together[1]) for _ in range(2)]
    assert again[0] is again[1]  # not taken apart again


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '"x"', "1", "{" * 5000, '{"total_tokens": NaN}'])
def test_usage_that_cannot_be_read_is_unknown(text: str) -> None:
    given = HttpResponse(200, {"crew-usage": text}, b'{"status": "running"}')
    assert endpoints.read(endpoints.status("k-1"), given).usage is None


def test_a_secret_as_the_name_of_a_model_is_masked() -> None:
    used = {"by_model": {"s3cret": {"cost_usd": None}}}
    beside = {"crew-usage": json.dumps(used)}
    for given in (
        HttpResponse(200, beside, b'{"status": "running"}'),
        HttpResponse(200, {}, b"", {"state": "SUCCESS", "result": "x", "usage_metrics": used}),
    ):
        seen = endpoints.read(endpoints.status("k-1"), given, lambda text: text.replace("s3cret", "***"))
        assert seen.usage == {"by_model": {"***": {"cost_usd": None}}}


def test_chain_usage_is_masked_and_has_no_own_chain() -> None:
    used: Json = {"by_model": {"s3cret": {}}}
    used |= {"chain_usage": {**used, "total_tokens": 9, "chain_usage": {**used, "chain_usage": dict(used)}}}
    given = HttpResponse(200, {"crew-usage": json.dumps(used)}, b'{"status": "running"}')
    seen = endpoints.read(endpoints.status("k-1"), given, lambda text: text.replace("s3cret", "***"))
    assert seen.usage == {"by_model": {"***": {}}, "chain_usage": {"by_model": {"***": {}}, "total_tokens": 9}}


def test_body_usage_comes_first_and_chain_usage_from_the_header() -> None:
    body = {"state": "SUCCESS", "result": "x", "usage_metrics": {"total_tokens": 1}}
    for beside, more in ((2, {}), (2, {"chain_usage": {"total_tokens": 3}})):
        headers = {"crew-usage": json.dumps({"total_tokens": beside, **more})}
        given = HttpResponse(200, headers, json.dumps(body).encode())
        assert endpoints.read(endpoints.status("k-1"), given).usage == {"total_tokens": 1, **more}


@pytest.mark.parametrize(("named", "view"), [("/view?id=k-1", "/view?id=k-1"), ("//evil.example", None), (None, None)])
def test_the_path_of_the_page_is_read_from_its_header(named: str | None, view: str | None) -> None:
    headers = {"crew-view": named} if named else {}
    assert endpoints.read(endpoints.status("k-1"), HttpResponse(200, headers, b'{"status": "running"}')).view == view
    started = HttpResponse(200, headers, b'{"kickoff_id": "k-1"}')
    assert endpoints.read(endpoints.kickoff(Kickoff(inputs={})), started) == Started("k-1", view)


def test_a_service_with_a_page_or_combined_responses_has_details() -> None:
    given = [
        HttpResponse(200, {"crew-view": "/view"}, b'{"status": "running"}'),
        combined(RUNNING),
        answer(RUNNING),
        HttpResponse(200, {"crew-view": "//evil.example"}, b'{"status": "running"}'),
    ]
    seen = [endpoints.read(endpoints.status("k-1"), each).has_details for each in given]
    assert seen == [True, True, False, False]


@pytest.mark.parametrize(
    ("headers", "offers"),
    [
        ({}, (False, False)),
        ({"crew-edited-output": "edited_output"}, (True, False)),
        ({"crew-draft-hash": "output_sha256"}, (False, True)),
        ({"crew-edited-output": "", "crew-draft-hash": ""}, (False, False)),
    ],
)
def test_a_pause_tells_what_its_service_takes(headers: dict[str, str], offers: tuple[bool, bool]) -> None:
    for word, told in (("pending", offers), ("running", (False, False))):
        response = HttpResponse(200, headers, json.dumps({"status": word, "task_id": "t"}).encode())
        seen = endpoints.read(endpoints.status("k-1"), response)
        assert (seen.takes_edited_output, seen.checks_draft) == told


def test_the_names_in_a_question_are_masked() -> None:
    ask = {"kind": "tool", "agent": "a secret", "tool": "send", "arguments": {}, "number": 1}
    seen = read({"status": "pending", "task_id": "t#1", "ask": ask})
    assert seen.ask == {**ask, "agent": "a ***"}


def test_the_pending_task_is_shown_masked_as_one_short_line() -> None:
    found = read({"status": "pending", "task_id": "a secret\n" + "x" * 300})
    assert found.crew_task_id == "a secret\n" + "x" * 300
    assert found.shown_task == f"a *** {'x' * 194}"
    assert read({"status": "pending"}).shown_task is None


def test_an_unknown_state_is_reported_as_unknown() -> None:
    assert [read({"status": word}).state_is_known for word in ("running", "polishing")] == [True, False]


@pytest.mark.parametrize("bad", [2**64, 2**63, 1_000_001, -1, True, 1.0, "1", [1], None])
@pytest.mark.parametrize("name", ["completed_tasks", "total_tasks"])
def test_a_count_that_nothing_can_hold_is_unknown(name: str, bad: Any) -> None:
    seen = read({**RUNNING, "progress": {"completed_tasks": 1, "total_tasks": 2, name: bad}})
    assert getattr(seen, name) is None
    for most in (0, 1_000_000):
        assert getattr(read({**RUNNING, "progress": {name: most}}), name) == most


@pytest.mark.parametrize("progress", [5, [], "x", {"completed_tasks": {}, "current": []}])
def test_a_progress_that_cannot_be_read_ends_nothing(progress: Any) -> None:
    assert read({**RUNNING, "progress": progress, "current_task": [1]}).progress == ""


@pytest.mark.parametrize("body", [{"current_task": "{}"}, {"progress": {"current": "{}"}}])
def test_the_present_task_is_cut_after_it_is_masked(body: Any) -> None:
    named = json.loads(json.dumps({**RUNNING, **body}).replace("{}", "secret \\n" + "x" * 1_000_000))
    assert read(named).current_task == f"*** {'x' * 196}"


@pytest.mark.parametrize("name", ["task_id", "current_task"])
def test_an_id_that_no_request_can_name_is_none(name: str) -> None:
    pending = {"status": "pending", "task_output": "the draft"}
    assert [read({**pending, name: "t" * size}).crew_task_id for size in (2048, 2049)] == ["t" * 2048, None]
    assert read({**pending, "flow_id": "f" * 2049}).flow_id is None


@pytest.mark.parametrize("beside", [True, False])
def test_the_figures_of_an_overlarge_usage_are_kept(beside: bool) -> None:
    large = {"total_tokens": 7, "cost_usd": 2, "by_model": {str(each): {"cost_usd": 0} for each in range(50_000)}}
    seen = HttpResponse(200, {}, b"", {**DONE, **({} if beside else {"usage_metrics": large})}, large)
    assert endpoints.read(endpoints.status("k-1"), seen).usage == {"total_tokens": 7, "cost_usd": 2}
