"""A crew of three agents that writes an article and asks a person to review the draft.

Set the input `review` to "no" to skip the review.

To run the example DAGs with a real crew, serve it:

    airflow-crew-service serve --crew example_dags/crews/article_crew.py:article_crew
"""

from __future__ import annotations

from typing import Any

from crewai import Agent, Crew, Task
from offline_model import OfflineModel


def article_crew() -> Crew:
    model = OfflineModel(model="offline")  # use your own model here, such as LLM(model="openai/gpt-5")
    researcher = Agent(
        role="Researcher",
        goal="Find what readers want to know about {topic}",
        backstory="You ask better questions than most people answer.",
        llm=model,
    )
    writer = Agent(
        role="Writer",
        goal="Explain {topic} so that a busy reader stays to the end",
        backstory="You write short sentences and take advice well.",
        llm=model,
    )
    editor = Agent(
        role="Editor",
        goal="Make a good draft ready for print",
        backstory="You change little, and only what helps.",
        llm=model,
    )
    research = Task(
        name="research_task",
        description="Collect what an article needs.\nTopic: {topic}",
        expected_output="Three notes",
        agent=researcher,
    )
    draft = Task(
        name="draft_task",
        description="Write the article from the notes.\nTopic: {topic}",
        expected_output="An article with a heading",
        agent=writer,
        context=[research],
        human_input=True,
    )
    final = Task(
        name="final_task",
        description="Polish the approved draft; keep what the reviewer asked for.\nTopic: {topic}",
        expected_output="The article, ready for print",
        agent=editor,
        context=[draft],
    )
    crew = Crew(agents=[researcher, writer, editor], tasks=[research, draft, final])

    def leave_the_person_out(inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs.get("review") == "no":
            draft.human_input = False
        return inputs

    crew.before_kickoff_callbacks.append(leave_the_person_out)
    return crew
