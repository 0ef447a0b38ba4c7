"""The files that a crew has written: in the completed record, and copied to a folder of object storage.

A copy is streamed and hashed on the way, and appears under its name only when it is complete and equals what the
service lists. A retry copies again: the same bytes to the same place.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from airflow.providers.common.compat.sdk import XComArg

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import RENDERED_NONE
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.exceptions import CrewApiError, CrewError, CrewInvalidInput
from airflow_crew_provider.models import Execution, Json, WrittenFile, reason, shortened, shown
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

log = logging.getLogger(__name__)

OUTPUT_TO, FILES_TO = "output_to", "files_to"
KIND = {OUTPUT_TO: "a file or an object", FILES_TO: "a folder"}
LISTED = 50  # in a completed record
SHOWN_WITH_QUESTION = 20
FIELDS = ("name", "version", "size", "sha256", "content_type", "task_id")  # of each
LOCAL = ("file", "local", "")


class CrewStorageUnavailable(CrewError):
    """The storage for an output or for files cannot be opened; a retry opens it again."""


def as_text(path: Any) -> Any:
    """Return a path object from a DAG as a string, and anything else unchanged."""
    return str(path) if hasattr(path, "__fspath__") or hasattr(path, "protocol") else path


def given_path(name: str, path: Any) -> Any:
    """Return a path from a DAG as a string; templates and XComs are rendered later.

    :param name: the name of the parameter
    :raises CrewInvalidInput: it cannot be a path
    """
    if path is None or isinstance(path, XComArg):
        return path
    text = as_text(path)
    if isinstance(text, str) and text.strip():
        return text
    raise CrewInvalidInput(f"{name} must be the path of {KIND[name]}, not {shown(path)}")


def refuse_unusable(name: str, path: Any) -> None:
    """Fail, before a crew is started or waited for, if the storage for a rendered path cannot be opened.

    :param name: the name of the parameter
    :raises CrewInvalidInput: it did not render to such a path
    :raises CrewStorageUnavailable: its storage cannot be opened
    """
    is_missing = not isinstance(path, str) or path.strip() in ("", RENDERED_NONE)
    if is_missing or (name == OUTPUT_TO and path.endswith("/")):
        raise CrewInvalidInput(f"{name} was rendered as {shown(path)}, which is not the path of {KIND[name]}")
    try:
        opened(path)
    except Exception as error:  # each storage raises its own errors
        raise CrewStorageUnavailable(f"{name} {shown(path)} cannot be opened: {reason(error)}") from error


def written(hook: ConnectedCrew, execution: Execution, folder: str | None) -> Json:
    """Return a completed record's fields for the crew's files, after copying them; empty if the service lists none.

    :param folder: where to copy them; None copies nothing
    :raises CrewTaskFailed: the service lists no files, or one with an unusable name
    """
    files = _listed(hook, execution, is_needed=folder is not None)
    if files is None:
        return {}
    final = [file for file in files if not file.is_draft]
    copied = [(file, folder and _copied(hook, execution.kickoff_id, file, folder)) for file in _newest(final)]
    listed = [{**_fields(file), "path": path} for file, path in copied[:LISTED]]
    return {"files": listed, **({"files_left_out": len(copied) - LISTED} if len(copied) > LISTED else {})}


def of_question(hook: ConnectedCrew, execution: Execution) -> list[Json]:
    """Return the files to show with an execution's open question, with their addresses; empty if there are none."""
    try:
        files = hook.client.send(endpoints.files_of_question(execution.kickoff_id))
    except CrewError as error:
        log.warning("The question of execution %s is shown without its files: %s", execution.kickoff_id, error)
        return []
    newest = _newest(files)[:SHOWN_WITH_QUESTION]
    return [{**_fields(file), "name": hook.mask(file.name), "url": hook.connection.page(file.view)} for file in newest]


def _fields(file: WrittenFile) -> Json:
    return {name: getattr(file, name) for name in FIELDS}


def _listed(hook: ConnectedCrew, execution: Execution, *, is_needed: bool) -> list[WrittenFile] | None:
    if not (is_needed or execution.has_details):
        return None
    try:
        return hook.client.send(endpoints.written_files(execution.kickoff_id))
    except CrewApiError as error:
        refused: CrewError = error
        lists_none = error.status_code in endpoints.NOT_OFFERED
    except CrewError as error:
        refused, lists_none = error, False
    if not is_needed:
        log.warning("The files of execution %s are not in the record: %s", execution.kickoff_id, refused)
        return None
    message = f"The files of execution {execution.kickoff_id} were not copied"
    fate = "The execution has completed, and its output is still available from the service"
    if lists_none:
        raise CrewTaskFailed(f"{message}: this deployment lists no files, so {FILES_TO} cannot be used. {fate}")
    raise CrewTryFailed(f"{message}: {refused}. {fate}", "A retry of this task copies them") from refused


def _newest(files: list[WrittenFile]) -> list[WrittenFile]:
    """Return the newest version of each file, in the service's order, the newest first.

    Of a file and a folder with one name, only the newer one counts, as when the service lays them out.
    """
    newest: dict[str, WrittenFile] = {}
    for file in files:
        if file.name not in newest or newest[file.name].version < file.version:
            newest[file.name] = file
    by_name: dict[str, WrittenFile] = {}
    folders: set[str] = set()
    for name, file in newest.items():
        above = {name[:place] for place, letter in enumerate(name) if letter == "/"}
        if name not in folders and not above & by_name.keys():
            by_name[name] = file
            folders |= above
    return list(by_name.values())


def _copied(hook: ConnectedCrew, execution_id: str, file: WrittenFile, folder: str) -> str:
    """Copy a file into the folder and return its path."""
    parts = file.name.split("/")
    if {"", ".", ".."} & set(parts) or "\\" in file.name or not file.name.isprintable():
        raise CrewTaskFailed(
            f"Execution {execution_id} has a file named {shown(file.name)}, which is not a relative path; no more of "
            "its files are copied"
        )
    path = f"{folder.rstrip('/')}/{file.name}"
    digest, size = hashlib.sha256(), 0

    def take(piece: bytes) -> None:
        nonlocal size
        target.write(piece)
        digest.update(piece)
        size += len(piece)

    try:
        with _target(folder, file.name) as target:
            hook.client.send(endpoints.written_file(execution_id, file), sink=take)
            if (digest.hexdigest(), size) != (file.sha256, file.size):
                raise OSError("it arrived damaged")
    except Exception as error:  # each storage raises its own errors
        raise CrewTryFailed(
            f"File {shown(file.name)} of execution {execution_id} could not be copied to {shortened(path)}: "
            f"{reason(error)}. The execution has completed",
            "A retry of this task copies them",
        ) from error
    return path


@contextmanager
def _target(folder: str, name: str) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name at the end of the block, unless that raises.

    Only the folder is read as an address: in a name, `::` and `?` are letters.
    """
    place = opened(folder)
    path = f"{place.path.rstrip('/')}/{name}"
    if place.protocol in LOCAL:
        local = Path(path)
        local.parent.mkdir(parents=True, exist_ok=True)
        hidden = local.with_name(f".{uuid.uuid4().hex}.part")
        try:
            with hidden.open("wb") as target:
                yield target
            os.replace(hidden, local)
        finally:
            with suppress(FileNotFoundError):
                hidden.unlink()
        return
    with place.fs.transaction, place.fs.open(path, "wb") as target:
        yield target


def opened(path: str) -> Any:
    """Return a path of object storage, after looking up the storage's connection and provider."""
    from airflow.providers.common.compat.sdk import ObjectStoragePath

    storage = ObjectStoragePath(path)
    storage.fs  # noqa: B018  does the look-up
    return storage
