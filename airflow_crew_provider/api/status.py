"""What the body of a status answer means, in both dialects. The one table of state words stands here.

The reader is strict about what it calls a success and lenient about everything else: a body that claims
completion and has a wrong type anywhere is a `CrewProtocolError`, never a result.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from typing import Any

from airflow_crew_provider.api.addresses import view_path
from airflow_crew_provider.api.responses import HttpResponse, Mask, finite, json_of, storable, unmasked
from airflow_crew_provider.api.values import is_kept
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import Execution, ExecutionState, Json, TaskResult, speaks_live

log = logging.getLogger(__name__)

S = ExecutionState
# Words in lower case, with spaces and dashes as underscores. A word that is not here is in progress.
WORDS: dict[str, ExecutionState] = {
    **dict.fromkeys(("running", "started", "queued", "in_progress", "resuming", "retrying"), S.RUNNING),
    **dict.fromkeys(("success", "completed", "complete"), S.COMPLETED),
    **dict.fromkeys(("failed", "failure", "error", "revoked", "cancelled", "canceled", "stopped"), S.ERROR),
    **dict.fromkeys(("pending_human_input", "paused", "awaiting_human_feedback", "awaiting_input"), S.PENDING),
    "not_found": S.NOT_FOUND,
}
# Headers of our own crew service; the value of each is the field of a resume.
EDITS_OFFER, EDITS_FIELD = "Crew-Edited-Output", "edited_output"
HASH_OFFER, HASH_FIELD = "Crew-Draft-Hash", "output_sha256"
VIEW = "Crew-View"  # the path of the execution's page
USAGE, USAGE_FIELD = "Crew-Usage", "usage"  # what it used so far, in JSON: a header, and a field where many are polled
_FENCE = "```"
_FENCE_BEGINS = re.compile(r"```[\w-]*[ \t]*\n")
_unknown_words: set[str] = set()


class StatusReader:
    """Reads the answers to the polls of one wait; an answer like the one before is not taken apart again."""

    def __init__(self, kickoff_id: str) -> None:
        self._kickoff_id = kickoff_id
        self._running: Execution | None = None
        self._used: Any = None

    def __call__(self, answer: HttpResponse, mask: Mask) -> Execution:
        body = json_of(answer, "GET /status", mask)
        used = answer.headers.get(USAGE.lower()) if answer.usage is None else answer.usage
        if self._running is not None and self._running.raw == body and self._used == used:
            return self._running
        self._used, read = used, execution(self._kickoff_id, body, mask)
        view = view_path(answer.headers.get(VIEW.lower()))
        usage = _usage_beside(used) if read.usage is None else read.usage
        if view is not None or usage is not None:
            read = replace(read, usage=usage and _with_masked_names(usage, mask), view=view)
        if view is not None or answer.parsed is not None:  # the service that has the one, or polls of many, has details
            read = replace(read, has_details=True)
        if read.state is S.PENDING:
            offers = [bool(answer.headers.get(each.lower())) for each in (EDITS_OFFER, HASH_OFFER)]
            read = replace(read, takes_edited_output=offers[0], checks_draft=offers[1])
        self._running = read if read.state is S.RUNNING else None
        return read


def execution(kickoff_id: str, body: Any, mask: Mask = unmasked) -> Execution:
    """Read a status body of either dialect."""
    if not isinstance(body, dict):
        raise CrewProtocolError(f"GET /status gave {type(body).__name__} instead of an object")
    word, live = _word(body), speaks_live(body)
    found = _state(word, live)
    if found is None:
        _tell_once(word, body, mask)
    state = found or S.RUNNING
    common: Json = {"kickoff_id": kickoff_id, "state": state, "raw_state": word, "raw": body} | _progress(body, mask)
    common["state_is_known"] = found is not None
    more = {S.COMPLETED: _completed, S.PENDING: _pending, S.ERROR: _failed}.get(state)
    return Execution(**common, **(more(body, live, mask) if more else {}))


def _usage_beside(given: Any) -> Json | None:
    """Read the usage that came beside a body: the text of a header, or an object; None where it is neither."""
    found = json_object_in(given) if isinstance(given, str) else given
    return found if isinstance(found, dict) and is_kept(found) else None


def _with_masked_names(usage: Json, mask: Mask) -> Json:
    """Mask the names of models, which messages quote."""
    models = usage.get("by_model")
    if not isinstance(models, dict):
        return usage
    return {**usage, "by_model": {mask(name): used for name, used in models.items()}}


def _word(body: Json) -> str:
    word = text_or_none(body.get("state")) or text_or_none(body.get("status"))
    if not word:
        raise CrewProtocolError("GET /status gave neither a 'state' nor a 'status' that is a word")
    return word


def _state(word: str, live: bool) -> ExecutionState | None:
    """Look a word up; ``pending`` is a queue in the live dialect and a person in the specification's."""
    plain = re.sub(r"[\s-]+", "_", word.strip().lower())
    if plain == "pending":
        return S.RUNNING if live else S.PENDING
    if plain.startswith("waiting_for_human"):
        return S.PENDING
    return WORDS.get(plain)


def _tell_once(word: str, body: Json, mask: Mask) -> None:
    if word in _unknown_words or len(_unknown_words) >= 100:
        return
    _unknown_words.add(word)
    shown = mask(json.dumps(body))[:1000]
    log.warning(
        "The crew service gave a state that is not known, %r; taken as in progress: %s",
        mask(word)[:100],
        shown,
    )


def _progress(body: Json, mask: Mask) -> Json:
    given = body.get("progress")
    progress: Json = given if isinstance(given, dict) else {}
    return {
        "current_task": mask(text_or_none(body.get("current_task")) or text_or_none(progress.get("current")) or "")
        or None,
        "completed_tasks": _count(progress, "completed_tasks", "completed"),
        "total_tasks": _count(progress, "total_tasks", "total"),
    }


def _completed(body: Json, live: bool, mask: Mask) -> Json:
    text, found = _result(body, live)
    result = body["result"] if isinstance(body.get("result"), dict) else {}
    usage = _typed(body, "usage_metrics", dict)
    return {
        "output": text,
        **object_fields(found if found is not None else json_object_in(text)),
        "tasks": tuple(_task(task) for task in _typed(result, "tasks", list) or ()),
        "execution_time": _seconds(body),
        "usage": usage if is_kept(usage) else None,
    }


def _result(body: Json, live: bool) -> tuple[str, Json | None]:
    """Return text and object of a result: `result_json`, then `result`, then the last task's output."""
    found = _typed(body, "result_json", dict)
    result = _typed(body, "result", str, dict)
    if isinstance(result, dict):
        result = _typed(result, "output", str)
    if result is None and found is not None:
        result = json.dumps(found, ensure_ascii=False)
    if result is None:
        last = _typed(body, "last_executed_task", dict) or {}
        result = _typed(last, "output", str)
    if result is None and live and "result" in body and body["result"] is None:
        result = ""  # a flow that returns nothing succeeds so on a live deployment
    if result is None:
        raise CrewProtocolError(f"GET /status says {_word(body)!r} but gives no result")
    return result, found


def _task(task: Any) -> TaskResult:
    if not isinstance(task, dict):
        raise CrewProtocolError("GET /status gave a task result that is not an object")
    return TaskResult(
        task_id=_typed(task, "task_id", str),
        agent=_typed(task, "agent", str),
        output=_typed(task, "output", str),
        execution_time=_seconds(task),
    )


def _pending(body: Json, live: bool, mask: Mask) -> Json:
    draft = text_or_none(body.get("task_output"))
    if draft is None and isinstance(body.get("last_executed_task"), dict):
        draft = text_or_none(body["last_executed_task"].get("output"))
    task_id = text_or_none(body.get("task_id"))
    if not live:
        task_id = task_id or text_or_none(body.get("current_task"))
    draft_fields = {"crew_task_id": task_id or None, "output": draft, **object_fields(json_object_in(draft))}
    return draft_fields | _asked_by_flow(body)


def _asked_by_flow(body: Json) -> Json:
    """Read what a Flow asks (observed Flows, the pause)."""
    given = body.get("outcomes")
    outcomes = [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
    return {
        "question": text_or_none(body.get("question")),
        "outcomes": outcomes,
        "flow_id": text_or_none(body.get("flow_id")),
    }


def _failed(body: Json, live: bool, mask: Mask) -> Json:
    said = (body.get("error"), body.get("status") if live else None, body.get("message"))
    error = next((mask(text) for text in said if isinstance(text, str) and text), None)
    seconds = body.get("execution_time")
    return {
        "error": error or "the service gave no reason",
        "execution_time": seconds if is_number(seconds) else None,
    }


def object_fields(found: Json | None) -> Json:
    """Return the fields of an `Execution` for the object that its output is, if it is one."""
    return {"output_json": found, "object_is_kept": is_kept(found)}


def json_object_in(text: str | None) -> Json | None:
    """Return the object that a string is as a whole, a code fence around it removed; None if it is not one."""
    if text is None or not without_fence(text).startswith("{"):
        return None
    try:
        value = json_in(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_in(text: str) -> Any:
    """Return the JSON value that a string is as a whole, a code fence around it removed.

    :raises ValueError: it is none; of a very deep one a RecursionError
    """
    return storable(json.loads(without_fence(text), parse_constant=_refuse_constant, parse_float=finite))


def without_fence(text: str) -> str:
    """Return a string without the code fence and the white space around it."""
    plain = text.strip()
    begins = _FENCE_BEGINS.match(plain) if plain.endswith(_FENCE) else None
    if begins is None or begins.end() > len(plain) - len(_FENCE):
        return plain
    return plain[begins.end() : -len(_FENCE)].strip()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def text_or_none(value: Any) -> str | None:
    """Return a value that is a string, else None."""
    return value if isinstance(value, str) else None


def _typed(body: Json, name: str, *types: type) -> Any:
    value = body.get(name)
    if value is None or isinstance(value, types):
        return value
    wanted = " or ".join(each.__name__ for each in types)
    raise CrewProtocolError(f"GET /status gave {type(value).__name__} as {name!r}, not {wanted}")


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(body: Json) -> float | None:
    value = body.get("execution_time")
    if value is None or is_number(value):
        return value if is_kept(value) else None
    raise CrewProtocolError(f"GET /status gave {type(value).__name__} as 'execution_time', not a number")


def _count(progress: Any, *names: str) -> int | None:
    values = (progress.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
