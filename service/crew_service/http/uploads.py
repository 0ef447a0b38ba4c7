"""Receives files: `POST /files`, and the parts of a kickoff that is sent as a form.

Their bytes go into the database as they arrive, and neither memory nor the disk holds a whole file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from fastapi import HTTPException, Request
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from crew_service.engine.files import (
    MOST_FILES,
    PIECE,
    Files,
    OwnerFull,
    StoredFile,
    StoreFull,
    TooLarge,
    UnknownFile,
    Upload,
)
from crew_service.engine.health import DatabaseUnavailable
from crew_service.http import downloads
from crew_service.http.dialects.kickoff_files import too_much
from crew_service.http.slots import RETRY_AFTER, Shares, Threads
from crew_service.settings import FileLimits

FORM = "multipart/form-data"
AT_ONCE = 16  # uploads per process, and as many downloads
OF_ONE = 12  # uploads of an owner, whose slow ones must not keep others from uploading
THREADS = 4  # of them that write to the database at the same time
LEAST_RATE = 16 * 1024  # bytes per second, on average, once the time for a body is over
MOST_PARTS = 300
MOST_HEADER = 16 * 1024  # bytes of a part's headers
MOST_AROUND = MOST_PARTS * MOST_HEADER  # bytes of a form that are no part's content
FULL = {"Retry-After": "30"}

Event = tuple[Literal["part", "data", "end", "over"], bytes]


class BadForm(Exception):
    """The body is not a form that the service can use; the message is a sentence."""


@dataclass
class Part:
    name: str
    filename: str | None
    text: bytearray = field(default_factory=bytearray)
    upload: Upload | None = None


@dataclass
class Form:
    texts: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, StoredFile] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)  # ids, including those of incomplete files


def is_form(request: Request) -> bool:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    return kind.lower() == FORM.encode() and bool(options.get(b"boundary"))


class Uploads:
    """All uploads of one process."""

    def __init__(
        self, files: Files, *, seconds: float, most_text: int, is_public: Callable[[str], bool] | None = None
    ) -> None:
        """Create it.

        :param seconds: for a form to arrive, unless it is faster than the least rate
        :param most_text: bytes of a form's parts that are not files
        :param is_public: whether files may be fetched from an IP address
        """
        self._files = files
        self._seconds = seconds
        self._most_text = most_text
        self._places = asyncio.Semaphore(AT_ONCE)
        self._shares = Shares("uploads", slots=OF_ONE, threads=1, of_one=1)
        self._downloads = asyncio.Semaphore(AT_ONCE)
        self._threads = Threads(THREADS)
        self._is_public = is_public or downloads.is_public

    @property
    def limits(self) -> FileLimits:
        return self._files.limits

    @asynccontextmanager
    async def received(self, request: Request, owner: str, check: Callable[[Part, Form], None]) -> AsyncIterator[Form]:
        """Receive a form; afterwards, delete those of its files that no execution uses.

        :param check: raises `BadForm` for a part that does not belong there
        """
        async with self.kept_if_used() as form:
            await self._receive(request, owner, form, check)
            yield form

    @asynccontextmanager
    async def kept_if_used(self) -> AsyncIterator[Form]:
        """Afterwards, delete those of the form's files that no execution uses."""
        form = Form()
        try:
            yield form
        finally:
            if form.begun:
                with anyio.CancelScope(shield=True), suppress(DatabaseUnavailable):  # or they are deleted in an hour
                    await self._threads.run(self._files.discard, form.begun)

    async def file(self, request: Request, owner: str) -> tuple[StoredFile, str | None]:
        """Receive one file; return it, and the name of its input if the caller gave one.

        :raises BadForm: nothing was stored
        """
        if not is_form(request):
            raise BadForm(f"Send the file as {FORM}, in a part named 'file'.")
        if int(request.headers.get("content-length", 0)) > self.limits.of_file + self._most_text + MOST_AROUND:
            raise HTTPException(413, self._file_too_large())
        async with self.received(request, owner, _is_of_upload) as form:
            if "file" not in form.files:
                raise BadForm("The form has no part named 'file' with a file name.")
            try:
                field_name = form.texts.get("field_name", b"").decode()
            except UnicodeDecodeError:
                raise BadForm("The field_name is not valid UTF-8.") from None
            form.begun.clear()  # an execution may use it from now on
            return form.files["file"], field_name or None

    def _file_too_large(self) -> str:
        return f"A file may have at most {self.limits.of_file} bytes; nothing was stored."

    async def _receive(self, request: Request, owner: str, form: Form, check: Callable[[Part, Form], None]) -> None:
        async with self._shares.slot(owner):
            if self._places.locked():
                raise HTTPException(503, f"{AT_ONCE} uploads are in progress; try again later.", RETRY_AFTER)
            async with self._places:
                with self._refusing():
                    await self._take_parts(request, owner, form, check)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except TooLarge:
            raise HTTPException(413, self._file_too_large()) from None
        except OwnerFull:
            sentence = "You have too many uploads that no execution has used yet; try again later."
            raise HTTPException(429, sentence, FULL) from None
        except StoreFull:
            sentence = "This service stores no more files; older ones are deleted with their executions."
            raise HTTPException(507, sentence) from None
        except UnknownFile:
            raise HTTPException(408, "The upload took too long, and what had arrived was deleted.") from None

    async def _take_parts(self, request: Request, owner: str, form: Form, check: Callable[[Part, Form], None]) -> None:
        declared = request.headers.get("content-length")
        most = int(declared) if declared else None
        parser = _Parser(request.headers["content-type"])
        texts = around = 0  # bytes of fields, and of what is no part's content
        part, buffer = None, bytearray()
        async for chunk in self._chunks(request):
            around += len(chunk)
            for kind, data in parser.events(chunk):
                if kind == "part":
                    part = _part(data)
                    check(part, form)
                    if part.filename is not None:
                        if len(form.files) >= MOST_FILES:
                            raise HTTPException(413, too_much(self.limits))
                        part.upload = await self._threads.run(self._files.begin, owner, most)
                        form.begun.append(part.upload.id)
                elif kind == "data" and part:
                    around -= len(data)
                    if part.upload is None:
                        texts += len(data)
                        if texts > self._most_text:
                            raise HTTPException(413, f"The fields of a form may have at most {self._most_text} bytes.")
                        part.text += data
                        continue
                    await self._add(part.upload, buffer, data)
                elif kind == "end" and part:
                    if part.upload is None:
                        form.texts[part.name] = bytes(part.text)
                        continue
                    self._keep(form, part.name, await self._completed(part.upload, buffer))
            if around > MOST_AROUND:
                raise HTTPException(413, f"Besides fields and files, a form may have at most {MOST_AROUND} bytes.")
        if not parser.is_over:
            raise BadForm("The form ends in the middle.")

    async def _add(self, upload: Upload, buffer: bytearray, data: bytes) -> None:
        buffer += data
        while len(buffer) >= PIECE:
            await self._threads.run(upload.add, bytes(buffer[:PIECE]))
            del buffer[:PIECE]

    def _keep(self, form: Form, name: str, file: StoredFile) -> None:
        form.files[name] = file
        if sum(each.size for each in form.files.values()) > self.limits.of_execution:
            raise HTTPException(413, too_much(self.limits))

    async def _completed(self, upload: Upload, buffer: bytearray) -> StoredFile:
        if buffer:
            await self._threads.run(upload.add, bytes(buffer))
            buffer.clear()
        return await self._threads.run(upload.complete)

    async def fetch(self, owner: str, address: str, form: Form) -> None:
        """Store what a web address has as a file of the form; see `received` for its deletion.

        :raises NotFetched: if the address is not public, or has no file
        """
        async with self._downloads:
            with self._refusing():
                self._keep(form, address, await self._fetched(owner, address, form))

    async def _fetched(self, owner: str, address: str, form: Form) -> StoredFile:
        async with downloads.opened(address, is_public=self._is_public) as (size, chunks):
            upload = await self._threads.run(self._files.begin, owner, size)
            form.begun.append(upload.id)
            buffer = bytearray()
            async for chunk in chunks:
                await self._add(upload, buffer, chunk)
            return await self._completed(upload, buffer)

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; time spent on storing it does not count."""
        stream, size, waited = request.stream(), 0, 0.0
        while True:
            began = time.monotonic()
            try:
                with anyio.fail_after(max(0.0, self._seconds + size / LEAST_RATE - waited)):
                    chunk = await anext(stream, None)
            except TimeoutError:
                raise HTTPException(408, f"The upload is slower than {LEAST_RATE} bytes per second.") from None
            if chunk is None:
                return
            waited += time.monotonic() - began
            size += len(chunk)
            yield chunk


class _Parser:
    """Turns the bytes of a form into events."""

    def __init__(self, content_type: str) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise BadForm("The content type names no boundary.")
        self.is_over = False
        self._events: list[Event] = []
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._size = self._parts = 0
        callbacks: Any = {
            "on_part_begin": self._begin,
            "on_header_field": self._add_to_name,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_headers_finished": lambda: self._add("part", self._headers.get(b"content-disposition", b"")),
            "on_part_data": lambda data, start, end: self._add("data", data[start:end]),
            "on_part_end": lambda: self._add("end"),
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError:
            raise BadForm("The boundary is not valid.") from None

    def events(self, chunk: bytes) -> list[Event]:
        if chunk and not self.is_over:
            try:
                self._parser.write(chunk)
            except FormParserError:
                raise BadForm("The body is not a valid form.") from None
        batch, self._events = self._events, []
        return batch

    def _add(self, kind: Any, data: bytes = b"") -> None:
        self._events.append((kind, data))

    def _begin(self) -> None:
        self._headers, self._size, self._parts = {}, 0, self._parts + 1
        if self._parts > MOST_PARTS:
            raise BadForm(f"The form has more than {MOST_PARTS} parts.")

    def _add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._name += self._counted(data[start:end])

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._counted(data[start:end])

    def _counted(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size > MOST_HEADER:
            raise BadForm(f"The headers of a part are larger than {MOST_HEADER} bytes.")
        return data

    def _end_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _end(self) -> None:
        self.is_over = True


def _part(disposition: bytes) -> Part:
    kind, options = parse_options_header(disposition)
    name, filename = options.get(b"name"), options.get(b"filename")
    if kind.lower() != b"form-data" or name is None:
        raise BadForm("A part has no name.")
    try:
        return Part(name.decode(), None if filename is None else filename.decode())
    except UnicodeDecodeError:
        raise BadForm("The name of a part is not valid UTF-8.") from None


def _is_of_upload(part: Part, form: Form) -> None:
    if part.filename is not None and (part.name != "file" or form.files):
        raise BadForm("An upload has one file, in the part named 'file'.")
