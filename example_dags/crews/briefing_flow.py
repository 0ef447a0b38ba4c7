"""A Flow with two reviewers: one checks the facts of a briefing, the other decides what happens to it.

The first reviewer sends the briefing back until the facts are right. If it is to be published, the second reviewer
also names its readers, in free text. Serve it:

    airflow-crew-service serve --crew example_dags/crews/briefing_flow.py:BriefingFlow
"""

from __future__ import annotations

from crewai import Agent, Crew, Task
from crewai.flow import Flow, human_feedback, listen, or_, start
from crewai.flow.human_feedback import HumanFeedbackResult
from offline_model import OfflineModel
from pydantic import BaseModel


class Briefing(BaseModel):
    topic: str = "heat pumps"
    notes: str = ""
    text: str = ""


class BriefingFlow(Flow[Briefing]):
    @start()
    def collect(self) -> str:
        """Ask a crew for notes; a Flow can start any number of crews."""
        researcher = Agent(
            role="Researcher",
            goal="Find what readers want to know about {topic}",
            backstory="You ask better questions than most people answer.",
            llm=OfflineModel(model="offline"),  # use your own model here
        )
        task = Task(
            name="research_task",
            description="Collect what a briefing needs.\nTopic: {topic}",
            expected_output="Three notes",
            agent=researcher,
        )
        self.state.notes = Crew(agents=[researcher], tasks=[task]).kickoff(inputs={"topic": self.state.topic}).raw
        return self.state.notes

    @listen(or_(collect, "rework"))
    @human_feedback(message="Are the facts right?", emit=["approved", "rework"])
    def check_facts(self) -> str:
        last = self.last_human_feedback
        wish = f"\n\nRevised, as the reviewer asked: {last.feedback}" if last and last.feedback else ""
        self.state.text = f"# Briefing on {self.state.topic}\n\n{self.state.notes}{wish}"
        return self.state.text

    @listen("approved")
    @human_feedback(message="What should happen to the briefing?", emit=["publish", "keep", "drop"])
    def decide(self) -> str:
        return self.state.text

    @listen("publish")
    @human_feedback(message="Who should read it?")
    def address(self) -> str:
        return self.state.text

    @listen(address)
    def publish_briefing(self, readers: HumanFeedbackResult) -> str:
        return f"{self.state.text}\n\nPublished for {readers.feedback}."

    @listen(or_("keep", "drop"))
    def file_briefing(self, decision: HumanFeedbackResult) -> str:
        return f"The briefing on {self.state.topic} is not published: {decision.outcome}."
