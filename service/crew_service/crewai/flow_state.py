"""A Flow's newest state, as one text that the service stores and passes on without reading it.

Each finished method and each question replaces the stored state. A state that cannot be kept is replaced by the reason:
the Flow goes on, but no other process can continue it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from base64 import b64decode, b64encode
from collections.abc import Container
from typing import Any

from crewai.flow.flow import Flow
from pydantic import BaseModel

from crew_service.crewai import codec, flow_values
from crew_service.crewai.internals import flow_methods
from crew_service.engine.crew import CrewFailed

log = logging.getLogger(__name__)

LONGEST = 64 * 1024 * 1024  # characters of an encoded state
LONGEST_KEPT = 20 * 1024 * 1024  # characters of its stored form; a message has room for it and a result


class FlowState:
    """The state of one Flow.

    :param stored: what an earlier process of the execution stored last
    :param packages: the top-level modules that a later process will have loaded
    """

    def __init__(self, flow: Flow[Any], stored: str | None, packages: Container[str]) -> None:
        self._flow, self._packages = flow, packages
        content: dict[str, str] = json.loads(zlib.decompress(b64decode(stored))) if stored else {}
        self._text = content.get("state")
        self.problem = content.get("problem")  # why the state is not kept
        self._stored = _digest(content) if stored else None

    @property
    def is_kept(self) -> bool:
        return self._text is not None

    def restore(self) -> None:
        """Set the kept state.

        :raises CrewFailed: if the Flow's class has changed so much that it has no such state
        """
        assert self._text is not None
        state = flow_methods.state(self._flow)
        try:
            restored = codec.decoded(self._text, _expected(state))
            if not isinstance(restored, type(state)):
                raise TypeError(f"it is now a {type(state).__name__}")
        except Exception as error:
            raise CrewFailed(f"The Flow has changed: its state cannot be restored ({error}). Start it again.") from None
        flow_methods.set_state(self._flow, restored)
        self._text = None

    def changed(self) -> str | None:
        """Return the state to store; None if it has not changed since the last call."""
        content = self._content()
        digest = _digest(content)
        if digest == self._stored:
            return None
        packed = _packed(content)
        if len(packed) > LONGEST_KEPT:
            size, most = len(packed) >> 20, LONGEST_KEPT >> 20
            content = {"problem": f"its state takes {size} MiB compressed, and at most {most} MiB are kept"}
            packed = _packed(content)
        is_new = "problem" in content and self.problem is None
        self._stored, self.problem = digest, content.get("problem")
        if is_new:
            log.warning(
                "the Flow's state is not kept: %s; it goes on, but ends with an error if it asks a person or its "
                "process is killed",
                self.problem,
            )
        return packed

    def _content(self) -> dict[str, str]:
        state = flow_methods.state(self._flow)
        try:
            text = codec.encoded(state, _expected(state), packages=self._packages)
        except codec.NotStorable as error:
            return {"problem": flow_values.problem(error, "its state")}
        if len(text) > LONGEST:
            return {"problem": f"its state takes {len(text) >> 20} MiB, and at most {LONGEST >> 20} MiB are kept"}
        return {"state": text}


def _expected(state: Any) -> type | None:
    """Return the state's class, which CrewAI may have made."""
    return type(state) if isinstance(state, BaseModel) else None


def _digest(content: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _packed(content: dict[str, str]) -> str:
    return b64encode(zlib.compress(json.dumps(content).encode(), 1)).decode()
