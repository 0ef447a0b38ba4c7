"""`airflow-crew-service offline-model`: an OpenAI-compatible server that needs no network, for development and tests.

It replaces a crew's real model without changes to the crew. All chats get the same answer, unless a file maps a word in
the last message to a different one; all texts get the same embedding.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from crew_service.engine.crew import BadTarget

ANSWER = "An answer from the offline model."
DIMENSIONS = 1536


def answers_of(file: Path | None) -> dict[str, str]:
    """Read a JSON object of the form `{word: answer}`; raise `BadTarget` if it is invalid."""
    if file is None:
        return {}
    try:
        answers = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadTarget(f"The answers in {str(file)!r} cannot be read: {error}.") from None
    if not isinstance(answers, dict) or not all(isinstance(text, str) for text in answers.values()):
        raise BadTarget(f"The answers in {str(file)!r} must be one JSON object that maps words to strings.")
    return answers


def server(port: int, answers: dict[str, str]) -> ThreadingHTTPServer:
    """Listen on the loopback address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = _embeddings(body) if self.path.endswith("/embeddings") else _completion(body, answers)
            content = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *parts: Any) -> None: ...

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def _completion(body: dict[str, Any], answers: dict[str, str]) -> dict[str, Any]:
    asked = str(body["messages"][-1].get("content"))
    text = next((answer for word, answer in answers.items() if word in asked), ANSWER)
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": len(asked.split()), "completion_tokens": len(text.split())}
    return {
        "id": "offline",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", "offline"),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": place, "embedding": [0.1] * DIMENSIONS} for place in range(len(texts))]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "data": data, "model": body.get("model", "offline"), "usage": usage}
