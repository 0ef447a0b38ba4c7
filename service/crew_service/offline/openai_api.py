"""OpenAI's endpoints: chat completions, responses and embeddings; answers come whole or as a stream of events."""

from __future__ import annotations

import base64
import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from crew_service.offline.answers import (
    DIMENSIONS,
    MOST_DIMENSIONS,
    MOST_NUMBERS,
    Answer,
    Call,
    Message,
    Request,
    embedding,
    reply,
)
from crew_service.offline.example import Json

MODEL = "offline"
ID = "offline"
ANY_OBJECT: Json = {"properties": {"answer": {"type": "string"}}}


def serve(listener: socket.socket, answers: dict[str, Answer]) -> None:
    """Answer requests until a signal ends the process."""
    uvicorn.Server(uvicorn.Config(app(answers), log_level="warning")).run(sockets=[listener])


def app(answers: dict[str, Answer]) -> Starlette:
    """Return the server's application."""

    def chat(body: Json) -> Response:
        request = _of_chat(body)
        answer = reply(request, answers)
        usage = _usage(request, answer, "prompt_tokens", "completion_tokens")
        if not body.get("stream"):
            return _json(_completion(body, answer, usage))
        with_usage = (body.get("stream_options") or {}).get("include_usage")
        return _stream([*_chunks(body, answer, usage if with_usage else None), "[DONE]"])

    def responses(body: Json) -> Response:
        request = _of_responses(body)
        answer = reply(request, answers)
        whole = _response(body, answer, _usage(request, answer, "input_tokens", "output_tokens"))
        return _stream(_events(whole)) if body.get("stream") else _json(whole)

    def count(body: Json) -> Response:
        return _json({"object": "response.input_tokens", "input_tokens": _words(_of_responses(body))})

    def embeddings(body: Json) -> Response:
        return _json(_embeddings(body))

    async def models(request: HttpRequest) -> Response:
        model = {"id": request.path_params.get("name", MODEL), "object": "model", "created": 0, "owned_by": MODEL}
        return _json(model if "name" in request.path_params else {"object": "list", "data": [model]})

    routes = [
        _post("/v1/chat/completions", chat),
        _post("/v1/responses", responses),
        _post("/v1/responses/input_tokens", count),
        _post("/v1/embeddings", embeddings),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", models),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused})


def _post(path: str, answer: Callable[[Json], Response]) -> Route:
    """Return a route on which every failure is an error in OpenAI's form, of a status that clients do not retry."""

    async def endpoint(request: HttpRequest) -> Response:
        content = await request.body()
        try:
            return answer(json.loads(content))
        except Exception as error:
            return _error(400, f"The offline model cannot read this request: {error!r}")

    return Route(path, endpoint, methods=["POST"])


def _refused(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"The offline model has no {request.method} {request.url.path}"
    return _error(error.status_code, message, error.headers)


def _error(status: int, message: str, headers: Any = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return _json({"error": error}, status, headers)


def _json(content: Json, status: int = 200, headers: Any = None) -> Response:
    return Response(_dumped(content), status, headers, "application/json")


def _dumped(content: Json) -> str:
    return json.dumps(content, allow_nan=False)


def _stream(events: Iterable[Json | str]) -> Response:
    def line(event: Json | str) -> str:
        if isinstance(event, str):
            return f"data: {event}\n\n"
        name = f"event: {event['type']}\n" if "type" in event else ""
        return f"{name}data: {_dumped(event)}\n\n"

    # Written before anything is sent: what fails here is still an answer with a status.
    return StreamingResponse(iter([line(event) for event in events]), media_type="text/event-stream")


def _words(request: Request) -> int:
    return sum(len(each.text.split()) for each in request.messages)


def _usage(request: Request, answer: str | Call, input_key: str, output_key: str) -> Json:
    usage = {
        input_key: _words(request),
        output_key: len((answer.arguments if isinstance(answer, Call) else answer).split()),
    }
    return {**usage, "total_tokens": sum(usage.values())}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(each.get("text") or "") for each in content if isinstance(each, dict))
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)


def _required(body: Json, tools: dict[str, Json]) -> str | None:
    """Return the tool that the request's ``tool_choice`` demands."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        name = (choice.get("function") or choice).get("name")
        return str(name) if name else next(iter(tools), None)
    return next(iter(tools), None) if choice == "required" else None


def _schema(form: Json) -> Json | None:
    """Return the schema that an answer's format demands."""
    return {"json_schema": form.get("schema") or {}, "json_object": ANY_OBJECT}.get(form.get("type", "text"))


# --- chat completions ---


def _of_chat(body: Json) -> Request:
    messages = [
        Message(each["role"], _text(each.get("content")), len(each.get("tool_calls") or ()))
        for each in body["messages"]
    ]
    functions = [each["function"] for each in body.get("tools") or () if "function" in each]
    tools = {each["name"]: each.get("parameters") or {} for each in functions}
    form = body.get("response_format") or {}
    return Request(messages, tools, _required(body, tools), _schema({**form, **(form.get("json_schema") or {})}))


def _completion(body: Json, answer: str | Call, usage: Json) -> Json:
    message: Json = {"role": "assistant", "content": answer if isinstance(answer, str) else None, "refusal": None}
    if isinstance(answer, Call):
        message["tool_calls"] = [_tool_call(answer)]
    choice = {"index": 0, "message": message, "finish_reason": _reason(answer), "logprobs": None}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": usage}


def _chunks(body: Json, answer: str | Call, usage: Json | None) -> Iterator[Json]:
    head = {**_head(body, "chat.completion.chunk"), "usage": None}

    def chunk(delta: Json, reason: str | None = None) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}

    if isinstance(answer, Call):
        yield chunk({"role": "assistant", "content": None, "tool_calls": [{"index": 0, **_tool_call(answer)}]})
    else:
        yield chunk({"role": "assistant", "content": ""})
        for piece in _pieces(answer):
            yield chunk({"content": piece})
    yield chunk({}, _reason(answer))
    if usage:
        yield {**head, "choices": [], "usage": usage}


def _head(body: Json, kind: str) -> Json:
    return {"id": ID, "object": kind, "created": 0, "model": body.get("model", MODEL)}


def _tool_call(call: Call) -> Json:
    return {"id": _call_id(call), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_id(call: Call) -> str:
    return f"call_{call.name}"


def _reason(answer: str | Call) -> str:
    return "tool_calls" if isinstance(answer, Call) else "stop"


def _pieces(text: str) -> list[str]:
    """Return the text in pieces, as a stream has it."""
    return [text[start : start + 20] for start in range(0, len(text), 20)]


# --- responses ---


def _of_responses(body: Json) -> Request:
    content = body.get("input") or []
    items = [{"role": "user", "content": content}] if isinstance(content, str) else content
    messages = [Message("system", _text(body["instructions"]))] if body.get("instructions") else []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            messages.append(Message("assistant", calls=1))
        elif kind == "function_call_output":
            messages.append(Message("tool", _text(item.get("output"))))
        elif kind == "message":
            messages.append(Message(item["role"], _text(item.get("content"))))
    tools = {each["name"]: each.get("parameters") or {} for each in body.get("tools") or () if "name" in each}
    return Request(messages, tools, _required(body, tools), _schema((body.get("text") or {}).get("format") or {}))


def _response(body: Json, answer: str | Call, usage: Json) -> Json:
    if isinstance(answer, Call):
        item: Json = {"type": "function_call", "id": f"fc_{answer.name}", "call_id": _call_id(answer)}
        item |= {"name": answer.name, "arguments": answer.arguments, "status": "completed"}
    else:
        part = {"type": "output_text", "text": answer, "annotations": [], "logprobs": []}
        item = {"type": "message", "id": "msg_offline", "role": "assistant", "status": "completed", "content": [part]}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        **{"id": f"resp_{ID}", "object": "response", "created_at": 0, "status": "completed", "error": None},
        **{"model": body.get("model", MODEL), "output": [item], "usage": {**usage, **details}},
        **{name: body.get(name) for name in ("instructions", "metadata", "temperature", "top_p", "text")},
        **{"parallel_tool_calls": True, "tool_choice": body.get("tool_choice") or "auto"},
        **{"tools": body.get("tools") or [], "incomplete_details": None},
    }


def _events(whole: Json) -> Iterator[Json]:
    item = whole["output"][0]
    open_response = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": open_response},
        {"type": "response.in_progress", "response": open_response},
    ]
    place: Json = {"item_id": item["id"], "output_index": 0}
    if item["type"] == "function_call":
        begun = {**item, "arguments": "", "status": "in_progress"}
        events += [
            {"type": "response.output_item.added", "output_index": 0, "item": begun},
            {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]},
            {"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]},
        ]
    else:
        part, place = item["content"][0], {**place, "content_index": 0}
        begun = {**item, "content": [], "status": "in_progress"}
        events += [
            {"type": "response.output_item.added", "output_index": 0, "item": begun},
            {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
            *({"type": "response.output_text.delta", **place, "delta": piece} for piece in _pieces(part["text"])),
            {"type": "response.output_text.done", **place, "text": part["text"]},
            {"type": "response.content_part.done", **place, "part": part},
        ]
    events += [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


# --- embeddings ---


def _embeddings(body: Json) -> Json:
    inputs, dimensions = body["input"], body.get("dimensions") or DIMENSIONS
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise ValueError(f"dimensions must be between 1 and {MOST_DIMENSIONS:,}")
    is_one = isinstance(inputs, str) or all(isinstance(each, int) for each in inputs)
    texts = [_text(each) for each in ([inputs] if is_one else inputs)]
    if len(texts) * dimensions > MOST_NUMBERS:
        raise ValueError(f"the embeddings would have more than {MOST_NUMBERS:,} numbers; send fewer texts at once")
    vectors = [embedding(text, dimensions) for text in texts]
    encoded = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": place, "embedding": _packed(vector) if encoded else vector}
        for place, vector in enumerate(vectors)
    ]
    count = sum(len(text.split()) for text in texts)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": body.get("model", MODEL), "usage": usage}


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
