"""A crew that knows something, and its agent something else."""

from __future__ import annotations

from crewai import LLM, Agent, Crew, Task
from crewai.knowledge.source.string_knowledge_source import StringKnowledgeSource


def crew() -> Crew:
    own = StringKnowledgeSource(content="Ducks do not echo in November.")
    agent = Agent(role="Clerk", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"), knowledge_sources=[own])
    only = Task(name="tell", description="Tell.", expected_output="text", agent=agent)
    common = StringKnowledgeSource(content="Geese do.")
    return Crew(agents=[agent], tasks=[only], knowledge_sources=[common])
