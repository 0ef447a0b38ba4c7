"""A Flow whose methods CrewAI surrounds with everything that it has; all of it is written to the log."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from crewai.events import MethodExecutionFinishedEvent, MethodExecutionStartedEvent, crewai_event_bus
from crewai.flow import human_feedback, listen, start
from crewai.flow.persistence import FlowPersistence, persist
from crewai.hooks import InterceptionPoint, on
from crewai.memory.unified_memory import Memory
from flows import Logged, small_crew
from scribe import LOG, Scribe, write


class Desk:
    """Asks somebody, but not by the service."""

    def request_feedback(self, context: Any, flow: Any) -> str:
        write(flow.state.log, {"asked": context.method_name})
        return {"draft": "", "check": "well done"}[context.method_name]


class Shelf(FlowPersistence):
    def init_db(self) -> None:
        pass

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        write(state_data.log, {"saved": [flow_uuid, method_name]})

    def load_state(self, flow_uuid: str) -> None:
        return None


class Teacher(Scribe):
    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        found = LOG.search(str(messages))
        assert found
        return found.group(0)


class Lessons(Memory):
    def remember_many(self, contents: list[str], *args: Any, **kwargs: Any) -> Any:
        found = LOG.search(contents[0])
        assert found
        write(found.group(1), {"learned": len(contents)})

    def recall(self, *args: Any, **kwargs: Any) -> Any:
        return []


@on(InterceptionPoint.PRE_STEP)
def before(step: Any) -> None:
    if step.kind == "flow_method":
        write(step.flow.state.log, {"before": step.step_name})


@on(InterceptionPoint.POST_STEP)
def after(step: Any) -> None:
    if step.kind == "flow_method":
        write(step.flow.state.log, {"after": step.step_name})
        if step.step_name in ("begin", "hold"):
            step.payload = f"<{step.payload}>"


def hear(source: Any, event: Any) -> None:
    write(source.state.log, {event.type: event.method_name})


for kind in (MethodExecutionStartedEvent, MethodExecutionFinishedEvent):
    crewai_event_bus.on(kind)(hear)


@persist(Shelf())
class AroundFlow(Logged):
    """Asks people at a desk of its own and by the service, and learns from them; is killed, and asks in crews."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.memory = Lessons()

    @start()
    def begin(self) -> str:
        self.mark("begin")
        return "notes"

    @listen(begin)
    @human_feedback(message="Go?", emit=["go", "stop"], default_outcome="go", provider=Desk())
    def draft(self, notes: str) -> str:
        self.mark("draft")
        return f"draft of {notes}"

    @listen("go")
    @human_feedback(message="Well?", provider=Desk())
    def check(self, approved: Any) -> str:
        self.mark("check")
        return f"{approved.output}, checked"

    @listen(check)
    def hold(self, checked: Any) -> str:
        self.die_once("hold")
        return f"{checked.output}: {checked.feedback}, {self.approved_letter()}, {self.told()}"

    @listen(hold)
    @human_feedback(message="Send?", emit=["send", "drop"], llm=Teacher(model="teacher"), learn=True)
    def review(self, held: str) -> str:
        self.mark("review")
        return f"Log: {self.state.log} {held}"

    @listen("send")
    def end(self, reviewed: Any) -> str:
        self.die_once("end")
        return f"{reviewed.output}; {reviewed.feedback}, {self.approved_letter()}, {self.told()}"

    def approved_letter(self) -> str:
        return small_crew("letter", human_input=True).kickoff(inputs={"topic": "ducks", "log": ""}).raw

    def told(self) -> str:
        """Say what CrewAI knows of the methods that have finished, and of the people's answers."""
        said = [f"{each.method_name}={each.outcome or each.feedback}" for each in self.human_feedback_history]
        is_last = self.last_human_feedback is self.human_feedback_history[-1]
        return f"{'+'.join(said)}, {is_last}, {len(self.method_outputs)}"

    def die_once(self, where: str) -> None:
        crewai_event_bus.flush()
        if not (mark := Path(f"{self.state.log}.{where}")).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
