"""Where large outputs go instead of into XCom: a file or an object, by its path."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, XComArg

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Execution, Json

NAME = "output_to"


def given_path(path: Any) -> Any:
    """Return a path as a DAG gives it, as text; a template and an XCom are rendered later.

    :raises CrewInvalidInput: it can be none
    """
    if path is None or isinstance(path, XComArg):
        return path
    is_path = isinstance(path, str) or hasattr(path, "__fspath__") or hasattr(path, "protocol")
    if is_path and str(path).strip():
        return str(path)
    raise CrewInvalidInput(f"{NAME} is the path of a file or an object, not {path!r}")


def refuse_unusable(path: Any) -> None:
    """Fail before a crew is started or waited for where no storage can be opened at that path.

    :raises CrewInvalidInput: what was rendered is no path of a file
    """
    if not isinstance(path, str) or not path.strip() or path.endswith("/"):
        raise CrewInvalidInput(f"{NAME} was rendered to {path!r}, which is no path of a file or an object")
    try:
        _opened(path)
    except Exception as error:
        raise AirflowException(f"{NAME} {path!r} cannot be opened: {type(error).__name__}: {error}") from error


def stored(path: str, execution: Execution, output: Any) -> Json:
    """Write the output, a text as it is and all else as JSON; return the fields of the record that this changes.

    The outputs of the crew's tasks leave the record too: the last of them is mostly the same text once more.
    """
    try:
        _write(_opened(path), output if isinstance(output, str) else json.dumps(output, ensure_ascii=False))
    except Exception as error:  # each storage raises errors of its own
        raise AirflowException(
            f"The output of execution {execution.kickoff_id} could not be written to {path}: {type(error).__name__}: "
            f"{error}. The execution is completed and its output stays at the service; a retry of this task fetches "
            "and writes it again"
        ) from error
    tasks = [asdict(replace(task, output=None)) for task in execution.tasks]
    return {"output": None, "output_path": path, "tasks": tasks}


def _opened(path: str) -> Any:
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    found = ObjectStoragePath(path)
    found.fs  # noqa: B018  looks the connection and the provider of the storage up
    return found


def _write(path: Any, text: str) -> None:
    if path.protocol in ("file", "local", ""):
        path.parent.mkdir(parents=True, exist_ok=True)  # of object stores it would create the bucket
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
