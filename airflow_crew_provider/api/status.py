"""Read the body of a status response, in either dialect.

The reader is strict about success and lenient about everything else: a body that claims completion but contains a
wrong type anywhere is a `CrewProtocolError`, never a result.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from dataclasses import replace
from typing import Any

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.addresses import view_path
from airflow_crew_provider.api.budget import figures
from airflow_crew_provider.api.responses import HttpResponse, Mask, finite, in_one_line, json_of, storable, unmasked
from airflow_crew_provider.api.values import is_kept
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import CHAIN, Execution, ExecutionState, Json, TaskResult, speaks_live

log = logging.getLogger(__name__)

S = ExecutionState
STOPPED = ("revoked", "cancelled", "canceled", "stopped")
# In lower case, with underscores instead of spaces and dashes. Any other word counts as in progress.
WORDS: dict[str, ExecutionState] = {
    **dict.fromkeys(("running", "started", "queued", "in_progress", "resuming", "retrying"), S.RUNNING),
    **dict.fromkeys(("success", "completed", "complete"), S.COMPLETED),
    **dict.fromkeys(("failed", "failure", "error", *STOPPED), S.ERROR),
    **dict.fromkeys(("pending_human_input", "paused", "awaiting_human_feedback", "awaiting_input"), S.PENDING),
    "not_found": S.NOT_FOUND,
}
# Headers from this project's crew service; the value of each is the name of a resume field.
EDITS_OFFER, EDITS_FIELD = "Crew-Edited-Output", "edited_output"
HASH_OFFER, HASH_FIELD = "Crew-Draft-Hash", "output_sha256"
VIEW = "Crew-View"  # the path of the execution's page
USAGE, USAGE_FIELD = "Crew-Usage", "usage"  # usage so far, as JSON: a header, or a field in a combined response
# Larger values are unusable: no request accepts an id this long, and no metric or database a count this high.
LONGEST_ID, LONGEST_NAME, HIGHEST_COUNT = 2048, 200, 1_000_000
LARGEST_USAGE = 64 * 1024  # characters of JSON
LARGEST_KEPT = 16 * 1024  # bytes that each wait may keep between two polls
_FENCE = "```"
_FENCE_BEGINS = re.compile(r"```[\w-]*[ \t]*\r?\n")
_unknown_words: set[str] = set()


class StatusReader:
    """Reads the responses to one wait's polls, without parsing a repeated response again or keeping a large one.

    If the status of a running execution is large, `raw` contains only what a wait needs.
    """

    def __init__(self, kickoff_id: str) -> None:
        self._kickoff_id = kickoff_id
        self._running: Execution | None = None
        self._body: bytes | str | None = None
        self._parsed: Json | None = None
        self._used: Any = None

    def __call__(self, answer: HttpResponse, mask: Mask) -> Execution:
        used, body = _used(answer), _recognizable(answer.body)
        running = self._running if self._used == used else None
        if running is not None and self._body == body:
            return running
        parsed = json_of(answer, "GET /status", mask)
        if running is not None and self._parsed is not None and self._parsed == parsed:
            self._body = body or None  # a combined response has no separate body for each poll
            return running
        read = read_status(self._kickoff_id, parsed, answer, mask)
        self._running = self._body = self._parsed = self._used = None
        if read.state is not S.RUNNING:
            return read
        is_small = _is_small(parsed)
        read = read if is_small else _without_the_rest(read)
        if _is_small(used):
            self._running, self._used = read, used
            self._body, self._parsed = body or None, parsed if is_small else None
        return read


def _recognizable(body: bytes) -> bytes | str:
    """Return a small body itself, and the hash of a large one."""
    return body if len(body) <= LARGEST_KEPT else hashlib.sha256(body).hexdigest()


def _is_small(value: Any) -> bool:
    """Whether a JSON value takes so little memory that every wait may keep one."""
    open_ones, size = [value], 0
    while open_ones:
        each = open_ones.pop()
        size += sys.getsizeof(each)
        if size > LARGEST_KEPT:
            return False
        open_ones += (*each, *each.values()) if isinstance(each, dict) else each if isinstance(each, list) else ()
    return True


def _without_the_rest(running: Execution) -> Execution:
    """Return a running execution with only the part of its body that a wait needs: its dialect and current task."""
    needed = {name: running.raw[name] for name in ("state", "status", "current_task") if name in running.raw}
    raw: Json = {name: text[:LONGEST_ID] if isinstance(text, str) else None for name, text in needed.items()}
    return replace(running, raw=raw, raw_state=running.raw_state[:LONGEST_NAME])


def read_status(kickoff_id: str, body: Any, answer: HttpResponse, mask: Mask) -> Execution:
    """Read the parsed body of a response to a poll, and the rest of the response."""
    read = execution(kickoff_id, body, mask)
    view = view_path(answer.headers.get(VIEW.lower()))
    usage = _with_chain(read.usage, _usage_beside(_used(answer)))
    if view is not None or usage is not None:
        read = replace(read, usage=usage and _with_masked_names(usage, mask), view=view)
    if view is not None or answer.parsed is not None:  # a service that sends either of these has details
        read = replace(read, has_details=True)
    if read.state is S.PENDING:
        offers = [bool(answer.headers.get(each.lower())) for each in (EDITS_OFFER, HASH_OFFER)]
        read = replace(read, takes_edited_output=offers[0], checks_draft=offers[1])
    return read


def _used(answer: HttpResponse) -> Any:
    return answer.headers.get(USAGE.lower()) if answer.usage is None else answer.usage


def execution(kickoff_id: str, body: Any, mask: Mask = unmasked) -> Execution:
    """Read a status body in either dialect."""
    if not isinstance(body, dict):
        raise CrewProtocolError(f"GET /status returned {type(body).__name__} instead of an object")
    word, live = _word(body), speaks_live(body)
    known = state_of(word, live)
    if known is None:
        _tell_once(word, body, mask)
    state = known or S.RUNNING
    common: Json = {"kickoff_id": kickoff_id, "state": state, "raw_state": word, "raw": body} | _progress(body, mask)
    common["state_is_known"] = known is not None
    more = {S.COMPLETED: _completed, S.PENDING: _pending, S.ERROR: _failed}.get(state)
    return Execution(**common, **(more(body, live, mask) if more else {}))


def _usage_beside(value: Any) -> Json | None:
    """Read the usage sent alongside a body, as a header or an object; None for anything else."""
    return _usage(json_object_in(value) if isinstance(value, str) else value)


def _usage(value: Any) -> Json | None:
    """Return the usage; if it is too large, only the numbers that budgets use."""
    if not isinstance(value, dict) or not is_kept(value):
        return None
    return value if len(json.dumps(value)) <= LARGEST_USAGE else figures(value)


def _with_chain(usage: Json | None, beside: Json | None) -> Json | None:
    """Return the usage in the body, else that sent alongside it; only the latter includes a chain's total."""
    if usage is None or beside is None or CHAIN not in beside:
        return beside if usage is None else usage
    return {**usage, CHAIN: beside[CHAIN]}


def _with_masked_names(usage: Json, mask: Mask) -> Json:
    """Mask model names, including a chain's, because messages quote them."""
    if isinstance(chain := usage.get(CHAIN), dict):
        usage = {
            **usage,
            CHAIN: _with_masked_models({name: value for name, value in chain.items() if name != CHAIN}, mask),
        }
    return _with_masked_models(usage, mask)


def _with_masked_models(usage: Json, mask: Mask) -> Json:
    models = usage.get("by_model")
    if not isinstance(models, dict):
        return usage
    return {**usage, "by_model": {mask(name): used for name, used in models.items()}}


def _word(body: Json) -> str:
    word = text_or_none(body.get("state")) or text_or_none(body.get("status"))
    if not word:
        raise CrewProtocolError("GET /status returned no usable 'state' or 'status'")
    return word


def state_of(word: str, live: bool) -> ExecutionState | None:
    """Return the state for a word; None if unknown.

    ``pending`` means queued in the live dialect, and waiting for a person in the specification.
    """
    plain = re.sub(r"[\s-]+", "_", word.strip().lower())
    if plain == "pending":
        return S.RUNNING if live else S.PENDING
    if plain.startswith("waiting_for_human"):
        return S.PENDING
    return WORDS.get(plain)


def _tell_once(word: str, body: Json, mask: Mask) -> None:
    known = word[:LONGEST_NAME]
    if known in _unknown_words or len(_unknown_words) >= 100:
        return
    _unknown_words.add(known)
    excerpt = mask(json.dumps(body))[:1000]
    log.warning(
        "The crew service returned an unknown state, %r; it is treated as in progress: %s",
        mask(word)[:100],
        excerpt,
    )


def _progress(body: Json, mask: Mask) -> Json:
    value = body.get("progress")
    progress: Json = value if isinstance(value, dict) else {}
    return {
        "current_task": short_name(body.get("current_task"), mask) or short_name(progress.get("current"), mask) or None,
        "completed_tasks": _count(progress, "completed_tasks", "completed"),
        "total_tasks": _count(progress, "total_tasks", "total"),
    }


def short_name(value: Any, mask: Mask = unmasked) -> str:
    """Return the beginning of a name chosen elsewhere, on one line; empty if there is none."""
    return in_one_line(text_or_none(value) or "", mask)[:LONGEST_NAME]


def _completed(body: Json, live: bool, mask: Mask) -> Json:
    text, record = _result(body, live)
    result = body["result"] if isinstance(body.get("result"), dict) else {}
    return {
        "output": text,
        **object_fields(record if record is not None else json_object_in(text)),
        "tasks": tuple(_task(task, mask) for task in _typed(result, "tasks", list) or ()),
        "execution_time": _seconds(body),
        "usage": _usage(_typed(body, "usage_metrics", dict)),
    }


def _result(body: Json, live: bool) -> tuple[str, Json | None]:
    """Return the text and the object in a result: from `result_json`, `result`, or the last task's output."""
    record = _typed(body, "result_json", dict)
    result = _typed(body, "result", str, dict)
    if isinstance(result, dict):
        result = _typed(result, "output", str)
    if result is None and record is not None:
        result = json.dumps(record, ensure_ascii=False)
    if result is None:
        last = _typed(body, "last_executed_task", dict) or {}
        result = _typed(last, "output", str)
    if result is None and live and "result" in body and body["result"] is None:
        result = ""  # how a live deployment reports a Flow that returns nothing
    if result is None:
        raise CrewProtocolError(f"GET /status returned {_word(body)!r} without a result")
    return result, record


def _task(task: Any, mask: Mask) -> TaskResult:
    if not isinstance(task, dict):
        raise CrewProtocolError("GET /status returned a task result that is not an object")
    return TaskResult(
        **{name: _masked(_typed(task, name, str), mask) for name in ("task_id", "agent")},
        output=_typed(task, "output", str),
        execution_time=_seconds(task),
    )


def _masked(text: str | None, mask: Mask) -> str | None:
    return None if text is None else mask(text)


def _pending(body: Json, live: bool, mask: Mask) -> Json:
    draft = text_or_none(body.get("task_output"))
    if draft is None and isinstance(body.get("last_executed_task"), dict):
        draft = text_or_none(body["last_executed_task"].get("output"))
    task_id = _id(body, "task_id") or (None if live else _id(body, "current_task"))
    task = {"crew_task_id": task_id, "shown_task": short_name(task_id, mask) or None}
    return {**task, "output": draft, **object_fields(json_object_in(draft)), **asked_fields(body, mask)}


def asked_fields(body: Json, mask: Mask = unmasked) -> Json:
    """Read a Flow's question (observed Flows, the pause), or one in the middle of a task."""
    choices = body.get("outcomes")
    outcomes = [each for each in choices if isinstance(each, str)] if isinstance(choices, list) else []
    return {
        "question": text_or_none(body.get("question")),
        "outcomes": outcomes,
        "flow_id": _id(body, "flow_id"),
        "ask": asks.read(body.get("ask"), mask),
    }


def _id(body: Json, name: str) -> str | None:
    value = text_or_none(body.get(name))
    return value if value and len(value.encode("utf-8", "replace")) <= LONGEST_ID else None


def _failed(body: Json, live: bool, mask: Mask) -> Json:
    messages = (body.get("error"), body.get("status") if live else None, body.get("message"))
    error = next((mask(text) for text in map(_reason, messages) if text), None)
    seconds = body.get("execution_time")
    return {
        "error": error or "no reason given",
        "execution_time": seconds if is_number(seconds) else None,
    }


def _reason(value: Any) -> str:
    """Return an error as text; some services send an object with a message in it."""
    if isinstance(value, dict | list) and value:
        return json.dumps(value, ensure_ascii=False)
    return text_or_none(value) or ""


def object_fields(value: Json | None) -> Json:
    """Return the `Execution` fields for the object in an output, if there is one."""
    return {"output_json": value, "object_is_kept": is_kept(value)}


def json_object_in(text: str | None) -> Json | None:
    """Parse a whole string, without any code fence, as a JSON object; return None for anything else."""
    if text is None or not without_fence(text).startswith("{"):
        return None
    try:
        value = json_in(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_in(text: str) -> Any:
    """Parse a whole string, without any code fence, as JSON.

    :raises ValueError: it is not JSON; deeply nested JSON raises a RecursionError instead
    """
    return storable(json.loads(without_fence(text), parse_constant=_refuse_constant, parse_float=finite))


def without_fence(text: str) -> str:
    """Return a string without its code fence and surrounding white space."""
    plain = text.strip()
    begins = _FENCE_BEGINS.match(plain) if plain.endswith(_FENCE) else None
    return plain if begins is None else plain[begins.end() : -len(_FENCE)].strip()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def text_or_none(value: Any) -> str | None:
    """Return the value if it is a string, else None."""
    return value if isinstance(value, str) else None


def _typed(body: Json, name: str, *types: type) -> Any:
    value = body.get(name)
    if value is None or isinstance(value, types):
        return value
    wanted = " or ".join(each.__name__ for each in types)
    raise CrewProtocolError(f"GET /status returned {type(value).__name__} as {name!r}, not {wanted}")


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(body: Json) -> float | None:
    value = body.get("execution_time")
    if value is None or is_number(value):
        return value if is_kept(value) else None
    raise CrewProtocolError(f"GET /status returned {type(value).__name__} as 'execution_time', not a number")


def _count(progress: Any, *names: str) -> int | None:
    values = (progress.get(name) for name in names)
    return next((value for value in values if is_count(value)), None)


def is_count(value: Any) -> bool:
    """Return whether a JSON value is a count that can be passed on."""
    return type(value) is int and 0 <= value <= HIGHEST_COUNT
