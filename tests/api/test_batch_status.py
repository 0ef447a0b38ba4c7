"""Many polls in one request: how they are asked for, divided and read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.endpoints import LONGEST_IDS, MOST_IDS, portions, statuses
from airflow_crew_provider.api.requests import path_segment
from airflow_crew_provider.api.responses import HttpResponse, masker
from airflow_crew_provider.exceptions import CrewInvalidInput, CrewProtocolError


def answer(body: Any) -> HttpResponse:
    return HttpResponse(200, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_ids_are_asked_for_in_one_get() -> None:
    call = statuses(["a", "b/c", "d,e"])
    assert (call.method, call.path, call.body, call.starts_something) == (
        "GET",
        "/statuses?ids=a,b%2Fc,d%2Ce",
        None,
        False,
    )


@pytest.mark.parametrize("identifier", ["", "..", "a\ud800"])
def test_what_is_no_id_is_not_asked_for(identifier: str) -> None:
    with pytest.raises(CrewInvalidInput):
        statuses(["a", identifier])
    with pytest.raises(CrewInvalidInput):
        list(portions(["a", identifier]))


def test_each_id_is_answered_as_a_poll_of_its_own() -> None:
    used = {"total_tokens": 7}
    running = {"code": 200, "body": {"status": "running"}, "usage": used}
    body = {"statuses": {"a": running, "b": {"code": 404, "body": {}}}}
    read = endpoints.read(statuses(["a", "b", "c"]), answer(body))
    assert read == {
        "a": HttpResponse(200, {}, b"", {"status": "running"}, used),
        "b": HttpResponse(404, {}, b"", {}),
    }


@pytest.mark.parametrize(
    "item",
    [None, [], "running", {"code": 200}, {"body": {}}, {"code": "200", "body": {}}, {"code": True, "body": {}}]
    + [{"code": 200, "body": body} for body in (None, [], "x")],
)
def test_an_answer_of_another_shape_is_as_none(item: Any) -> None:
    body = {"statuses": {"a": item, "b": {"code": 200, "body": {"x": 1}}}}
    assert endpoints.read(statuses(["a", "b"]), answer(body)) == {"b": HttpResponse(200, {}, b"", {"x": 1})}


@pytest.mark.parametrize("body", [[], {}, {"statuses": None}, {"statuses": []}, "statuses"])
def test_what_has_no_statuses_is_refused(body: Any) -> None:
    with pytest.raises(CrewProtocolError) as error:
        endpoints.read(statuses(["a"]), answer(body))
    assert str(error.value) == "GET /statuses returned no object under 'statuses'"


def test_what_is_no_json_is_refused_without_its_secrets() -> None:
    with pytest.raises(CrewProtocolError) as error:
        endpoints.read(statuses(["a"]), answer(b"a secret"), masker(["secret"]))
    assert str(error.value) == "GET /statuses returned 200 with a body that is not JSON: a ***"


def test_a_portion_fills_the_id_limit_of_a_request() -> None:
    ids = [str(number) for number in range(MOST_IDS + 1)]
    assert list(portions(ids)) == [ids[:MOST_IDS], ids[MOST_IDS:]]
    assert list(portions(ids[:MOST_IDS])) == [ids[:MOST_IDS]]
    assert list(portions([])) == []


def test_a_portion_fills_the_longest_allowed_request_line() -> None:
    """An id counts as it is sent, quoted, with the comma that follows it."""
    ids = ["x" * 999, "/" * 333, *(letter * 999 for letter in "abcde")]
    assert sum(len(path_segment(each)) + 1 for each in ids) == LONGEST_IDS
    assert list(portions(ids)) == [ids]
    assert list(portions([*ids, *ids])) == [ids, ids]
    longer = [*ids[:-1], "e" * 1000]
    assert list(portions(longer)) == [longer[:-1], longer[-1:]]
    assert list(portions([*longer, *ids[:-1]])) == [longer[:-1], [longer[-1], *ids[:-2]], ids[-2:-1]]


def test_an_id_that_is_longer_than_a_portion_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "LONGEST_IDS", 5)
    assert list(portions(["a", "long-id", "b", "c"])) == [["a"], ["long-id"], ["b", "c"]]


@given(st.lists(st.text("ab/ü", min_size=1, max_size=300), max_size=400))
def test_portions_lose_no_id_and_change_no_order(ids: list[str]) -> None:
    divided = list(portions(ids))
    assert [each for portion in divided for each in portion] == ids
    assert all(len(statuses(portion).path) <= LONGEST_IDS + len("/statuses?ids=") for portion in divided)


def test_a_response_alone_is_read_after_a_combined_one() -> None:
    running = {"status": "running"}
    call = endpoints.polls("a")
    first = endpoints.read(call, answer(running))
    assert endpoints.read(call, answer(running)) is first, "byte for byte the same"
    assert endpoints.read(call, HttpResponse(200, {}, b"", running)) is first, "the same in a combined response"
    with pytest.raises(CrewProtocolError, match="empty body"):
        endpoints.read(call, answer(b""))
    used = HttpResponse(200, {"crew-usage": '{"total_tokens": 7}'}, answer(running).body)
    assert endpoints.read(call, used).usage == {"total_tokens": 7}
    assert endpoints.read(call, answer({"status": "completed", "result": "x"})).output == "x"
