"""A crew that knows something, and its agent something else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from chromadb.api.types import EmbeddingFunction
from crewai import LLM, Agent, Crew, Task
from crewai.knowledge.source.string_knowledge_source import StringKnowledgeSource
from crewai.rag.embeddings.providers.custom.embedding_callable import CustomEmbeddingFunction
from crewai_core.lock_store import lock

MARKERS = Path(os.environ.get("MARKERS", "."))


class Embedder(CustomEmbeddingFunction, EmbeddingFunction[list[str]]):
    """Fails, or leaves a process behind once, if a marker says so."""

    def __init__(self) -> None:
        pass

    def __call__(self, input: list[str]) -> list[list[float]]:
        if (MARKERS / "fails").exists():
            raise RuntimeError("the embedder is out of order")
        if "Ducks" in str(input) and (helper := MARKERS / "helper").exists():
            helper.unlink()
            if os.fork() == 0:
                signal.pause()
        return [[1.0, 2.0] for _ in input]


def crew(embedder: type[Embedder] | None = None) -> Crew:
    own = StringKnowledgeSource(content="Ducks do not echo in November.")
    agent = Agent(role="Clerk", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"), knowledge_sources=[own])
    only = Task(name="tell", description="Tell.", expected_output="text", agent=agent)
    common = StringKnowledgeSource(content="Geese do.")
    custom = {"provider": "custom", "config": {"embedding_callable": embedder}} if embedder else None
    return Crew(agents=[agent], tasks=[only], knowledge_sources=[common], embedder=custom)


def holding_a_lock() -> Crew:
    """Its task's callback takes one of CrewAI's locks; the first holds it until there is a marker."""

    def hold(_: object) -> None:
        with lock("a store", timeout=0.1):
            is_first = not (MARKERS / "held").exists()
            (MARKERS / "held").touch()
            while is_first and not (MARKERS / "release").exists():
                time.sleep(0.02)

    served = crew()
    served.tasks[0].callback = hold
    return served


def with_own_embedder() -> Crew:
    return crew(Embedder)
