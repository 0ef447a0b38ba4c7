"""Tokens used: each model counted once, however many agents share it, and summed over the segments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crewai import Crew
from crewai.flow.flow import Flow
from crewai.llms.base_llm import BaseLLM

Usage = dict[str, int]
COUNTED = ("total_tokens", "prompt_tokens", "completion_tokens")


def of_process(crew: Crew) -> Usage:
    total = dict.fromkeys(COUNTED, 0)
    for model in _models(crew):
        used = model.get_token_usage_summary()
        for name in COUNTED:
            total[name] += getattr(used, name)
    return total


def of_flow(flow: Flow[Any]) -> Usage:
    """Give the tokens of every model that the Flow, its agents and its crews have called in this process."""
    used = flow.usage_metrics
    return {name: getattr(used, name) for name in COUNTED}


def added(one: Usage, other: Usage) -> Usage:
    return {name: one.get(name, 0) + other.get(name, 0) for name in COUNTED}


def _models(crew: Crew) -> Iterable[BaseLLM]:
    agents = [*crew.agents, *(task.agent for task in crew.tasks), crew.manager_agent]
    candidates = [getattr(agent, "llm", None) for agent in agents]
    candidates += [crew.manager_llm, crew.planning_llm]
    return {id(model): model for model in candidates if isinstance(model, BaseLLM)}.values()
