"""The tool that lets an agent ask a person a question."""

from __future__ import annotations

from crewai.tools import BaseTool
from pydantic import BaseModel, Field

from crew_service.crewai.errors import Fatal
from crew_service.crewai.internals.wrapping import concrete
from crew_service.engine.asks import ASK_PERSON


class Question(BaseModel):
    question: str = Field(description="The question, complete in itself.")


@concrete
class AskPerson(BaseTool):
    """Lets an agent ask a person: the execution waits, without a process, until somebody answers."""

    name: str = ASK_PERSON
    description: str = "Ask a person a question, and get the answer. Use it when only a person can know or decide."
    args_schema: type[BaseModel] = Question

    def _run(self, question: str) -> str:
        raise Fatal("AskPerson needs the crew service's journal, but this call has none, so nobody was asked.")
