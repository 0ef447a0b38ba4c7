"""Runs the whole pattern once: a crew drafts, a person asks for changes, the crew drafts again, the person approves.

This script acts as the person: it answers through Airflow's public REST API, as any program could. The exit code is 0
only if the final output contains the feedback.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

from scripts.demo_stack import CREWS, ROOT, both
from scripts.stack import AirflowStack, CrewService, DagRun, StackTimeout, wait_until
from scripts.stack.runs import FINISHED, WAITING
from scripts.terminal import Story

DAG_ID = "crew_review"
RESULT = "article.result"  # the task whose XCom holds the completed record
FEEDBACK = "Shorter, and name the sources."


class Demo:
    """One run of the review DAG, watched and answered until it ends."""

    def __init__(self, service: CrewService, airflow: AirflowStack, story: Story) -> None:
        self.service = service
        self.airflow = airflow
        self.story = story
        self.run: DagRun = airflow.api.trigger(DAG_ID)
        self.asked_for_changes = False
        self._seen: dict[str, str] = {}
        self._progress = ""

    def watch(self) -> str:
        """Follow the run until it ends; return its final state."""
        return wait_until(self._look, f"the end of {DAG_ID}", pause=0.3)

    def _look(self) -> str | None:
        state = self.run.state
        for task in self.run.tasks():
            self._report_task(task)
        self._report_progress()
        for review in self.run.reviews():
            self._review(review)
        return state if state in FINISHED else None

    def _report_task(self, task: Mapping[str, Any]) -> None:
        name, state = task["task_id"], task["state"]
        if state in (None, "scheduled", "queued", self._seen.get(name)):
            return
        self._seen[name] = state
        if state == "running":
            return  # seen only by chance: most tasks finish between two polls
        if state in WAITING:
            slots = self.airflow.api.occupied_slots()
            self.story.report(name, f"{state}: waiting without a worker slot ({slots} in use)", "cyan")
        else:
            self.story.report(name, state, "red" if state == "failed" else "green")

    def _report_progress(self) -> None:
        if not (kickoff_id := self._kickoff_id()):
            return
        status = requests.get(
            f"{self.service.url}/status/{kickoff_id}",
            headers={"Authorization": f"Bearer {self.service.token}"},
            timeout=10,
        ).json()
        progress = status.get("progress") or {}
        if not progress:
            return
        words = "{completed_tasks} of {total_tasks} tasks done".format(**progress)
        words += f", {status['status']}: {status['current_task']}"
        if words != self._progress:
            self._progress = words
            self.story.report("the crew", words, "yellow")

    def _kickoff_id(self) -> str | None:
        kickoffs = [task for task in self._seen if task.endswith("kickoff")]
        if not kickoffs:
            return None
        answer = self.run.api.call("GET", f"{self.run.path}/taskInstances/{kickoffs[0]}/xcomEntries/kickoff_id")
        return answer.json()["value"].strip('"') if answer.ok else None

    def _review(self, review: Mapping[str, Any]) -> None:
        self.story.quote(review["subject"], review["body"] or "")
        if self.asked_for_changes:
            self.run.answer(review, "approve", human_feedback="")
            self.story.report("the reviewer", "approves through Airflow's REST API", "bold")
        else:
            self.asked_for_changes = True
            self.run.answer(review, "revise", human_feedback=FEEDBACK)
            self.story.report("the reviewer", f"asks for changes through Airflow's REST API: {FEEDBACK}", "bold")


def keep_logs(airflow: AirflowStack) -> Path:
    """Copy the logs of a failed run from the temporary home, which is about to be deleted."""
    kept = ROOT / ".demo" / "logs"
    shutil.rmtree(kept, ignore_errors=True)
    for log in airflow.home.rglob("*.log"):
        target = kept / log.relative_to(airflow.home)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, target)
    return kept


def play(crew: str, story: Story) -> bool:
    """Run the demo; return whether the final output contains the feedback."""
    with both(crew, story.report) as (service, airflow):
        demo = Demo(service, airflow, story)
        story.report(DAG_ID, "triggered")
        try:
            state = demo.watch()
        except StackTimeout as late:
            state = str(late)
        if state != "success":
            story.report(DAG_ID, f"{state}; its logs are in {keep_logs(airflow)}", "red")
            return False
        output = demo.run.xcom(RESULT)["output"]
        story.quote("The final output", output)
        story.report(DAG_ID, state, "green")
        return FEEDBACK in output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crew", choices=sorted(CREWS), default="demo")
    story = Story()
    try:
        carried = play(parser.parse_args().crew, story)
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
    if not carried:
        sys.exit("The final output does not contain the reviewer's feedback.")
    story.report("done", "the output contains the reviewer's feedback; everything has been stopped", "green")


if __name__ == "__main__":
    main()
