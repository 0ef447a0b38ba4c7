"""A crew whose agent mails, asks a person, and has its report reviewed; which tools it calls is the model's to say."""

from __future__ import annotations

import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import BaseTool
from scribe import write

from crew_service.tools import AskPerson


class SendMail(BaseTool):
    name: str = "send_mail"
    description: str = "Send a mail."

    def _run(self, to: str, subject: str, text: str) -> str:
        write(os.environ["MAILS"], {"to": to, "subject": subject, "text": text})
        return f"Sent to {to}."


def crew() -> Crew:
    of = Agent(role="Host", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"), tools=[SendMail(), AskPerson()])
    only = Task(
        name="invite",
        description="Invite people to the {topic}, and report whom you have invited.",
        expected_output="a report",
        agent=of,
        human_input=True,
    )
    return Crew(agents=[of], tasks=[only])
