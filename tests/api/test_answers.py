"""What each answer is read as: a value, or the one error that names what happened, word by word."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from io import BytesIO
from itertools import product
from typing import Any

import pytest

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Kickoff, Resume
from airflow_crew_provider.api.responses import HttpResponse, masker
from airflow_crew_provider.exceptions import (
    REFUSED,
    CrewAlreadyContinued,
    CrewApiError,
    CrewBadRequest,
    CrewError,
    CrewKeyReused,
    CrewMissingInputs,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewQuotaExceeded,
    CrewRateLimited,
    CrewRefused,
    CrewServerError,
    CrewTooLarge,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.models import Execution, ExecutionState, ExpectedInputs, Resumed, Started, TaskResult

Ask = Callable[[], endpoints.Call[Any]]
GET: Ask = endpoints.inputs
KICKOFF: Ask = partial(endpoints.kickoff, Kickoff(inputs={}))
KEYED: Ask = partial(endpoints.kickoff, Kickoff(inputs={}, idempotency_key="key-1"))
CONTINUING: Ask = partial(endpoints.kickoff, Kickoff(inputs={}, continue_from="k-1"))
RESUMING = Resume(execution_id="e-1", crew_task_id="t", human_feedback="", is_approve=True)
RESUME: Ask = partial(endpoints.resume, RESUMING)
STOP: Ask = partial(endpoints.stop, "k-1")
UPLOAD: Ask = partial(endpoints.upload, endpoints.Upload("report", "report.pdf", 0, BytesIO()))
LIST: Ask = endpoints.executions
DETAILS: Ask = partial(endpoints.details, "k-1")
TASKS: Ask = partial(endpoints.ended_tasks, "k-1")
ROUND: Ask = partial(endpoints.open_round, "k-1")
HIDE = masker(["secret"])
LISTED = {
    **{"kickoff_id": "k-1", "status": "error", "error": "a secret", "task_id": "t-1", "current_task": "now"},
    **{"progress": {"completed_tasks": 1, "total_tasks": 2}, "execution_time": 1.5},
}


def answer(body: Any = b"", status: int = 200, **headers: str) -> HttpResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpResponse(status, named, body if isinstance(body, bytes) else json.dumps(body).encode())


def read(ask: Ask, reply: HttpResponse) -> Any:
    return endpoints.read(ask(), reply, HIDE)


def refused(ask: Ask, reply: HttpResponse) -> CrewError:
    with pytest.raises(CrewError) as error:
        read(ask, reply)
    return error.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, CrewBadRequest), (401, CrewUnauthorized), (403, CrewUnauthorized), (404, CrewNotFound), (409, CrewApiError)],
)
@pytest.mark.parametrize("ask", [GET, KICKOFF], ids=["GET", "POST"])
def test_a_refusal_has_the_error_of_its_status(ask: Ask, status: int, kind: type[CrewApiError]) -> None:
    error = refused(ask, answer({"detail": "no secret"}, status))
    assert type(error) is kind
    assert vars(error) == {"status_code": status, "method": ask().method, "path": ask().path, "detail": "no ***"}


@pytest.mark.parametrize("status", [200, 204, 299])
def test_a_2xx_is_read(status: int) -> None:
    assert read(KICKOFF, answer({"kickoff_id": "k"}, status)) == Started("k")


@pytest.mark.parametrize("status", [199, 300])
def test_what_is_no_2xx_is_refused(status: int) -> None:
    assert type(refused(KICKOFF, answer({"kickoff_id": "k"}, status))) is CrewApiError


@pytest.mark.parametrize(("status", "kind"), [(429, CrewRateLimited), (500, CrewServerError), (599, CrewServerError)])
def test_what_may_be_asked_again_says_when(status: int, kind: type[CrewServerError]) -> None:
    error = refused(KICKOFF, answer({"detail": "later"}, status, retry_after="7"))
    assert type(error) is kind
    assert error.args == (status, "POST", "/kickoff", "later", 7.0)


def test_quota_exhaustion_is_recognized_in_any_status_without_known_end() -> None:
    said = "Monthly execution LIMIT reached."
    for status, headers in ((503, {"retry_after": "7"}), (200, {})):
        error = refused(KICKOFF, answer({"detail": said}, status, **headers))
        assert type(error) is CrewQuotaExceeded
        assert error.args == (status, "POST", "/kickoff", said, None, "")
        assert str(error).endswith("reached. When a retry works is not known")
    for body in (f"{said} secret".encode(), {"kickoff_id": None, "message": f"{said} secret"}):
        error = refused(KICKOFF, answer(body))
        assert type(error) is CrewQuotaExceeded
        assert error.detail == f"{said} ***"


@pytest.mark.row("A75")
@pytest.mark.parametrize(
    ("budget", "until"),
    [
        ({"who": "*", "window": "day", "until": "2026-11-29T00:00:00Z"}, "2026-11-29T00:00:00Z"),
        ({"until": "secret"}, ""),
        ({"until": 7}, ""),
        ({}, ""),
    ],
)
def test_a_429_with_a_budget_names_when_the_quota_ends(budget: Any, until: str) -> None:
    error = refused(KICKOFF, answer({"detail": "It is used up.", "budget": budget}, 429, retry_after="70"))
    assert type(error) is CrewQuotaExceeded
    assert isinstance(error, CrewRateLimited)
    assert error.args == (429, "POST", "/kickoff", "It is used up.", 70.0, until)
    end = f"A retry works from {until} on" if until else "When a retry works is not known"
    assert str(error) == f"POST /kickoff returned 429: It is used up. {end}"


@pytest.mark.parametrize("budget", [None, "day", ["day"]])
def test_a_429_without_a_budget_is_a_rate_limit(budget: Any) -> None:
    error = refused(KICKOFF, answer({"detail": "slow down", "budget": budget}, 429, retry_after="7"))
    assert type(error) is CrewRateLimited


@pytest.mark.parametrize("status", [502, 503, 504])
def test_only_a_posts_outcome_is_unknown_after_a_gateway_error(status: int) -> None:
    error = refused(KICKOFF, answer({"detail": "away"}, status))
    assert type(error) is CrewOutcomeUnknown
    assert str(error) == f"POST /kickoff returned {status} (away): it is unknown whether the service acted on it"
    assert error.status_code == status
    assert type(refused(GET, answer({"detail": "away"}, status))) is CrewServerError


def test_missing_inputs_are_named() -> None:
    error = refused(KICKOFF, answer({"detail": "Missing inputs: topic, secret"}, 422))
    assert isinstance(error, CrewMissingInputs)
    assert (error.names, error.status_code, error.method, error.path) == (["topic", "***"], 422, "POST", "/kickoff")
    assert error.detail == "Missing inputs: topic, ***"


def test_missing_inputs_are_named_where_the_service_only_lists_them() -> None:
    error = refused(KICKOFF, answer({"detail": [{"loc": ["a"]}, {"loc": ["secret"], "msg": "required"}]}, 422))
    assert isinstance(error, CrewMissingInputs)
    assert (error.names, error.path) == (["a", "***"], "/kickoff")
    assert error.detail == "Missing inputs: a, *** (a: ; ***: required)"
    error = refused(KICKOFF, answer({"detail": "no"}, 422))
    assert isinstance(error, CrewMissingInputs)
    assert vars(error) == {"names": [], "status_code": 422, "method": "POST", "path": "/kickoff", "detail": "no"}


def test_a_422_names_the_request_that_was_refused() -> None:
    error = refused(RESUME, answer({"detail": "no"}, 422))
    assert isinstance(error, CrewMissingInputs)
    assert (error.status_code, error.method, error.path) == (422, "POST", "/resume")
    error = refused(GET, answer({"detail": "no"}, 422))
    assert isinstance(error, CrewMissingInputs)
    assert (error.method, error.path) == ("GET", "/inputs")


def test_a_key_used_for_another_request_has_its_own_error() -> None:
    said = "This Idempotency-Key was used before, with another secret body."
    error = refused(KEYED, answer({"detail": said}, 422))
    assert type(error) is CrewKeyReused
    assert error.args == (422, "POST", "/kickoff", said.replace("secret", "***"))
    assert type(refused(KICKOFF, answer({"detail": said}, 422))) is CrewMissingInputs, "no key was sent"
    assert type(refused(KEYED, answer({"detail": "no"}, 422))) is CrewMissingInputs
    named = [{"loc": ["topic"], "msg": "required; send it with a new idempotency key"}]
    assert type(refused(KEYED, answer({"detail": named}, 422))) is CrewMissingInputs, "an input is missing"


def test_an_execution_that_another_one_continues_names_it() -> None:
    error = refused(CONTINUING, answer({"detail": "a secret", "kickoff_id": "k-2"}, 409))
    assert isinstance(error, CrewAlreadyContinued)
    assert error.args == (409, "POST", "/kickoff", "a ***", "k-2")


@pytest.mark.parametrize(
    "body", [{}, {"kickoff_id": None}, {"kickoff_id": ".."}, {"kickoff_id": 5}, {"kickoff_id": "a-secret"}, [], b"{"]
)
def test_a_conflict_without_a_showable_id_is_a_plain_refusal(body: Any) -> None:
    assert type(refused(CONTINUING, answer(body, 409))) is CrewApiError


def test_only_a_kickoff_that_continues_an_execution_can_come_second() -> None:
    for ask in (KICKOFF, RESUME, GET):
        assert type(refused(ask, answer({"kickoff_id": "k-2"}, 409))) is CrewApiError
    assert type(refused(CONTINUING, answer({"kickoff_id": "k-2"}, 400))) is CrewBadRequest


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (GET, "GET /inputs"),
        (LIST, "GET /executions"),
        (DETAILS, "GET /executions"),
        (TASKS, "GET /executions"),
        (ROUND, "GET /executions"),
    ],
)
def test_an_answer_that_is_not_json_is_named_and_masked(ask: Ask, what: str) -> None:
    error = refused(ask, answer(b"a secret"))
    assert type(error) is CrewWebPage
    assert str(error) == f"{what} returned 200 with a body that is not JSON: a ***"


def test_a_redirect_that_is_not_followed_is_reported_and_masked() -> None:
    error = refused(GET, answer(b"", 302, location="https://secret/" + "x" * 300))
    assert isinstance(error, CrewApiError)
    place = ("https://***/" + "x" * 300)[:200]
    assert error.detail == f"a redirect to {place}, which is not followed, to protect the token"
    assert vars(refused(GET, answer(b"", 302)))["detail"] == ""


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_get_follows_a_redirect_at_its_own_origin(status: int) -> None:
    assert endpoints.redirect(GET(), "https://x/a/inputs", answer(status=status, location="../b")) == "https://x/b"


@pytest.mark.parametrize(
    ("url", "location", "followed"),
    [("http://x:80/a", "http://x/b", "http://x:80/b"), ("https://x/a", "https://x:443/b", "https://x/b")],
)
def test_a_default_port_is_the_same_origin(url: str, location: str, followed: str) -> None:
    assert endpoints.redirect(GET(), url, answer(status=302, location=location)) == followed


@pytest.mark.parametrize("location", ["https://y/b", "http://x/b", "https://x:444/b", "https://x:99999/b", ""])
def test_a_redirect_elsewhere_is_not_followed(location: str) -> None:
    assert endpoints.redirect(GET(), "https://x/a", answer(status=302, location=location)) is None


def test_neither_a_post_nor_another_status_is_redirected() -> None:
    assert endpoints.redirect(KICKOFF(), "https://x/a", answer(status=302, location="/b")) is None
    assert endpoints.redirect(GET(), "https://x/a", answer(status=304, location="/b")) is None
    assert endpoints.redirect(GET(), "https://x/a", answer(status=302)) is None


def test_inputs_and_which_of_them_are_required() -> None:
    found = read(GET, answer({"inputs": ["a", "secret"], "required": ["a"]}))
    assert found == ExpectedInputs(["a", "secret"], ["a"])
    assert read(GET, answer({"inputs": []})).required is None
    assert read(GET, answer({"inputs": [], "required": "a"})).required is None


@pytest.mark.parametrize(("given", "continues"), [(True, True), (False, False), (1, False), ("true", False)])
def test_a_crew_says_whether_a_failed_execution_may_be_continued(given: Any, continues: bool) -> None:
    assert read(GET, answer({"inputs": [], "continues": given})).continues is continues


@pytest.mark.parametrize("body", [[], {"inputs": None}, {"inputs": "a"}, {"inputs": ["a", 1]}, {}])
def test_what_is_no_list_of_names_is_no_inputs(body: Any) -> None:
    error = refused(GET, answer(body))
    assert type(error) is CrewProtocolError
    assert str(error) == "GET /inputs returned no list of names under 'inputs'"


def test_a_web_page_is_not_the_apis() -> None:
    error = refused(GET, answer(b"<html><body>The secret " + b"x " * 200 + b"</body></html>", content_type="text/html"))
    assert type(error) is CrewWebPage
    said = ("The *** " + "x " * 200)[:200]
    assert str(error) == f"GET /inputs returned 200 with a body that is not JSON: {said}"


PAGE = b"<!DOCTYPE html><html><body>The secret is being maintained</body></html>"
SAID = "with a page that is not the API's (The *** is being maintained)"


@pytest.mark.row("A56")
@pytest.mark.parametrize("ask", [GET, LIST, DETAILS, TASKS, ROUND, KICKOFF, RESUME, CONTINUING])
def test_a_refusal_as_a_page_is_no_answer(ask: Ask) -> None:
    call = ask()
    for status in (400, 401, 403, 404, 405, 406, 409, 410, 415, 422, 451):
        error = refused(ask, answer(PAGE, status))
        said = f"{call.method} {call.path} returned {status} {SAID}"
        if call.method == "GET":
            assert (type(error), str(error)) == (CrewWebPage, said)
        else:
            assert type(error) is CrewOutcomeUnknown
            assert (str(error), error.status_code) == (f"{said}: it is unknown whether the service acted on it", status)


UNREAD = {
    **dict.fromkeys([407, 411, 414, 421, 425, 426, 431], CrewRefused),
    **{413: CrewTooLarge, 429: CrewRateLimited},
}
BY_SERVICE = {
    **{400: CrewBadRequest, 401: CrewUnauthorized, 403: CrewUnauthorized, 404: CrewNotFound, 422: CrewMissingInputs},
    **dict.fromkeys([405, 410, 415, 451], CrewRefused),
}
REASON = {"detail": "no"}


@pytest.mark.row("N12")
@pytest.mark.parametrize("body", [PAGE, REASON, b"no", b""], ids=["page", "json", "text", "empty"])
@pytest.mark.parametrize("ask", [KICKOFF, RESUME, UPLOAD])
def test_a_request_refused_unread_did_nothing_whoever_answers(ask: Ask, body: Any) -> None:
    for status, kind in UNREAD.items():
        error = refused(ask, answer(body, status))
        assert type(error) is kind
        assert isinstance(error, REFUSED)
        assert str(error).startswith(f"POST {ask().path} returned {status}: ")


@pytest.mark.parametrize("body", [REASON, b"no", b""], ids=["json", "text", "empty"])
def test_a_post_that_the_service_refuses_did_nothing(body: Any) -> None:
    for ask, status in product((KICKOFF, RESUME), BY_SERVICE):
        error = refused(ask, answer(body, status))
        assert type(error) is BY_SERVICE[status]
        assert isinstance(error, REFUSED)


@pytest.mark.parametrize("body", [PAGE, REASON, b""], ids=["page", "json", "empty"])
def test_any_other_code_proves_nothing_about_a_post(body: Any) -> None:
    for ask, status in product((KICKOFF, RESUME), sorted({*range(300, 600)} - {*UNREAD, *BY_SERVICE})):
        assert not isinstance(refused(ask, answer(body, status)), REFUSED), status


@pytest.mark.parametrize("status", sorted({*UNREAD} - {425, 429}))
def test_a_page_instead_of_a_status_is_polled_again(status: int) -> None:
    assert type(refused(GET, answer(PAGE, status))) is CrewWebPage


@pytest.mark.parametrize(("status", "kind"), [(408, CrewApiError), (425, CrewRefused), (429, CrewRateLimited)])
def test_a_gateways_status_code_counts_even_with_an_html_page(status: int, kind: type[Exception]) -> None:
    for ask in (GET, KICKOFF):
        assert type(refused(ask, answer(PAGE, status))) is kind


def test_a_list_of_executions() -> None:
    [found] = read(LIST, answer({"executions": [LISTED]}))
    assert found == Execution(
        kickoff_id="k-1",
        state=ExecutionState.ERROR,
        raw_state="error",
        error="a ***",
        crew_task_id="t-1",
        current_task="now",
        completed_tasks=1,
        total_tasks=2,
        execution_time=1.5,
    )
    assert found.raw == LISTED
    assert read(LIST, answer({"executions": []})) == []
    assert read(LIST, answer({"executions": [{**LISTED, "error": None}]}))[0].error is None


@pytest.mark.parametrize("name", [*LISTED])
def test_a_list_with_an_execution_that_lacks_something_is_refused(name: str) -> None:
    less = {key: value for key, value in LISTED.items() if key != name}
    error = refused(LIST, answer({"executions": [LISTED, less]}))
    assert type(error) is CrewProtocolError
    assert str(error) == "GET /executions returned no list of executions under 'executions'"


@pytest.mark.parametrize("body", [[], {}, {"executions": {}}, {"executions": [None]}])
def test_what_is_no_list_of_executions_is_refused(body: Any) -> None:
    assert type(refused(LIST, answer(body))) is CrewProtocolError


@pytest.mark.parametrize(
    "body", [{}, {"kickoff_id": None}, {"kickoff_id": ""}, {"kickoff_id": ".."}, {"kickoff_id": 5}]
)
def test_a_kickoff_without_an_id_is_unknown(body: Any) -> None:
    error = refused(KICKOFF, answer(body, 202))
    assert type(error) is CrewOutcomeUnknown
    assert str(error) == (
        "POST /kickoff returned 202 without a kickoff_id that can be polled: "
        "the crew may be running under an unknown id"
    )
    assert error.status_code == 202


def test_a_kickoff_response_with_an_id_always_means_started() -> None:
    said = {"kickoff_id": "k", "detail": "monthly execution limit reached"}
    assert read(KICKOFF, answer(said)) == Started("k")


@pytest.mark.parametrize(("ask", "what"), [(KICKOFF, "POST /kickoff"), (RESUME, "POST /resume")])
def test_a_post_whose_answer_is_no_object_is_unknown(ask: Ask, what: str) -> None:
    error = refused(ask, answer([], 201))
    assert type(error) is CrewOutcomeUnknown
    assert str(error) == (
        f"{what} returned list instead of an object; it is unknown whether the service acted on the request"
    )
    assert error.status_code == 201
    error = refused(ask, answer(b"a secret", 201))
    assert str(error) == (
        f"{what} returned 201 with a body that is not JSON: a ***; "
        "it is unknown whether the service acted on the request"
    )


@pytest.mark.parametrize(
    ("body", "resumed"),
    [
        ({"kickoff_id": "k-2"}, Resumed("k-2", None, None)),
        ({"kickoff_id": "k-2", "status": "x", "message": "no secret"}, Resumed("k-2", "x", "no ***")),
        ({"status": "resumed"}, Resumed("e-1", "resumed", None)),
        ({"status": 7, "kickoff_id": "k-2", "message": 7}, Resumed("k-2", None, None)),
    ],
)
def test_a_resume_returns_what_to_poll_next(body: Any, resumed: Resumed) -> None:
    assert read(RESUME, answer(body)) == resumed


@pytest.mark.parametrize("body", [{}, {"message": "fine"}, {"status": ""}, {"kickoff_id": "..", "status": "resumed"}])
def test_a_resume_whose_answer_is_empty_is_unknown(body: Any) -> None:
    error = refused(RESUME, answer(body, 202))
    assert type(error) is CrewOutcomeUnknown
    assert str(error) == (
        "POST /resume returned neither a status nor an id that can be polled: "
        "it is unknown whether the answer was accepted"
    )
    assert error.status_code == 202


@pytest.mark.parametrize("status", ["error", "FAILED", "failure", "cancelled", "not_found", "NOT FOUND"])
@pytest.mark.parametrize("named", [{}, {"kickoff_id": "e-1"}])
def test_a_resume_that_reports_an_error_is_unknown(status: str, named: Any) -> None:
    error = refused(RESUME, answer({"status": status, "message": "a secret", **named}))
    assert type(error) is CrewOutcomeUnknown
    assert str(error) == (
        "POST /resume returned 200 and reported an error (a ***); "
        "it is unknown whether the service acted on the request"
    )
    assert error.status_code == 200
    assert read(RESUME, answer({"status": status, "kickoff_id": "k-2"})) == Resumed("k-2", status, None)


@pytest.mark.parametrize("status", ["resumed", "retrying", "completed", "pending", "running", "accepted", "weird"])
def test_a_resume_with_any_other_status_was_accepted(status: str) -> None:
    assert read(RESUME, answer({"status": status})) == Resumed("e-1", status, None)


@pytest.mark.parametrize("body", [{"status": "stopped"}, {"status": "REVOKED"}, {"status": "Cancelled"}])
def test_a_stop_that_the_service_says(body: Any) -> None:
    assert read(STOP, answer(body)) is True


@pytest.mark.parametrize(
    "body",
    [{}, *({"status": word} for word in (None, "running", "completed", "error", "failed", "failure"))],
)
def test_all_else_that_the_api_says_is_no_stop(body: Any) -> None:
    assert read(STOP, answer(body)) is False


@pytest.mark.row("N39")
@pytest.mark.parametrize("status", [400, 404, 405, 409, 410, 422, 501])
def test_the_api_refuses_a_stop_in_json(status: int) -> None:
    assert read(STOP, answer({"detail": "Cannot stop execution"}, status)) is False
    assert read(STOP, answer({"status": "stopped"}, status)) is False, "its code says otherwise"


@pytest.mark.row("N39")
@pytest.mark.parametrize("body", [b"", PAGE, b"default backend - 404", b"{", [], "stopped"])
@pytest.mark.parametrize("status", [200, 204, 400, 404, 409, 410, 422, 501])
def test_a_stop_response_without_api_json_leaves_its_effect_unknown(status: int, body: Any) -> None:
    error = refused(STOP, answer(body, status))
    assert isinstance(error, CrewProtocolError)
    assert str(error).startswith("POST /stop returned ")


@pytest.mark.row("N39")
@pytest.mark.parametrize("body", [{"status": "stopped"}, PAGE, b""])
def test_a_redirected_stop_is_unknown(body: Any) -> None:
    error = refused(STOP, answer(body, 302, location="https://login/secret"))
    assert type(error) is CrewWebPage
    said = "a redirect to https://login/***, which is not followed, to protect the token"
    assert str(error) == f"POST /stop returned 302 with a page that is not the API's ({said})"


@pytest.mark.row("N39")
def test_a_service_without_a_stop_may_say_so_without_json() -> None:
    assert read(STOP, answer(PAGE, 405)) is False


# --- the details of an execution ---


DETAILED = {"state": "running", "tasks": [], "rounds": []}


def test_details_come_with_their_etag_and_unmasked() -> None:
    found = {"state": "pending", "draft": "a secret"}
    assert read(DETAILS, answer(found, etag='"v1"')) == endpoints.Details(found, '"v1"')
    assert read(DETAILS, answer(found)).etag is None


def test_unchanged_details_are_none() -> None:
    assert read(DETAILS, answer(b"", 304, etag='"v1"')) == endpoints.Details(None, '"v1"')
    assert type(refused(TASKS, answer(b"", 304))) is CrewApiError, "they were not asked for"


@pytest.mark.parametrize("ask", [DETAILS, TASKS, ROUND], ids=["details", "tasks", "round"])
@pytest.mark.parametrize("body", [[], {}, {"state": 5}, {"status": "running"}])
def test_details_are_an_object_with_a_state(ask: Ask, body: Any) -> None:
    error = refused(ask, answer(body))
    assert type(error) is CrewProtocolError
    assert str(error) == "GET /executions/{id} returned no object with a state"


def test_ended_tasks_come_masked_and_without_their_outputs() -> None:
    done = {"state": "completed", "output": "long", "seconds": 1.5}
    tasks = [
        {**done, "name": "a secret", "agent": "secret"},
        {"state": "running", "name": "b"},
        "no task",
        {"state": "completed"},
        *({**done, "name": 5, "agent": 5, "seconds": seconds} for seconds in (True, "1", 2**70)),
    ]
    unknown = TaskResult(task_id=None, agent=None, output=None, execution_time=None)
    assert read(TASKS, answer({**DETAILED, "tasks": tasks})) == [
        TaskResult(task_id="a ***", agent="***", output=None, execution_time=1.5),
        *[unknown] * 4,
    ]


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"left_out": ["steps"]}, 1),
        ({"left_out": "tasks"}, 1),
        ({"left_out": None}, 1),
        ({"left_out": ["tasks"]}, 0),
        ({"tasks": None}, 0),
        ({"tasks": {"state": "completed"}}, 0),
    ],
)
def test_no_task_is_read_if_the_first_ones_are_omitted(more: Any, count: int) -> None:
    body = {**DETAILED, "tasks": [{"state": "completed"}], **more}
    assert len(read(TASKS, answer(body))) == count


@pytest.mark.parametrize(
    ("rounds", "number"),
    [
        ([{"number": 1, "decided_at": "noon"}, {"number": 2, "decided_at": None}], 2),
        ([{"number": 3}], 3),
        ([{"number": 2}, {"number": 3, "decided_at": "noon"}], None),
        ([{"number": 1, "decided_at": ""}], None),
        ([{"number": True}], None),
        ([{"number": "1"}], None),
        ([{}], None),
        ([1], None),
        ([], None),
        ({"number": 1}, None),
        (None, None),
    ],
)
def test_the_open_round_is_the_last_undecided_one(rounds: Any, number: int | None) -> None:
    assert read(ROUND, answer({**DETAILED, "rounds": rounds})) == number


def test_a_page_with_a_servers_error_is_that_error() -> None:
    page = answer(b"<html>Sorry</html>", 500, content_type="text/html")
    assert type(refused(KICKOFF, page)) is CrewServerError
    assert type(refused(KICKOFF, HttpResponse(499, page.headers, page.body))) is CrewOutcomeUnknown


@pytest.mark.parametrize("body", [[], "stopped", 5])
def test_a_stop_answered_by_no_object_is_not_known(body: Any) -> None:
    assert str(refused(STOP, answer(body))) == f"POST /stop returned {type(body).__name__} instead of an object"


def test_a_redirect_that_names_no_place_is_not_followed() -> None:
    assert endpoints.redirect(GET(), "https://crew.example/inputs", answer(b"", 302)) is None
