"""Converts a task's output between CrewAI's object and the stored JSON, and writes the output file."""

from __future__ import annotations

import errno
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from crewai import Task, TaskOutput
from pydantic import BaseModel, ValidationError

from crew_service.crewai import artifacts, codec, flow_values, output_files, points
from crew_service.crewai.internals import crew_tasks
from crew_service.engine.crew import CrewFailed
from crew_service.engine.crew import TaskOutput as StoredOutput
from crew_service.engine.drafts import json_object_in
from crew_service.storage.json_values import tidy

STRUCTURED = frozenset(("pydantic", "json_dict"))  # kept only if their JSON would not give the same
# Prompts and results of tools; of these, later tasks need only what is in a cache (see `tool_caches`). And what CrewAI
# computes.
LEFT_OUT = frozenset(("messages", "summary"))
LONGEST_KEPT = 8 * 1024 * 1024  # characters per field; each process receives those of all finished tasks
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

log = logging.getLogger(__name__)


def stored(task_id: str, task: Task, output: TaskOutput, seconds: float) -> StoredOutput:
    result: StoredOutput = {
        "task_id": task_id,
        "agent": output.agent.strip(),
        "output": output.raw,
        "execution_time": round(seconds, 3),
        "name": task_id,
        "description": output.description,
        "expected_output": output.expected_output or "",
        "summary": output.summary or "",
    }
    data = tidy(structured(output))  # as it will be stored
    if data is not None:
        result["output_json"] = data
    if point := _kept(output, data, _texts(task, result)):
        result["point"] = point
    return result


def of_value(task_id: str, agent: str, value: Any, seconds: float, *, description: str = "") -> StoredOutput:
    """Return what is stored of a Flow's method, or of an agent without a crew, that returned this value."""
    text = flow_values.text(value)
    record: StoredOutput = {
        "task_id": task_id,
        "agent": agent,
        "output": text,
        "execution_time": seconds,
        "name": task_id,
        "description": description,
        "expected_output": "",
        "summary": text[:80],
    }
    data = None if isinstance(value, str) else flow_values.json_object(value)
    return record if data is None else {**record, "output_json": data}


def _texts(task: Task, output: StoredOutput) -> dict[str, Any]:
    """Return the fields of CrewAI's object that other keys of a stored output usually determine."""
    return {
        "name": task.name or output.get("description"),
        "description": output.get("description", ""),
        "expected_output": output.get("expected_output"),
        "raw": output["output"],
        "agent": output["agent"],
        "output_format": _format(task),
    }


def _kept(output: TaskOutput, data: Any, texts: dict[str, Any]) -> dict[str, str]:
    """Encode the fields that only later processes of the crew need, e.g. an object that its JSON does not restore."""
    fields = {}
    for name in sorted(TaskOutput.model_fields.keys() - LEFT_OUT):
        value = getattr(output, name)
        if value == texts[name] if name in texts else not value or _follows(name, output, data):
            continue
        try:
            fields[name] = codec.encoded(value)
            if len(fields[name]) > LONGEST_KEPT:
                raise codec.NotStorable(value, f"takes more than {LONGEST_KEPT >> 20} MiB")
        except codec.NotStorable as error:
            fields.pop(name, None)
            fields[points.LOST] = f"{error.place!r} in its field {name!r}" if error.place else f"its field {name!r}"
            fields[points.LOST] += f" ({error.kind}) {error.reason or 'cannot be stored'}"
    return fields


def _follows(name: str, output: TaskOutput, data: Any) -> bool:
    """Return whether a field is restored from the stored JSON."""
    is_format = name == "pydantic" or output.output_format == "json"
    return name in STRUCTURED and is_format and codec.is_in_json(getattr(output, name), data)


def structured(output: Any) -> dict[str, Any] | None:
    """Return the structured output of a crew or task; None if it has no output model."""
    if output.json_dict is not None:
        return dict(codec.shown(output.json_dict))
    return None if output.pydantic is None else codec.shown(output.pydantic)


def edited(task: Task, output: StoredOutput, approved: str) -> StoredOutput:
    """Return the output with the approved text, which must fit the task's model if a person has edited it."""
    if approved == output["output"]:
        return output
    changed: StoredOutput = {**output, "output": approved}
    if "output_json" in output:
        changed["output_json"] = json_object_in(approved)
        if changed["output_json"] is None:
            raise CrewFailed("The approved output must be a JSON object: the task has an output model.")
        _check(task.output_pydantic, changed["output_json"])
    if point := points.of(output):
        changed["point"] = {name: text for name, text in point.items() if name not in STRUCTURED}
    return changed


def restored(task: Task, output: StoredOutput) -> TaskOutput:
    """Recreate CrewAI's object; this never fails, because the crew has accepted the output before."""
    data, model = output.get("output_json"), task.output_pydantic
    result = TaskOutput(**_texts(task, output), json_dict=data if task.output_json else None)
    point = points.of(output)
    for name in TaskOutput.model_fields.keys() & point.keys():
        with suppress(Exception):  # its class may be gone
            setattr(result, name, codec.decoded(point[name]))
    if result.pydantic is None and model and data is not None:
        result.pydantic = codec.of_json(model, data, json_object_in(output["output"]))
    return result


def edit_problem(task: Task, output: StoredOutput, text: str) -> str | None:
    """Return why `text` cannot be a waiting task's output, worded as the end of a sentence; None if it can."""
    try:
        result = restored(task, edited(task, output, text))
        _check(task.output_json, result.json_dict)
    except CrewFailed as failure:
        return f"its task cannot accept it. {failure}"
    for guardrail in crew_tasks.guardrails_of(task):
        try:
            passes, reason = guardrail(result)
        except Exception as error:
            return f"the guardrail of its task failed with {type(error).__name__}: {error}"
        if not passes:
            return f"the guardrail of its task rejects it: {reason}"
    return None


def save(task: Task, output: TaskOutput, path: str | None) -> None:
    """Write a task's output file as CrewAI would, and keep it and the task's artifact.

    A file in a project that a unit or a container makes read-only is only kept.

    :param path: of the output file; None writes none
    """
    content = _content(output)
    if path:
        place = Path(path).expanduser()
        is_kept = output_files.keep(str(place), content)
        try:
            if task.create_directory:
                place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content, encoding="utf-8")
        except OSError as error:
            if not is_kept or error.errno not in READ_ONLY or not place.resolve().is_relative_to(Path.cwd()):
                raise
            log.warning("%s is only among the execution's files: %s", path, error.strerror)
            task.output_file = None  # CrewAI would try again, and fail
    artifacts.keep(task, content)


def check_path(declared: str, path: str) -> None:
    """Reject a path if the inputs place it outside the folder declared by the crew (default: the working directory)."""
    folder = Path(f"{declared.partition('{')[0]}_").parent.resolve()
    if not Path(path).expanduser().resolve().is_relative_to(folder):
        raise CrewFailed(f"The inputs place the output_file {declared!r} outside its folder; no task was run.")


def _content(output: TaskOutput) -> str:
    if output.json_dict:
        return json.dumps(output.json_dict, ensure_ascii=False, indent=2)
    return output.pydantic.model_dump_json() if output.pydantic else output.raw


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the object'}: {first['msg']}"


def _check(model: type[BaseModel] | None, data: Any) -> None:
    if model is None or data is None:
        return
    try:
        model.model_validate(data)
    except ValidationError as error:
        raise CrewFailed(f"The approved output does not fit the model of its task: {_first(error)}.") from None


def _format(task: Task) -> Any:
    return "json" if task.output_json else "pydantic" if task.output_pydantic else "raw"
