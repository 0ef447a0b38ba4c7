"""`airflow-crew-service offline-model` answers as an OpenAI-compatible server does, and says how to use it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from test_service_offline_answers import ENDLESS

from crew_service.cli import main
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits


@pytest.fixture
def model(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "answers.json").write_text(json.dumps({"Summarize": "In short: tea."}))
    command = [sys.executable, "-m", "crew_service", "offline-model", "--port", "0", "--answers", "answers.json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    told = process.stdout.readline() + process.stdout.readline()
    found = re.search(r"^export OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=offline$", told, re.MULTILINE)
    assert found, told
    yield found[1]
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_a_word_of_the_last_message_selects_a_chats_answer(model: str) -> None:
    said = {}
    for asked in ("Summarize it.", "Go on."):
        messages = [{"role": "system", "content": "Summarize"}, {"role": "user", "content": asked}]
        answer = requests.post(f"{model}/chat/completions", json={"messages": messages}, timeout=PATIENCE).json()
        said[asked] = answer["choices"][0]["message"]["content"]
        assert answer["usage"]["total_tokens"] > 0
    assert said == {"Summarize it.": "In short: tea.", "Go on.": "An answer from the offline model."}


def test_each_text_gets_an_embedding(model: str) -> None:
    answer = requests.post(f"{model}/embeddings", json={"input": ["a", "b"]}, timeout=PATIENCE).json()
    assert [(each["index"], len(each["embedding"])) for each in answer["data"]] == [(0, 1536), (1, 1536)]


def test_unknown_and_unreadable_requests_are_errors_in_openais_form(model: str) -> None:
    asked = {
        404: requests.post(f"{model}/images/generations", json={}, timeout=PATIENCE),
        405: requests.get(f"{model}/chat/completions", timeout=PATIENCE),
        400: requests.post(f"{model}/chat/completions", data=b"{", timeout=PATIENCE),
    }
    for body in ([], {}, {"messages": "x"}, {"messages": [1]}, {"messages": [{"role": "user"}], "tools": [1]}):
        answer = requests.post(f"{model}/chat/completions", json=body, timeout=PATIENCE)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["type"] == "invalid_request_error"
    for status, answer in asked.items():
        assert (answer.status_code, set(answer.json()["error"])) == (status, {"message", "type", "param", "code"})


def _form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


ASKED = [{"role": "user", "content": "?"}]
REFUSED: dict[str, tuple[str, Any]] = {
    "endless schema": ("chat/completions", {"messages": ASKED, "response_format": _form(ENDLESS[0])}),
    "schema in itself": (
        "chat/completions",
        {
            "messages": ASKED,
            "response_format": _form({"$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}}, "$ref": "#/$defs/A"}),
        },
    ),
    "endless schema, streamed": (
        "responses",
        {"input": "?", "stream": True, "text": {"format": {"type": "json_schema", "schema": ENDLESS[2]}}},
    ),
    "deep": ("chat/completions", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "long number": ("chat/completions", b'{"messages": ' + b"9" * 5000 + b"}"),
    "negative dimensions": ("embeddings", {"input": "a", "dimensions": -1}),
    "huge dimensions": ("embeddings", {"input": "a", "dimensions": 10**9}),
    "many embeddings": ("embeddings", {"input": ["a"] * 5_000}),
    "no number": ("chat/completions", {"messages": ASKED, "response_format": _form({"const": math.inf})}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_an_unanswerable_request_is_refused_and_the_connection_stays(model: str, name: str) -> None:
    path, body = REFUSED[name]
    with requests.Session() as session:
        content = body if isinstance(body, bytes) else json.dumps(body)
        answer = session.post(f"{model}/{path}", data=content, timeout=PATIENCE)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "close" not in answer.headers.get("connection", "")
        assert session.get(f"{model}/models", timeout=PATIENCE).ok


@pytest.mark.parametrize("stream", [True, False])
def test_half_a_character_is_answered_as_openai_escapes_it(model: str, stream: bool) -> None:
    body = {"messages": ASKED, "model": "\ud83d", "stream": stream}
    answer = requests.post(f"{model}/chat/completions", json=body, timeout=PATIENCE)
    assert answer.ok
    assert '"model": "\\ud83d"' in answer.text


def test_a_stream_has_the_pieces_of_the_answer(model: str) -> None:
    body = {"messages": [{"role": "user", "content": "?"}], "stream": True, "stream_options": {"include_usage": True}}
    answer = requests.post(f"{model}/chat/completions", json=body, timeout=PATIENCE)
    *events, last = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert last == "[DONE]"
    chunks = [json.loads(event) for event in events]
    pieces = [each["choices"][0]["delta"].get("content", "") for each in chunks if each["choices"]]
    assert "".join(pieces) == "An answer from the offline model."
    assert chunks[-1]["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("content", [None, "{", '{"a": 1}', "[]"])
def test_answers_that_cannot_be_read_are_named_in_one_sentence(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.json"
    if content is not None:
        file.write_text(content)
    assert main(["offline-model", "--port", "0", "--answers", str(file)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert str(file) in sentence
