"""An OpenAI-compatible server on loopback: the only part of a project that the tests replace."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USAGE = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}


class OpenAI:
    """Answers every chat with `answer`, or with the one that `answers` has for a word of its last message."""

    def __init__(self, answer: str = "All that there is to say.", answers: dict[str, str] | None = None) -> None:
        self.answer = answer
        self.answers = answers or {}
        self.first: list[str] = []  # the answers to the first chats
        self.tools: dict[str, dict[str, Any]] = {}
        self.script: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # gives the message of each chat
        self.refuses: Callable[[dict[str, Any]], bool] = lambda body: False  # with a 500
        self.asked: list[dict[str, Any]] = []
        self.usage: dict[str, int] | None = USAGE
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append({"path": self.path, **body})
                code, answer = server.answered(self.path, body)
                said = json.dumps(answer).encode()
                with suppress(ConnectionError):  # whoever asked was killed
                    self.send_response(code)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)

            def log_message(self, *parts: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.environment = {
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self._server.server_address[1]}/v1",
            "OPENAI_API_KEY": "for-tests-only",
        }

    def answered(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.refuses(body):
            return 500, {"error": {"message": "overloaded"}}
        return 200, self.embedded(body) if "embeddings" in path else self.completed(body)

    def completed(self, body: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": 0, "message": self._message(body), "finish_reason": "stop"}
        about = {"id": "a", "object": "chat.completion", "created": 0, "model": body.get("model", "m")}
        return {**about, "choices": [choice], **({"usage": self.usage} if self.usage else {})}

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        """Use each tool that `tools` names once, and answer then."""
        if self.script:
            return self.script(body)
        turns = body.get("messages", [{}])
        offered = {tool["function"]["name"] for tool in body.get("tools", ())}
        used = any(turn.get("role") == "tool" for turn in turns)
        for name, arguments in self.tools.items():
            if name in offered and not used:
                call = {
                    "id": "call",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                return {"role": "assistant", "content": None, "tool_calls": [call]}
        if self.first:
            return {"role": "assistant", "content": self.first.pop(0)}
        last = str(turns[-1].get("content"))
        text = next((answer for word, answer in self.answers.items() if word in last), self.answer)
        return {"role": "assistant", "content": text}

    def embedded(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": place, "embedding": [0.1] * 1536} for place in range(len(texts))]
        return {"object": "list", "data": data, "model": body.get("model", "m"), "usage": USAGE}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def environment(model: OpenAI) -> dict[str, str]:
    """Return the variables of a service whose crews are in `crews`, and ask this model."""
    places = os.pathsep.join(filter(None, [str(Path(__file__).with_name("crews")), os.environ.get("PYTHONPATH")]))
    return {**model.environment, "PYTHONPATH": places}
