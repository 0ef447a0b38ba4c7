"""A task whose payments people approve; each writes down when it begins and when it is made, and can be held there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from crewai import LLM, Agent, Crew, Task
from crewai.tools import BaseTool
from scribe import INPUTS, remember, write

LONGEST_HOLD = 120.0  # seconds


class Pay(BaseTool):
    name: str = "pay"
    description: str = "Pay something."

    def _run(self, what: str) -> str:
        for at in ("began", "paid"):
            about = {"case": INPUTS["case"], "what": what, "at": at, "pid": os.getpid()}
            write(INPUTS["log"], {**about, "service": os.environ["SERVICE"]})
            held, until = Path(f"{INPUTS['log']}-{INPUTS['case']}-{at}"), time.monotonic() + LONGEST_HOLD
            while held.exists() and time.monotonic() < until:
                time.sleep(0.01)
        return f"paid {what}"


def crew() -> Crew:
    of = Agent(role="Clerk", goal="g", backstory="b", llm=LLM(model="gpt-4o-mini"), tools=[Pay()])
    only = Task(name="payments", description="Do the payments of {case} .", expected_output="text", agent=of)
    return Crew(agents=[of], tasks=[only], before_kickoff_callbacks=[remember])
