"""Serves CrewAI's crews and Flows. Every segment is a process of its own, which dies alone and can be killed.

::

    service ──socket── fork server of a world        imported CrewAI and runs no user code; one thread
       │                   └─ fork ──> crew's process: loads TARGET, runs one segment, reports, exits
       └──channel──────────────────────┘ messages in JSON; when either end closes, the process and its children end

* The service never imports CrewAI or user code (`process_pool`, `child_process`). A world is what a crew has of its
  own: interpreter paths, folder, variables, storage (`world`).
* A crew continues after its finished tasks, in a fresh process: the interrupted task begins again, and its journal
  answers the calls that it had made (`journal`). A call without an answer is made again, or a person decides, by the
  tool's rule; a call that needs it waits until its start is stored.
* A Flow continues at its question: its state, the methods that finished and their results are restored (`flow_run`,
  `flow_replay`, `flow_branches`). Tasks of crews inside its methods have journals too (`nested_tasks`).
* A value that crosses processes comes back equal or is refused with its place: `codec` is the only module that dumps
  or loads one.
* People are never asked at a terminal: a question ends the segment, and the next one begins with the answer.
* What CrewAI does not document is used only in `internals`, one seam for each purpose, so that a renamed name turns off
  one feature, or refuses those that need it, but never the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crew_service.crewai.world import Place, world_of
from crew_service.engine.tool_rules import JournalOptions

if TYPE_CHECKING:
    from crew_service.crewai.crew import CrewAICrew

__all__ = ["load"]


def load(target: str, options: JournalOptions | None = None, place: Place | None = None) -> CrewAICrew:
    """Return the crew that TARGET names; raise `BadTarget` with a one-sentence reason if it cannot be served."""
    from crew_service.crewai.crew import CrewAICrew

    return CrewAICrew(target, options or JournalOptions(), place or Place(world_of(target)))
