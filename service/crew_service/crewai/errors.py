"""Why a target cannot be served, and what ends the work of a crew whatever its own code catches."""

from __future__ import annotations

from typing import ClassVar

from crew_service.engine.crew import PendingQuestion


class UnsupportedCrew(Exception):
    """The target cannot be served; the text says what was found and what would do, as the end of a sentence."""


class Interrupted(BaseException):
    """Ends a crew's work at a question. No `except Exception` catches it, and who raises it notes it elsewhere too."""


class Asked(Interrupted):
    """A call needs a person, and the crew stops here, whatever its own code makes of this exception."""

    def __init__(self, question: PendingQuestion) -> None:
        super().__init__("a person decides on this call")
        self.question = question


class Fatal(Interrupted):
    """The execution fails, whatever the crew's own code makes of this exception; the text is its error."""

    noted: ClassVar[list[Fatal]] = []  # a process runs one segment

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.noted.append(self)
