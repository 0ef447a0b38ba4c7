"""`airflow-crew-service offline-model` answers as an OpenAI-compatible server does, and says how to use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

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


def test_a_chat_gets_the_answer_for_a_word_of_its_last_message(model: str) -> None:
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


def test_what_it_does_not_have_and_cannot_read_is_an_error_in_openais_form(model: str) -> None:
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
