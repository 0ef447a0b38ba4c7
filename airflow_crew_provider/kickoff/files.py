"""Files that a kickoff sends: read and hashed where they are, and uploaded right before the kickoff.

Uploads start nothing and may be repeated; a kickoff may not. So the record of a POST has the address of each file, and
the size and SHA-256 of each that was uploaded for it. A later try that may send the same POST again sends these
addresses, and needs the files no more; a new POST uploads them anew. An uploaded file is part of a request's
fingerprint by its content, another by its address up to the query, which may be a signature that each try renders anew.
"""

from __future__ import annotations

import hashlib
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from airflow.providers.common.compat.sdk import mask_secret

from airflow_crew_provider import exceptions
from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.addresses import query_secrets
from airflow_crew_provider.api.endpoints import Upload
from airflow_crew_provider.api.values import plain_object, value_of
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.models import ExpectedInputs, Json, UploadedFile, listed, reason, shortened, shown
from airflow_crew_provider.wait.files import as_text, opened

FILES = "files"  # added to a POST: the size and hash of each uploaded file, by input name
HTTPS = "https://"
SCHEME = re.compile("^[A-Za-z][A-Za-z0-9+.-]*://")
NOTHING_STARTED = "Nothing was started"
PAUSE = 2.0  # seconds before an upload is repeated, if the service does not say
PIECE = 64 * 1024


def given_files(files: Any) -> Any:
    """Return files from a DAG with paths as strings; templates and XComs are rendered later."""
    if not isinstance(files, Mapping):
        return files
    return {name: as_text(source) for name, source in files.items()}


def with_files_of_function(files: Any, more: Any) -> Any:
    """Return a task's rendered files and those that its function has returned, which win over others of their name."""
    before, more = value_of(files), given_files(more)
    both = isinstance(before, Mapping) and isinstance(more, Mapping)
    return {**before, **more} if both else more or files  # what is no mapping is refused with the others


def mask_queries(files: Any) -> None:
    """Let Airflow mask the queries of rendered web addresses wherever it masks secrets."""
    sources = value_of(files)
    for source in sources.values() if isinstance(sources, Mapping) else ():
        for secret in query_secrets(source) if isinstance(source, str) else ():
            mask_secret(secret)


def checked_files(files: Any, inputs: Json) -> dict[str, str] | None:
    """Return the rendered paths and addresses by input name, with schemes in lower case; None if there are none.

    :raises CrewInvalidInput: a name or a path cannot be used
    """
    sources = {} if files is None else plain_object(value_of(files), FILES)
    mask_queries(sources)  # of a function under `@task.crew`, whose files are not rendered
    for name, source in sources.items():
        if not name.strip():
            raise exceptions.CrewInvalidInput(f"files has an empty name. {NOTHING_STARTED}")
        if name in inputs:
            raise exceptions.CrewInvalidInput(f"{shown(name)} is both in inputs and in files. {NOTHING_STARTED}")
        _refuse_unusable(name, source)
    return {name: SCHEME.sub(lambda scheme: scheme[0].lower(), each) for name, each in sources.items()} or None


def _refuse_unusable(name: str, source: Any) -> None:
    if not isinstance(source, str) or not source.strip():
        problem = "must be a path or an https:// address, given as a string"
    elif source.lower().startswith("http://"):
        problem = "is an http:// address; only https:// is passed on"
    elif not SCHEME.match(source) and not Path(source).is_absolute():
        problem = f"is not an absolute path: {shown(source)}"
    elif any(
        _printable(sent) != sent for sent in (name, source if source.lower().startswith(HTTPS) else Path(source).name)
    ):
        problem = f"has a name that is not UTF-8: {shown(source)}"
    else:
        return
    raise exceptions.CrewInvalidInput(f"files[{shown(name)}] {problem}. {NOTHING_STARTED}")


def _label(name: str, source: str) -> str:
    return f"File {shown(name)} ({_printable(shortened(source))})"


def _printable(text: str) -> str:
    """Return text with escapes for lone surrogates: what Python reads from a path's bytes that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def check_names(files: dict[str, str] | None, expected: ExpectedInputs) -> None:
    """Refuse files that the crew does not take, if the service reports which it takes.

    :raises CrewInvalidInput: a name is not among them
    """
    unknown = [shown(name) for name in files or {} if expected.files and name not in expected.files]
    if unknown:
        raise exceptions.CrewInvalidInput(
            f"The crew takes no file named {listed(unknown)}; it takes {listed(expected.files or [])}. "
            f"{NOTHING_STARTED}"
        )


class KickoffFiles:
    """The files of one task's kickoff; ``addresses``, by input name, are what it sends.

    :param sources: paths and addresses by input name
    :param contents: of the files that were uploaded for the POST on record, from `added`
    :param addresses: of all files of the POST on record; empty if they cannot be opened
    """

    def __init__(
        self, sources: dict[str, str] | None, contents: Json | None = None, addresses: Json | None = None
    ) -> None:
        sources, contents, addresses = sources or {}, contents or {}, addresses or {}
        self._paths = {name: source for name, source in sources.items() if not source.startswith(HTTPS)}
        self._passed_on = {name: source for name, source in sources.items() if source.startswith(HTTPS)}
        # Only these: a name that the DAG no longer uses, or now uses for a web address, must not be sent.
        self._contents: Json = {name: contents[name] for name in self._paths if name in contents}
        kept = {*self._contents, *(self._passed_on.keys() - contents.keys())}
        self.addresses: dict[str, str] = {name: url for name, url in addresses.items() if name in kept}
        self._are_new = False

    @property
    def identity(self) -> Json | None:
        """The files as part of a request's fingerprint; None if there are none."""
        contents = {name: self._contents.get(name) for name in self._paths}
        unsigned = {name: url.partition("?")[0] for name, url in self._passed_on.items()}
        return {**contents, **unsigned} or None

    @property
    def added(self) -> Json:
        """The contents of the uploaded files, as stored with a POST."""
        return {FILES: self._contents} if self._contents else {}

    @property
    def are_on_record(self) -> bool:
        """Whether the POST on record has an address for each file."""
        return not self._are_new and self.addresses.keys() == self._paths.keys() | self._passed_on.keys()

    @property
    def may_be_gone(self) -> bool:
        """Whether the addresses on record may be of no more use, while new ones may."""
        return self.are_on_record and bool(self._paths or self.addresses != self._passed_on)

    def upload(self, hook: ConnectedCrew) -> None:
        """Upload all files, and take the web addresses that are given now.

        :raises CrewFileError: a file cannot be read, or was not taken
        :raises CrewInvalidInput: the deployment takes no files, or none of this size
        """
        files = {name: uploaded(hook, name, source) for name, source in self._paths.items()}
        self._contents = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
        self.addresses = {**self._passed_on, **{name: file.url for name, file in files.items()}}
        self._are_new = True

    def changes(self) -> Iterator[str]:
        """Yield a sentence for each file that is no longer what the POST on record sent."""
        for name, url in self._passed_on.items():
            if self.addresses.get(name, url) != url:
                yield f'The address of file {shown(name)} has changed after its "?"'
        for name, source in self._paths.items():
            sent = self._contents.get(name, {})
            try:
                with _opened(name, source) as content:
                    is_same = content.size == sent.get("size")
                    while is_same and content.read(PIECE):
                        pass
            except exceptions.CrewFileError as error:
                yield str(error).removesuffix(f". {NOTHING_STARTED}")
            else:
                if not is_same or content.sha256 != sent.get("sha256"):
                    yield f"{_label(name, source)} has changed"


def uploaded(hook: ConnectedCrew, name: str, source: str) -> UploadedFile:
    """Upload a file; return its address, size and SHA-256.

    An upload is repeated, for as long as `kickoff_timeout`, if the service asks for that or its response was lost.

    :raises CrewFileError: the file cannot be read, or was not taken
    :raises CrewInvalidInput: the deployment takes no files, or none of this size
    """
    until = time.monotonic() + hook.connection.deployment.kickoff_timeout
    while True:
        with _opened(name, source) as content:
            try:
                file = hook.client.send(endpoints.upload(Upload(name, content.filename, content.size, content)))
            except (exceptions.CrewFileError, exceptions.CrewUnauthorized):
                raise
            except exceptions.CrewError as error:
                refused = error
            else:
                content.check(file)
                return UploadedFile(file.url, content.size, content.sha256)
        pause = _pause(refused)
        if pause is None or time.monotonic() + pause > until:
            raise _not_taken(name, source, refused) from refused
        time.sleep(pause)


def _pause(error: exceptions.CrewError) -> float | None:
    """Return how long to wait before an upload is repeated; None if that cannot help."""
    if isinstance(error, exceptions.CrewRateLimited | exceptions.CrewServerError) and error.status_code != 507:
        return error.retry_after or PAUSE
    is_lost = isinstance(error, exceptions.CrewConnectionError) and not error.permanent
    return PAUSE if is_lost or isinstance(error, exceptions.CrewWebPage) else None


def _not_taken(name: str, source: str, error: exceptions.CrewError) -> exceptions.CrewError:
    file = _label(name, source)
    status = error.status_code if isinstance(error, exceptions.CrewApiError) else None
    if status in endpoints.NOT_OFFERED:
        return exceptions.CrewInvalidInput(
            f"{file} was not sent: this deployment takes no files ({error}). {NOTHING_STARTED}"
        )
    if status == 413:
        return exceptions.CrewInvalidInput(f"{file} is too large for the service: {error}. {NOTHING_STARTED}")
    return exceptions.CrewFileError(f"{file} was not uploaded: {error}. {NOTHING_STARTED}")


class _Content:
    """A file's bytes, counted and hashed while they are read."""

    def __init__(self, label: str, filename: str, size: int, stream: IO[bytes]) -> None:
        self.filename, self.size = filename, size
        self._label, self._stream, self._left, self._hash = label, stream, size, hashlib.sha256()

    def read(self, size: int) -> bytes:
        try:
            piece = self._stream.read(size)
        except Exception as error:  # each storage raises its own errors
            raise _unreadable(self._label, error) from error
        self._left -= len(piece)
        if self._left < 0 or (self._left and not piece):
            raise exceptions.CrewFileError(f"{self._label} changed while it was read. {NOTHING_STARTED}")
        self._hash.update(piece)
        return piece

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def check(self, file: UploadedFile) -> None:
        """Refuse a file that grew while it was read, or arrived otherwise than it was sent."""
        self.read(1)
        if file.size not in (None, self.size) or file.sha256 not in (None, self.sha256):
            raise exceptions.CrewFileError(f"{self._label} arrived damaged. {NOTHING_STARTED}")


@contextmanager
def _opened(name: str, source: str) -> Iterator[_Content]:
    label = _label(name, source)
    try:
        path = opened(source) if SCHEME.match(source) else Path(source)
        status = path.stat()
        stream = path.open("rb") if status.st_size and not stat.S_ISDIR(status.st_mode) else None
    except Exception as error:  # each storage raises its own errors
        raise _unreadable(label, error) from error
    if stream is None:
        problem = "is empty" if not status.st_size else "is a folder"
        raise exceptions.CrewFileError(f"{label} {problem}. {NOTHING_STARTED}")
    with stream:
        yield _Content(label, path.name, status.st_size, stream)


def _unreadable(label: str, error: Exception) -> exceptions.CrewFileError:
    why = "it does not exist" if isinstance(error, FileNotFoundError) else reason(error)
    return exceptions.CrewFileError(f"{label} cannot be read: {why}. {NOTHING_STARTED}")
