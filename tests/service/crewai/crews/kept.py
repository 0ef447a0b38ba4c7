"""Flows whose states and results are hard to keep; `log` is where their methods leave their marks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from crewai.flow import Flow, human_feedback, listen, start
from crewai.flow.persistence import persist
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from scribe import write


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    id: str = ""
    log: str = ""
    draft_text: str = ""
    work_count: int = Field(default=0, validation_alias=AliasChoices("workCount", "works"))


class Marked:
    state: Any

    def mark(self, call: str) -> None:
        write(self.state.log, {"call": call})

    def die_once(self) -> None:
        """Die like a killed process, but only the first time."""
        flag = Path(f"{self.state.log}.died")
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@persist()
class CamelFlow(Flow[Camel], Marked):
    @start()
    def draft(self) -> str:
        self.mark("draft")
        self.state.draft_text += "coffee"
        self.state.work_count += 1
        return self.state.draft_text

    @listen(draft)
    @human_feedback(message="Good?")
    def ask(self) -> str:
        return self.state.draft_text

    @listen(ask)
    def end(self) -> str:
        return f"{self.state.draft_text} {self.state.work_count}"
