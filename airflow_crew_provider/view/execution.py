"""The known facts about an execution, in one shape for every deployment. Pure functions.

The shape is that of ``GET /executions/{id}``. For a deployment with only the specified endpoints, less is known: the
execution's status, and the data that reviews in Airflow have stored about its drafts.

All data from a deployment or an XCom is put into this shape once, before anything is rendered: each field gets the type
that the page expects, or None. A draft is checked against its hash, then secrets are masked, then texts are truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.endpoints import read_file
from airflow_crew_provider.api.responses import Mask, unmasked
from airflow_crew_provider.api.status import is_count, is_number, text_or_none
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import (
    CHAIN,
    OVER,
    Execution,
    ExecutionState,
    Json,
    WrittenFile,
    output_sha256,
    reported,
)
from airflow_crew_provider.questions import question_in
from airflow_crew_provider.questions.drafts import text_of
from airflow_crew_provider.stored_names import AUTO_APPROVED, BY_SCHEMA, NOT_SHOWN, SCHEMA_REVISION

LONGEST = 60_000  # characters kept from each text
LONGEST_NAME = 200
LONGEST_OF_TASK = 10_000
LONGEST_OF_STEP = 2_048
MOST_STEPS = 50  # across all tasks
MOST_TASKS, MOST_ROUNDS, MOST_INPUTS, MOST_APPROVALS, MOST_LEFT_OUT = 200, 30, 100, 20, 20
MOST_FILES, MOST_PICTURES = 50, 12
PICTURES = ("image/png", "image/jpeg", "image/webp")
LARGEST_PICTURE = 1024 * 1024  # bytes
LONGEST_ADDRESS = 1_000
LONGEST_VALUE, AROUND_VALUE, DEEPEST = 100_000, 8, 20  # characters and levels of an object from users or crews
HIGHEST_NUMBER = 1e15
OF_ANOTHER_DAG = (
    "According to the deployment, another DAG started it. Anyone with access to that DAG can find the execution there."
)
OF_UNKNOWN_DAG = (
    "This run only polls the execution, and the deployment does not report which DAG started it. The execution is "
    "polled again while this page is open."
)
NO_DAG = ""  # stands in for the id if no DAG started the execution
# Facts that a status does not contain, as the end of a sentence about the deployment.
UNTOLD = ("the inputs", "when each task ran", "what each task used")
# How a draft compares with the hash of the draft that was decided on.
SAME, CUT, ANOTHER = "same", "cut", "another"

_NAMES = dict.fromkeys
_EXECUTION = {
    **_NAMES(("state", "crew", "created_at", "ended_at", "current_task", "continued_from"), LONGEST_NAME),
    "error": LONGEST,
}
_TASK = _NAMES(("state", "task_id", "name", "agent", "started_at"), LONGEST_NAME) | {"output": LONGEST_OF_TASK}
_STEP = {
    **_NAMES(("kind", "name", "agent", "state", "started_at"), LONGEST_NAME),
    **_NAMES(("arguments", "result"), LONGEST_OF_STEP),
}
_ROUND = {
    **_NAMES(("task_id", "asked_at", "decided_at", "outcome", "by", "output_sha256"), LONGEST_NAME),
    **_NAMES(("question", "human_feedback"), LONGEST_OF_TASK),
}
_DECISION = {
    **_NAMES(("crew_task_id", "decided_at", "outcome", "output_sha256", SCHEMA_REVISION), LONGEST_NAME),
    "human_feedback": LONGEST_OF_TASK,
}


@dataclass(frozen=True)
class Target:
    """The execution to look up, and where; `kickoff_id` is the id to poll, which a resume may change.

    Lookups with the same fields are shared.
    """

    crew_conn_id: str
    execution_id: str
    kickoff_id: str
    view: str | None = None


@dataclass(frozen=True)
class Seen:
    """The result of the last lookup of an execution.

    :param found: None if nothing is known yet
    :param problem: why the last lookup failed; `found` is then older
    :param has_details: whether the deployment is known to have details, even if it currently refuses to return them
    :param is_refused: whether it just refused to return them; the next lookup requests the status, then the details
    :param started_by: the DAG that started the execution, or `NO_DAG`, from the details; None without them
    :param is_elsewhere: whether the problem is that the execution may belong to another DAG
    :param mask: masks the connection's secrets in text that people wrote about the execution
    """

    found: Json | None = None
    problem: str = ""
    etag: str | None = field(default=None, compare=False)
    has_details: bool = field(default=False, compare=False)
    is_refused: bool = field(default=False, compare=False)
    started_by: str | None = field(default=None, compare=False)
    link: str = ""
    is_elsewhere: bool = False
    mask: Mask = field(default=unmasked, repr=False, compare=False)

    @property
    def is_final(self) -> bool:
        """Whether the execution has ended, so that no more lookups are needed."""
        state, unknown = (self.found["state"], self.found["unknown"]) if self.found else ("", [])
        return not self.problem and state in OVER and not (self.has_details and unknown)

    def failed(self, problem: str) -> Seen:
        """Return what is known after a failed lookup."""
        return replace(self, problem=problem)


def of_dag(execution: Seen | None, dag_id: str, *, is_own: bool) -> Seen | None:
    """Return what was found, unless another DAG started the execution or, judging by the details, may have started it.

    A task may wait for any execution that its DAG names, but only people who may see the DAG that started the execution
    may see it.

    :param is_own: whether the DAG run started the polled execution
    """
    if execution is None or not execution.found or execution.started_by in (dag_id, NO_DAG):
        return execution
    if execution.started_by is not None:
        return Seen(problem=OF_ANOTHER_DAG, is_elsewhere=True)
    return execution if is_own or not execution.has_details else Seen(problem=OF_UNKNOWN_DAG, is_elsewhere=True)


def origin(details: Json, target: Target) -> str | None:
    """Return the DAG that started the polled execution, `NO_DAG` if none did, None if unknown."""
    meta, left_out = details.get("meta", ...), details.get("left_out", [])
    if target.kickoff_id not in (target.execution_id, *_listed(details, "kickoff_ids", str)):
        return None
    if meta is None:
        return NO_DAG if isinstance(left_out, list) and "meta" not in left_out else None
    if not isinstance(meta, dict):
        return None
    named = meta.get("airflow")
    dag_id = named.get("dag_id") if isinstance(named, dict) else None
    return NO_DAG if named is None else text_or_none(dag_id) or None


def of_details(
    body: Json,
    mask: Mask = unmasked,
    hide: Callable[[Json], Any] = lambda inputs: inputs,
    page: Callable[[str | None], str] = lambda path: "",
) -> Json:
    """Return details in the shape that pages use.

    :param mask: hides secrets in text
    :param hide: returns the inputs without values whose names suggest secrets
    :param page: returns the URL of a page that the service has named
    """
    inputs = _object(body, "inputs") or {}
    visible = {name: inputs[name] for name in list(inputs)[:MOST_INPUTS]}
    details = _shaped(body, {**_EXECUTION, "output": LONGEST}, mask)
    return {
        **details,
        **_counts(body),
        "state": details["state"] or "",
        "work_seconds": _number(body, "work_seconds"),
        "usage": _usage(body),
        CHAIN: _usage(body, CHAIN),
        "output_json": _bounded(_object(body, "output_json"), mask),
        "inputs": _bounded(hide(visible), mask),
        "more_inputs": len(inputs) - len(visible),
        "tasks": _with_few_steps([_task(task, mask) for task in _listed(body, "tasks", dict)[-MOST_TASKS:]]),
        "rounds": [_round(each, mask) for each in _listed(body, "rounds", dict)[-MOST_ROUNDS:]],
        "files": _files(_listed(body, "files", dict)[:MOST_FILES], mask, page),
        "left_out": [_cut(mask(each), LONGEST_NAME) for each in _listed(body, "left_out", str)[:MOST_LEFT_OUT]],
        "unknown": [],
    }


def of_status(execution: Execution, mask: Mask = unmasked) -> Json:
    """Return the result of one poll in the same shape as details."""
    state = execution.state
    is_completed = state is ExecutionState.COMPLETED
    rounds = [_asked(execution)] if state is ExecutionState.PENDING and execution.output is not None else []
    details: Json = {
        "state": str(state),
        "usage": execution.usage,
        CHAIN: _object(execution.usage or {}, CHAIN),
        "work_seconds": execution.execution_time,
        "error": execution.error,
        "output": execution.output if is_completed else None,
        "output_json": execution.output_json if is_completed else None,
        "tasks": [_finished(task) for task in execution.tasks],
        "rounds": rounds,
        "current_task": execution.current_task or (execution.crew_task_id if rounds else None),
        "completed_tasks": execution.completed_tasks,
        "total_tasks": execution.total_tasks,
    }
    return {**of_details(details, mask), "unknown": list(UNTOLD)}


def with_decisions(details: Json, decisions: Sequence[Json], mask: Mask = unmasked) -> Json:
    """Add the reviews' records in Airflow to what is known: who decided, and the draft.

    A draft that does not match the decision's hash is replaced by the draft that the review stored.
    """
    rounds = [dict(each) for each in details["rounds"]]
    for number, row in enumerate(decisions, 1):
        decision = _decision(row, mask)
        mine = [each for each in rounds if each["output_sha256"] == decision["output_sha256"]]
        # A draft that comes back unchanged counts as another round; both lists have the same order.
        open_ones = [each for each in mine if not each["by_airflow"] and not _contradicts(each, decision)]
        if open_ones:
            question = open_ones[0]
            source = question if question["text"] == SAME or decision["draft"] is None else decision
            question |= {**_decided(question, decision), **_draft_of(source)}
        elif not mine:
            unasked = _round({"task_id": decision["crew_task_id"], "number": number}, mask)
            rounds.append({**_decided(unasked, decision), **_draft_of(decision)})
    if any(each["number"] is None for each in rounds):
        # The status contains only the waiting draft, which comes last.
        rounds.sort(key=lambda each: (not each["by_airflow"], each["decided_at"] or ""))
        rounds = [{**each, "number": number} for number, each in enumerate(rounds, 1)]
    visible = [{**each, "draft": None} if each["text"] == ANOTHER else each for each in rounds]
    return {**details, "rounds": visible[-MOST_ROUNDS:]}


def progress(details: Json) -> tuple[int, int] | None:
    """Return how many tasks are done and how many there are; None if unknown."""
    states = [task.get("state") for task in details["tasks"]]
    counted = details.get("completed_tasks"), details.get("total_tasks")
    done, total = counted if counted[1] is not None else (states.count("completed"), len(states))
    if done is None or not total:
        return None
    return min(done, total), total


# --- drafts and decisions ---


def _round(body: Json, mask: Mask) -> Json:
    draft = text_or_none(body.get("draft"))
    named = text_or_none(body.get("output_sha256"))
    computed = None if draft is None else output_sha256(draft)
    fields = _shaped(body, _ROUND, mask)
    return {
        **fields,
        **_ask(body, mask),
        **_text(draft, mask, _compared(computed, named or computed, arrived_cut=body.get("cut") is True)),
        "output_sha256": named or computed,
        "number": _count(body, "number"),
        **{name: _flag(body, name) for name in ("is_approve", "edited")},
        "who": fields["by"] or "",
        "approvals": [],
        "by_airflow": False,
    }


def _decision(body: Json, mask: Mask) -> Json:
    draft = body.get("output")
    fields = _shaped(body, _DECISION, mask)
    named = (text_or_none(body.get("output_sha256")), text_or_none(body.get("object_sha256")))
    computed = output_sha256(draft) if isinstance(draft, str | dict) else None
    same = computed if computed in named else named[0]
    return {
        **fields,
        **_ask(body, mask),
        "by_rule": bool(body.get(AUTO_APPROVED)),
        "unseen": body.get(NOT_SHOWN) is True,
        **_text(None if draft is None else text_of(draft), mask, _compared(computed, same, arrived_cut=True)),
        "is_approve": _flag(body, "is_approve"),
        "edited": bool(body.get("edited_output")),
        "who": _person(body, mask),
        "approvals": [_approval(each, mask) for each in _listed(body, "approvals", dict)[:MOST_APPROVALS]],
    }


def _contradicts(question: Json, decision: Json) -> bool:
    """Whether the deployment reports a different decision; if so, it did not accept the answer from Airflow."""
    pairs = ((question[name], decision[name]) for name in ("is_approve", "outcome"))
    return question["decided_at"] is not None and any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _decided(question: Json, decision: Json) -> Json:
    """Return a round with Airflow's decision instead of the deployment's."""
    taken = ("output_sha256", "is_approve", "human_feedback", "who", "approvals")
    return {
        **question,
        **{name: decision[name] for name in taken},
        "decided_at": question["decided_at"] or decision["decided_at"],
        "outcome": decision["outcome"] or question["outcome"],
        "asks": question["asks"] or decision["asks"],
        "edited": decision["edited"] or question["edited"],
        "by": _reason(decision),
        "by_airflow": True,
    }


def _reason(decision: Json) -> str:
    """Return how a decision was made without human involvement, as the end of a sentence."""
    if decision["unseen"]:
        return "because it could not be shown in full"
    if decision["by_rule"]:
        return "by auto_approve"
    return "by the schema" if decision[SCHEMA_REVISION] == BY_SCHEMA else "at the deadline"


def _compared(computed: str | None, named: str | None, *, arrived_cut: bool) -> str:
    return SAME if computed == named else CUT if arrived_cut else ANOTHER


def _text(draft: str | None, mask: Mask, compared: str) -> Json:
    text = None if draft is None else mask(draft)
    return {"draft": _cut(text, LONGEST), "cut": text is not None and len(text) > LONGEST, "text": compared}


def _draft_of(holder: Json) -> Json:
    return {name: holder[name] for name in ("draft", "cut", "text")}


def _asked(execution: Execution) -> Json:
    about = {"task_id": execution.crew_task_id, "draft": execution.output, "question": execution.question}
    return {**about, "ask": execution.ask}


def _ask(body: Json, mask: Mask) -> Json:
    """Describe in a few words what an agent asks; empty for a draft and for a Flow."""
    question = question_in({"ask": asks.read(body.get("ask"), mask)})
    notes = ". ".join(filter(None, (question.summary, question.about_earlier_calls)))
    return {"asks": notes[:1].upper() + notes[1:]}


def _approval(body: Json, mask: Mask) -> Json:
    return {"who": _person(body, mask), **_shaped(body, {"decided_at": LONGEST_NAME}, mask)}


def _person(body: Json, mask: Mask) -> str:
    reviewer = _shaped(_object(body, "reviewer") or {}, _NAMES(("name", "id"), LONGEST_NAME), mask)
    return reviewer["name"] or reviewer["id"] or ""


# --- fields ---


def _shaped(body: Json, texts: dict[str, int], mask: Mask) -> Json:
    """Return an object's strings, masked and truncated, with None for missing ones, and whether any was truncated."""
    fields = {name: None if (text := text_or_none(body.get(name))) is None else mask(text) for name in texts}
    is_cut = any(text is not None and len(text) > texts[name] for name, text in fields.items())
    return {
        **{name: _cut(text, texts[name]) for name, text in fields.items()},
        "cut": is_cut or body.get("cut") is True,
    }


def _task(body: Json, mask: Mask) -> Json:
    steps = [_step(each, mask) for each in _listed(body, "steps", dict)[-MOST_STEPS:]]
    return {**_shaped(body, _TASK, mask), **_figures(body), "steps": steps}


def _step(body: Json, mask: Mask) -> Json:
    fields = _shaped(body, _STEP, mask)
    return {**fields, **_figures(body), "number": _count(body, "number"), "from_journal": _flag(body, "from_journal")}


def _figures(body: Json) -> Json:
    return {"seconds": _number(body, "seconds"), "usage": _usage(body)}


def _with_few_steps(tasks: list[Json]) -> list[Json]:
    """Keep only the newest steps across all tasks, because a deployment may send more than it should."""
    left = MOST_STEPS
    for task in reversed(tasks):
        task["steps"] = task["steps"][-left:] if left else []
        left -= len(task["steps"])
    return tasks


def _finished(task: Any) -> Json:
    fields = {"task_id": task.task_id, "agent": task.agent, "output": task.output, "seconds": task.execution_time}
    return {**fields, "name": task.task_id, "state": "completed"}


def _files(rows: list[Json], mask: Mask, page: Callable[[str | None], str]) -> list[Json]:
    files: list[Json] = []
    left = MOST_PICTURES
    for each in rows:
        try:
            file = read_file(each)
        except CrewProtocolError:
            continue
        is_picture = left > 0 and file.content_type in PICTURES and 0 < file.size <= LARGEST_PICTURE
        left -= is_picture
        link = page(file.view)
        files.append(
            {
                "name": mask(file.name)[:LONGEST_NAME],
                "task_id": mask(file.task_id or "")[:LONGEST_NAME],
                **{name: getattr(file, name) for name in ("version", "size", "round", "is_draft")},
                "direction": "in" if each.get("direction") == "in" else "out",
                "link": link if link.startswith(("http://", "https://")) and len(link) <= LONGEST_ADDRESS else "",
                "picture": file.sha256 if is_picture else "",
                "file": file,
            }
        )
    return files


def picture_in(details: Json, sha256: str) -> tuple[WrittenFile, str] | None:
    """Return the file of a picture that is shown, and its direction."""
    return next(((each["file"], each["direction"]) for each in details["files"] if each["picture"] == sha256), None)


def _usage(body: Json, name: str = "usage") -> Json:
    used = _object(body, name)
    return {each: reported(used, each) for each in ("total_tokens", "cost_usd")}


def _counts(body: Json) -> Json:
    return {name: _count(body, name) for name in ("completed_tasks", "total_tasks")}


def _count(body: Json, name: str) -> int | None:
    value = body.get(name)
    return value if is_count(value) else None


def _number(body: Json, name: str) -> float | None:
    value = body.get(name)
    return value if is_number(value) and 0 <= value <= HIGHEST_NUMBER else None  # type: ignore[operator]


def _flag(body: Json, name: str) -> bool | None:
    return body[name] if isinstance(body.get(name), bool) else None


def _object(body: Json, name: str) -> Json | None:
    value = body.get(name)
    return value if isinstance(value, dict) else None


def _listed(body: Json, name: str, kind: type) -> list[Any]:
    listed = body.get(name)
    return [each for each in listed if isinstance(each, kind)] if isinstance(listed, list) else []


def _cut(text: Any, most: int) -> Any:
    return text[:most] if isinstance(text, str) else text


def _bounded(value: Any, mask: Mask) -> Any:
    """Return a JSON value with its strings masked and truncated; only part of a large or deep one."""
    left = LONGEST_VALUE

    def text(value: str) -> str:
        nonlocal left
        masked = mask(value)[: max(0, min(left, LONGEST_OF_TASK))]
        left -= len(masked)
        return masked

    def part(value: Any, depth: int) -> Any:
        nonlocal left
        left -= AROUND_VALUE
        if isinstance(value, str):
            return text(value)
        if not isinstance(value, dict | list):
            return value if abs(value or 0) < HIGHEST_NUMBER else str(value)[:LONGEST_NAME]
        if depth == DEEPEST:
            return "…"
        if isinstance(value, list):
            return [part(each, depth + 1) for each in _while_left(value)]
        return {text(str(name))[:LONGEST_NAME]: part(value[name], depth + 1) for name in _while_left(value)}

    def _while_left(values: Iterable[Any]) -> Iterable[Any]:
        for each in values:
            if left <= 0:
                return
            yield each

    return None if value is None else part(value, 0)
