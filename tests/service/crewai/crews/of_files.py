"""Flows whose states have fields of CrewAI's file types; each returns what it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from crewai.flow.flow import Flow, start
from crewai.utilities.types import LLMMessage
from crewai_files import File, FileInput, FilePath, FileSourceInput, FileUrl, ImageFile, PDFFile
from pydantic import BaseModel, ConfigDict, Field, Json, RootModel
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict


class Report(PDFFile):
    """A type of the user's own."""


class Document(BaseModel):
    url: str = ""
    file: File | None = None
    parts: list[Document] = []


class Album(RootModel[list[ImageFile]]):
    pass


class Attachment(TypedDict, total=False):
    url: str
    file: FileInput


@dataclass
class Scan:
    file: FilePath | None = None


class Pair(NamedTuple):
    number: int
    file: FileUrl


class State(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    topic: str = ""
    text_or_file: str | PDFFile = ""
    first_file: Annotated[File | None, Field(description="any")] = None
    report: Report | None = None
    source: FileSourceInput | None = None
    files: list[File | None] = []
    by_name: dict[str, ImageFile | int] = {}
    document: Document = Document()
    album: Album | None = None
    attachments: tuple[Attachment, ...] = ()
    scan: Scan | None = None
    pair: Pair | None = None
    written: Json[Document] | None = None
    messages: str | list[LLMMessage] = ""
    anything: Any = None


class FileFlow(Flow[State]):
    @start()
    def describe(self) -> str:
        given = self.state.first_file
        return given.read_text() if given else self.state.model_dump_json(include={"topic", "messages", "anything"})


class Needed(BaseModel):
    file: File


class NeedyFileFlow(Flow[Needed]):
    @start()
    def describe(self) -> str:
        return self.state.file.read_text()
