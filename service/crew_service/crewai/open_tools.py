"""Fails an agent that adds tools at run time, such as those from MCP servers, if a rule matches no tool.

Without this check, a misspelled name in a rule would let the intended tool run without the rule. At the first such
agent, the tools of the other agents are checked, too, because the rule may be for one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from crew_service.crewai.errors import Fatal
from crew_service.crewai.internals import crew_tasks, tool_calls
from crew_service.engine.tool_rules import ToolRule, unmatched

# An agent's fields that add tools, and its methods that return those tools.
SOURCES = {"mcps": "get_mcp_tools", "apps": "get_platform_tools"}


class NoSuchTool(Fatal):
    """A rule names a tool that the crew does not have."""

    def __init__(self, rule: ToolRule, names: Iterable[str]) -> None:
        super().__init__(
            f"The rule {rule} matches none of the crew's tools, some of which were unknown until now "
            f"({', '.join(names) or 'there are none'}). "
            "None of this task's tools were run; correct the name in the rule."
        )


def are_brought_by(agent: Any) -> bool:
    return any(getattr(agent, source, None) for source in SOURCES)


def check(agents: Collection[Any], rules: Iterable[ToolRule], known: list[list[str]]) -> None:
    """Fail the first agent that adds tools at run time unless every rule matches one of the agents' tools.

    :param known: the names of each tool known before any task runs
    """
    if lost := unmatched(rules, known):
        crew_tasks.before_agents(_Check(agents, lost))


class _Check:
    def __init__(self, agents: Collection[Any], lost: list[ToolRule]) -> None:
        self._agents = agents
        self._lost = lost

    def __call__(self, agent: Any, tools: list[Any] | None) -> None:
        if not (self._lost and are_brought_by(agent)):
            return
        known = [*(agent.tools or ()), *_brought_by(agent)] if tools is None else tools
        names = [tool_calls.names_of(tool.name) for tool in known]
        for other in self._agents if unmatched(self._lost, names) else ():
            if other is not agent and are_brought_by(other):
                names += [tool_calls.names_of(tool.name) for tool in _brought_by(other)]
        if lost := unmatched(self._lost, names):
            raise NoSuchTool(lost[0], dict.fromkeys(each[-1] for each in names))
        self._lost = []


def _brought_by(agent: Any) -> list[Any]:
    by_method = {method: getattr(agent, source, None) for source, method in SOURCES.items()}
    return [tool for method, sources in by_method.items() if sources for tool in getattr(agent, method)(sources)]
