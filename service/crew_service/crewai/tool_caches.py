"""Results in the caches of tools, as stored for the processes after the one whose tools returned them.

With `cache=True`, CrewAI answers a call that equals an earlier one from a cache, which is gone with its process. What a
task has added to the caches of its crew's agents is part of its output, and is put back before later tasks run. A task
that begins again fills them from its journal.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from crew_service.crewai import codec, journal, points
from crew_service.crewai.internals import tool_caches, tool_calls
from crew_service.crewai.prepared_calls import Tools

MOST = 1024 * 1024  # characters per task; each process receives those of all finished tasks

Added = dict[tuple[int, str, str], Any]  # caches, by their ids, tools' names and calls' arguments
ADDED: ContextVar[Added | None] = ContextVar("what the running task has added to caches", default=None)

log = logging.getLogger(__name__)


@contextmanager
def going_back() -> Iterator[None]:
    """Restore after this block which task adds to caches."""
    before = ADDED.get()
    try:
        yield
    finally:
        ADDED.set(before)


class ToolCaches:
    """The caches of one segment's tools, watched from now on.

    :param finished: the outputs of tasks whose results the caches get before another task begins
    """

    def __init__(self, finished: Iterable[Any] = ()) -> None:
        self._packages = codec.loaded_packages()
        self._finished = deque(finished)
        self._lock = threading.Lock()
        self._added: dict[str, Added] = {}  # by task
        tool_caches.watch(_add)

    def begin(self, task: str, agents: Collection[Any], draft: Any = None) -> None:
        """Assign what is added in this context to a task.

        :param draft: the task's output in its last round, if a person has sent it back
        """
        with self._lock:  # a parallel task must find them, too
            while self._finished:
                self.put_back(self._finished.popleft(), agents)
        ADDED.set(self._added.setdefault(task, {}))
        if draft:
            self.put_back(draft, agents)

    def with_results(self, output: Any, agents: Collection[Any], tools: Tools, *, of: str = "") -> Any:
        """Return a task's output with what it has added to these agents' caches: calls that run once, then small ones.

        :param of: the task, if `begin` knows it by another name than its output
        """
        places = {id(cache): place for place, cache in enumerate(tool_caches.of_agents(agents))}
        known = {tool_calls.tool_name(tool): tool for _, tool in tools}
        results = []
        for (_, name, arguments), cache in list(self._added.pop(of or output["task_id"], {}).items()):
            place, tool = places.get(id(cache)), known.get(tool_calls.model_name(name))
            text = None if place is None else self._encoded(cache.read(name, arguments), tool)
            if text is not None:
                is_once = journal.runs_once([name, *([tool.name] if tool else ())])
                results.append((not is_once, len(name) + len(arguments) + len(text), [place, name, arguments, text]))
        results.sort(key=lambda result: result[:2])
        kept, left = [], MOST
        for _, size, result in results:
            if size <= left:
                kept.append(result)
                left -= size
        if len(kept) < len(results):
            log.warning(
                "the task '%s' has cached more than %d MiB of results of tools; %d of them are not kept: if the "
                "process ends, equal calls of later tasks are made again",
                *(output["task_id"], MOST >> 20, len(results) - len(kept)),
            )
        return points.with_more(output, points.TOOL_RESULTS, kept)

    def put_back(self, output: Any, agents: Collection[Any]) -> None:
        """Add to these agents' caches what an earlier process stored with a task's output."""
        caches = dict(enumerate(tool_caches.of_agents(agents)))
        for place, name, arguments, text in points.of(output).get(points.TOOL_RESULTS, ()):
            with suppress(Exception):  # its class may be gone
                caches[place].add(name, arguments, codec.decoded(text))

    def _encoded(self, value: Any, tool: Any) -> str | None:
        """Encode a result or, if that is impossible, what an agent reads of it; return None if there is neither."""
        if value is None:  # CrewAI makes such a call again
            return None
        with suppress(codec.NotStorable):
            return codec.encoded(value, packages=self._packages)
        with suppress(Exception):  # raised by a user's method
            return codec.encoded(tool_calls.reader_of(tool)(value))
        return None


def _add(cache: Any, tool: str, arguments: str) -> None:
    if (added := ADDED.get()) is not None:
        added[id(cache), tool, arguments] = cache
