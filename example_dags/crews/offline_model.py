"""A deterministic language model that needs no network: its answers depend only on the conversation.

It replaces a crew's real model, so that the examples run on any machine. It reads the agent's prompt (the task, the
context, and a person's feedback on earlier answers) and writes what a crew with a real model might write.
"""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import uuid4

from crewai import BaseLLM
from crewai.events import LLMCallCompletedEvent, LLMCallStartedEvent, crewai_event_bus
from crewai.events.types.llm_events import LLMCallType

FEEDBACK = re.compile(r"User feedback: (.*?)\nInstructions: ", re.DOTALL)
TOPIC = re.compile(r"^Topic: (.+)$", re.MULTILINE)
FILE = re.compile(r"^File: (.+)$", re.MULTILINE)
OBSERVED = re.compile(r"^Action Input: \{[^\n]*\}\nObservation: (.*?)(?=\nThought: |\Z)", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"^([A-Z]\w*) (\d+)$", re.MULTILINE)
CONTEXT = re.compile(
    r"This is the context you're working with:\n(.*?)(?:\n\nProvide your complete response:|\Z)", re.DOTALL
)


class OfflineModel(BaseLLM):
    """Writes notes for a task that begins with "Collect", a final version for "Polish", and an article otherwise.

    For a task that begins with "Chart", it calls the tools `read_file` and `draw_chart` and reports on the figures.
    """

    def call(
        self,
        messages: str | list[dict[str, Any]],
        *args: Any,
        from_task: Any = None,
        from_agent: Any = None,
        **kwargs: Any,
    ) -> str:
        # CrewAI's own models emit these events for each call; traces are built from them.
        call = {"model": self.model, "call_id": str(uuid4()), "from_task": from_task, "from_agent": from_agent}
        crewai_event_bus.emit(self, LLMCallStartedEvent(messages=messages, **call))
        turns = [messages] if isinstance(messages, str) else [str(turn["content"]) for turn in messages]
        answer = _answer("\n".join(turns))
        used = {"prompt_tokens": sum(len(turn.split()) for turn in turns), "completion_tokens": len(answer.split())}
        self._track_token_usage_internal(used)
        kind = LLMCallType.LLM_CALL
        crewai_event_bus.emit(self, LLMCallCompletedEvent(response=answer, call_type=kind, usage=used, **call))
        return answer

    def get_input_tokens_count(self, messages: Any, *args: Any, **kwargs: Any) -> int:
        return len(str(messages).split())


def _answer(conversation: str) -> str:
    found = TOPIC.search(conversation)
    topic = found.group(1).strip() if found else "this topic"
    if "Current Task: Collect" in conversation:
        return _notes(topic)
    if "Current Task: Chart" in conversation:
        return _report(conversation, FILE.findall(conversation)[-1])
    if "Current Task: Polish" in conversation:
        return _polished(topic, CONTEXT.findall(conversation))
    return _article(topic, FEEDBACK.findall(conversation))


def _notes(topic: str) -> str:
    return (
        f"- What people ask first about {topic}: what it is, what it costs, who decides.\n"
        f"- What they ask too late about {topic}: who looks after it in two years.\n"
        "- A number that readers remember: four out of five projects start smaller than planned."
    )


def _report(conversation: str, file: str) -> str:
    observed = OBSERVED.findall(conversation)
    if not observed:
        return _call("read_file", {"file_name": file})
    title, figures = observed[0].partition("\n")[0], {name: int(each) for name, each in FIGURE.findall(observed[0])}
    if len(observed) == 1:
        return _call("draw_chart", {"title": title, "figures": figures})
    best, total = max(figures, key=lambda name: figures[name]), sum(figures.values())
    rows = [f"| {name} | {figure} | {figure / total:.0%} |" for name, figure in figures.items()]
    wishes = [f"Revised, as the reviewer asked: {wish}" for wish in FEEDBACK.findall(conversation)]
    told = f"{best} leads with {figures[best]} of {total}; see chart.png."
    table = "\n".join(["| region | sales | share |", "|---|---|---|", *rows])
    return "Thought: done\nFinal Answer: " + "\n\n".join([f"# {title}", told, table, *wishes])


def _call(tool: str, arguments: dict[str, Any]) -> str:
    return f"Thought: a tool helps\nAction: {tool}\nAction Input: {json.dumps(arguments)}"


def _article(topic: str, wishes: list[str]) -> str:
    paragraphs = [
        f"# {topic}: where to begin",
        f"Most teams meet {topic} on a busy day and decide in a hurry. It helps to begin with one small case, "
        "to write down what counts as success, and to name the person who looks after it afterwards.",
        *(f"Revision {number}, as the reviewer asked: {wish}" for number, wish in enumerate(wishes, 1)),
    ]
    return "\n\n".join(paragraphs)


def _polished(topic: str, contexts: list[str]) -> str:
    text = contexts[-1].strip() if contexts else f"# {topic}"
    return f"{text}\n\nIn short: begin with one small case of {topic}, and name its owner."
