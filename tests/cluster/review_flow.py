"""The Flow of the cluster test: a draft that is reworked as often as the reviewer asks, and then published."""

from __future__ import annotations

from crewai.flow import Flow, human_feedback, listen, or_, start
from crewai.flow.human_feedback import HumanFeedbackResult
from pydantic import BaseModel


class Draft(BaseModel):
    topic: str = "tea"
    revision: int = 0
    text: str = ""


class ReviewFlow(Flow[Draft]):
    @start()
    def research(self) -> str:
        return f"Notes on {self.state.topic}."

    @listen(or_(research, "rework"))
    @human_feedback(message="May it be published?", emit=["publish", "rework"])
    def draft(self) -> str:
        last = self.last_human_feedback
        self.state.revision += 1
        after = f" After: {last.feedback}" if last and last.feedback else ""
        self.state.text = f"Draft {self.state.revision} on {self.state.topic}.{after}"
        return self.state.text

    @listen("publish")
    def publish_draft(self, decision: HumanFeedbackResult) -> str:
        return self.state.text
