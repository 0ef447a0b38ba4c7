"""Exceptions that reject a target or stop a crew even if its own code catches them, and what an error may tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar

from crew_service.engine.crew import PendingQuestion
from crew_service.engine.printed import masked, secrets_of, shortened


class UnsupportedCrew(Exception):
    """The target cannot be served; the message completes a sentence with the problem and, if possible, a remedy."""


class Interrupted(BaseException):
    """Stops a crew. `except Exception` does not catch it, and the code that raises it also records it elsewhere."""


class Asked(Interrupted):
    """A call needs input from a person, so the crew stops here, even if its own code catches this exception."""

    def __init__(self, question: PendingQuestion) -> None:
        super().__init__("a person must decide on this call")
        self.question = question


class Fatal(Interrupted):
    """Fails the execution even if the crew's own code catches it; the message becomes the execution's error."""

    noted: ClassVar[list[Fatal]] = []  # a process runs one segment

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.noted.append(self)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes and contexts."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def told(text: str, most: int | None = None) -> str:
    """Mask secrets that only this process knows: the service does not read the crew's `.env`. Then truncate the text.

    :param most: characters; None for any number
    """
    text = masked(text, secrets_of(os.environ))
    return text if most is None else shortened(text, most)
