"""Files that a crew gets and writes: how they are asked for, and what each answer is read as."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.endpoints import Upload
from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.api.responses import HttpResponse, masker
from airflow_crew_provider.exceptions import CrewInvalidInput, CrewProtocolError
from airflow_crew_provider.models import ExpectedInputs, UploadedFile, WrittenFile

SHA = "a" * 64
FILE = {"name": "out/a b.txt", "version": 2, "size": 3, "sha256": SHA}
GIVEN = Upload("notes", "notes.txt", 3, content=object())  # type: ignore[arg-type]
NOTES = {"content_type": "text/plain", "task_id": "draft", "round": 1, "view": "/view/a"}


def read(call: Any, body: Any, status: int = 200) -> Any:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return endpoints.read(call, HttpResponse(status, {}, text), masker(["secret"]))


def problem(call: Any, body: Any) -> str:
    with pytest.raises(CrewProtocolError) as error:
        read(call, body)
    return str(error.value)


# --- requests ---


def test_a_file_is_uploaded_as_often_as_needed() -> None:
    call = endpoints.upload(GIVEN)
    assert (call.method, call.path, call.upload, call.body) == ("POST", "/files", GIVEN, None)
    assert (call.starts_cold, call.starts_something) == (True, False)


@pytest.mark.parametrize(
    ("direction", "path"),
    [
        ({}, "/executions/k%2F1/files/out/a%20b.txt?version=2"),
        ({"direction": "out"}, "/executions/k%2F1/files/out/a%20b.txt?version=2"),
        ({"direction": "in"}, "/executions/k%2F1/files/out/a%20b.txt?version=2&direction=in"),
    ],
    ids=str,
)
def test_a_written_file_is_read_as_it_arrives(direction: Any, path: str) -> None:
    call = endpoints.written_file("k/1", endpoints.read_file(FILE), **direction)
    assert (call.method, call.path, call.streamed) == ("GET", path, 3)
    assert read(call, b"abc") is None


def test_lists_of_files_are_those_of_an_execution() -> None:
    calls = (endpoints.written_files("k/1"), endpoints.files_of_question("k/1"))
    assert [(each.method, each.path) for each in calls] == [
        ("GET", "/executions/k%2F1/files"),
        ("GET", "/executions/k%2F1"),
    ]


def test_a_kickoff_names_its_files_in_both_spellings() -> None:
    body = endpoints.kickoff(Kickoff(inputs={}, files={"notes": "https://crew.example/1"})).body
    assert body == {
        "inputs": {},
        "input_files": {"notes": "https://crew.example/1"},
        "inputFiles": {"notes": "https://crew.example/1"},
    }
    assert endpoints.kickoff(Kickoff(inputs={}, files={})).body == {"inputs": {}}


@pytest.mark.parametrize(
    ("given", "sent"), [({}, {}), ({"meta": None}, {}), ({"meta": {"a": (1,)}}, {"meta": {"a": [1]}})], ids=str
)
def test_the_fields_of_a_kickoff_are_plain_values(given: Any, sent: Any) -> None:
    checked = Kickoff(inputs={"b": (2,)}, **given).checked()
    assert endpoints.kickoff(checked).body == {"inputs": {"b": [2]}, **sent}


@pytest.mark.parametrize("name", ["inputs", "meta"])
def test_a_field_that_cannot_be_sent_is_refused(name: str) -> None:
    with pytest.raises(CrewInvalidInput) as refused:
        Kickoff(**{"inputs": {}, name: 5}).checked()
    assert str(refused.value) == f"{name}: must be an object (a dict), not int. Nothing was sent"


# --- answers ---


@pytest.mark.parametrize(
    ("body", "file"),
    [
        ({"url": "https://crew.example/1", "size": 3, "sha256": SHA}, UploadedFile("https://crew.example/1", 3, SHA)),
        ({"url": "u"}, UploadedFile("u", None, None)),
        ({"url": "u", "size": "3", "sha256": 5}, UploadedFile("u", None, None)),
        ({"url": "u", "size": True, "sha256": ""}, UploadedFile("u", None, "")),
    ],
    ids=str,
)
def test_an_upload_has_an_address_and_perhaps_figures(body: Any, file: UploadedFile) -> None:
    assert read(endpoints.upload(GIVEN), body) == file


@pytest.mark.parametrize("body", [[], {}, {"url": None}, {"url": 5}, {"url": " "}], ids=repr)
def test_an_upload_without_an_address_is_no_upload(body: Any) -> None:
    assert problem(endpoints.upload(GIVEN), body) == "POST /files returned no address under 'url'"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (endpoints.upload(GIVEN), "POST /files"),
        (endpoints.written_files("k-1"), "GET /executions/{id}/files"),
        (endpoints.files_of_question("k-1"), "GET /executions"),
        (endpoints.stop("k-1"), "POST /stop"),
    ],
    ids=["upload", "list", "question", "stop"],
)
def test_an_answer_that_is_no_json_is_shown_without_secrets(call: Any, name: str) -> None:
    said = problem(call, b"no secret")
    assert said.startswith(name)
    assert "no ***" in said


def test_a_file_has_what_the_service_lists() -> None:
    assert endpoints.read_file(FILE) == WrittenFile("out/a b.txt", 2, 3, SHA)
    assert endpoints.read_file({**FILE, **NOTES, "size": 0, "state": "draft"}) == WrittenFile(
        "out/a b.txt", 2, 0, SHA, "text/plain", "draft", is_draft=True, round=1, view="/view/a"
    )
    assert endpoints.read_file({**FILE, "state": "final", "round": True, "content_type": 5}) == WrittenFile(
        "out/a b.txt", 2, 3, SHA
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"name": None},
        {"version": "2"},
        {"version": True},
        {"size": "3"},
        {"size": -1},
        {"size": True},
        {"sha256": "a"},
        {"sha256": None},
    ],
    ids=str,
)
def test_a_file_that_cannot_be_read_is_an_error(bad: Any) -> None:
    said = "GET /executions/{id}/files returned a file that cannot be read"
    assert problem(endpoints.written_files("k-1"), {"files": [FILE, {**FILE, **bad}]}) == said
    assert problem(endpoints.written_files("k-1"), {"files": [5]}) == said


@pytest.mark.parametrize("body", [[], {}, {"files": None}, {"files": {}}], ids=repr)
def test_an_answer_without_a_list_of_files_is_an_error(body: Any) -> None:
    assert problem(endpoints.written_files("k-1"), body) == "GET /executions/{id}/files returned no list of files"


def test_files_that_were_given_are_not_written_ones() -> None:
    files = [{**FILE, "direction": "out"}, {**FILE, "name": "b", "direction": "in"}, {**FILE, "name": "c"}]
    found = read(endpoints.written_files("k-1"), {"files": files})
    assert [each.name for each in found] == ["out/a b.txt", "c"]


OF_ROUND = {**FILE, "direction": "out", "state": "draft"}


@pytest.mark.parametrize(
    ("files", "rounds", "shown"),
    [
        ([{**OF_ROUND, "state": "final", "round": 1}], [{"number": 2}], 1),
        ([{**OF_ROUND, "round": 2}], [{"number": 1}, {"number": 2}], 1),
        ([{**OF_ROUND, "round": 1}], [{"number": 1}, {"number": 2}], 0),
        ([OF_ROUND], [{"number": 2}], 1),
        ([{**OF_ROUND, "round": 2}], [{"number": 2, "decided_at": "then"}], 0),
        ([{**OF_ROUND, "direction": "in"}, {**OF_ROUND, "direction": None}, 5], [], 0),
        (None, [], 0),
        ({}, [], 0),
    ],
    ids=["final", "this draft", "a rejected one", "not asked about", "decided", "given", "none", "no list"],
)
def test_a_question_shows_no_files_of_rejected_drafts(files: Any, rounds: Any, shown: int) -> None:
    body = {"state": "pending", "files": files, "rounds": rounds}
    assert len(read(endpoints.files_of_question("k-1"), body)) == shown


@pytest.mark.parametrize(
    ("given", "files"), [({"files": ["notes"]}, ["notes"]), ({}, None), ({"files": [5]}, None)], ids=str
)
def test_a_service_may_say_which_inputs_are_files(given: Any, files: Any) -> None:
    assert read(endpoints.inputs(), {"inputs": ["a"], **given}) == ExpectedInputs(["a"], None, files=files)
