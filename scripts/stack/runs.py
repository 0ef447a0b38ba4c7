"""A DAG run, accessed through the REST API: its states, tasks, results, logs, and questions to people."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

from scripts.stack.waiting import FACTOR, StackTimeout, wait_until

FINISHED = ("success", "failed")
WAITING = ("deferred", "awaiting_input")  # without a worker slot
UNMAPPED = -1
POLL = 0.5  # seconds; each poll adds to the load on the API server
# Airflow's scheduler fails a task if the answer arrives before the scheduler has processed that the task left its
# worker. No person answers that quickly.
READING_TIME = 4.0 * FACTOR


class Api(Protocol):
    """The methods of `AirflowApi` that a run needs."""

    def call(self, method: str, path: str, **arguments: Any) -> Any: ...

    def json(self, method: str, path: str, **arguments: Any) -> Any: ...

    def pages(self, path: str, key: str, **params: Any) -> Iterator[dict[str, Any]]: ...


class DagRun:
    """A DAG run, from its trigger to its end."""

    def __init__(self, api: Api, dag_id: str, run_id: str) -> None:
        self.api = api
        self.dag_id = dag_id
        self.run_id = run_id
        self.path = f"dags/{dag_id}/dagRuns/{run_id}"

    @property
    def state(self) -> str:
        return self.api.json("GET", self.path)["state"]

    def wait_for(self, state: str = "success") -> None:
        """Wait for a state; if the run ends in a different one, fail immediately with the states of all tasks."""
        seen = wait_until(lambda: self._reached({state, *FINISHED}), f"{self.run_id} to be {state}", POLL)
        if seen != state:
            raise StackTimeout(f"{self.dag_id} ended as {seen}, not {state}: {self.failure_report()}")

    def tasks(self) -> list[dict[str, Any]]:
        return list(self.api.pages(f"{self.path}/taskInstances", "task_instances"))

    def states(self) -> dict[str, str]:
        """Map each task (``name`` or ``name[index]``) to its state."""
        return {_label(task): task["state"] for task in self.tasks()}

    def failure_report(self) -> str:
        """Return the state of each task, the errors of failed ones, and the scheduler's state mismatches."""
        failed = [task for task in self.tasks() if task["state"] == "failed"]
        said = [line for task in failed for line in self.errors(task["task_id"], task["try_number"], task["map_index"])]
        return "\n".join([str(self.states()), *said, *self.state_mismatches()])

    def state_mismatches(self) -> list[str]:
        """Return the scheduler's messages about tasks that it failed because their processes seemed to have died."""
        events = self.api.pages("eventLogs", "event_logs", dag_id=self.dag_id, run_id=self.run_id)
        return [event["extra"] for event in events if event["event"] == "state mismatch"]

    def errors(self, task_id: str, try_number: int = 1, map_index: int = UNMAPPED) -> list[str]:
        """Return the message of each error in a task's log, as Airflow's page shows it first."""
        events = [json.loads(line) for line in self.log(task_id, try_number, map_index).splitlines()]
        return [_said(event) for event in events if event.get("level") in ("error", "critical")]

    def task(self, task_id: str, map_index: int = UNMAPPED) -> dict[str, Any]:
        return self.api.json("GET", self._task_path(task_id, map_index))

    def wait_for_task(self, task_id: str, states: Collection[str], map_index: int = UNMAPPED) -> str:
        """Wait until a task is in one of the states, and return that state."""

        def check() -> str | None:
            found = self.task(task_id, map_index)["state"]
            return found if found in states else None

        found = wait_until(check, f"{task_id} to be {' or '.join(states)}", POLL)
        assert found
        return found

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = UNMAPPED) -> Any:
        path = f"{self.path}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api.json("GET", path, params={"map_index": map_index, "stringify": False})["value"]

    def log(self, task_id: str, try_number: int | None = None, map_index: int = UNMAPPED) -> str:
        """Return a task's log as JSON lines, one for each event; without a number, return the logs of all tries."""
        if try_number is None:
            tries = max((task["try_number"] for task in self.tasks() if task["task_id"] == task_id), default=1)
            return "".join(self._log(task_id, number, map_index) for number in range(1, max(tries, 1) + 1))
        return self._log(task_id, try_number, map_index)

    def _log(self, task_id: str, try_number: int, map_index: int) -> str:
        answer = self.api.call(
            "GET",
            f"{self.path}/taskInstances/{task_id}/logs/{try_number}",
            params={"map_index": map_index, "full_content": True},
            headers={"Accept": "application/x-ndjson"},
        )
        if answer.status_code == 404:
            return ""  # Airflow has no log of a try that it reverted
        answer.raise_for_status()
        return answer.text

    def reviews(self) -> list[dict[str, Any]]:
        """Return the details of unanswered tasks, after the time that a person takes to read them."""
        found = self._unanswered()
        unread = max(map(_seconds_to_read, found), default=0)
        if unread <= 0:
            return found
        time.sleep(unread)
        return [detail for detail in self._unanswered() if _seconds_to_read(detail) <= 0]

    def _unanswered(self) -> list[dict[str, Any]]:
        details = self.api.pages(f"{self.path}/hitlDetails", "hitl_details", response_received=False)
        return [detail for detail in details if detail["task_instance"]["state"] in WAITING]

    def wait_for_review(self) -> dict[str, Any]:
        """Wait for the next question to a person; fail immediately if a task fails first."""
        return self.wait_for_reviews(1)[0]

    def wait_for_reviews(self, number: int) -> list[dict[str, Any]]:
        """Wait until this many questions are open at the same time; fail immediately if a task fails first."""

        def check() -> list[dict[str, Any]] | None:
            if self.state in FINISHED or "failed" in self.states().values():
                raise StackTimeout(f"{number} reviews of {self.dag_id} never opened: {self.failure_report()}")
            found = self.reviews()
            return found if len(found) >= number else None

        return wait_until(check, f"{number} reviews of {self.dag_id}", POLL)

    def answer(self, review: Mapping[str, Any], option: str, **params: Any) -> None:
        """Answer a review as this API's user."""
        body = {"chosen_options": [option], "params_input": params}
        self.api.json("PATCH", self.answer_path(review), json=body, params=region_of(review["task_instance"]))

    def answer_path(self, review: Mapping[str, Any]) -> str:
        """Return the path for the answer to a review."""
        task = review["task_instance"]
        return f"{self.path}/taskInstances/{task['task_id']}/{task['map_index']}/hitlDetails"

    def clear(self, *task_ids: str, downstream: bool = False) -> None:
        """Clear tasks so that they run again, like the button in the UI."""
        body = {
            "dag_run_id": self.run_id,
            "task_ids": list(task_ids),
            "include_downstream": downstream,
            "only_failed": False,
            "dry_run": False,
        }
        self.api.json("POST", f"dags/{self.dag_id}/clearTaskInstances", json=body)

    def mark_task(self, task_id: str, state: str, map_index: int = UNMAPPED) -> None:
        self.api.json("PATCH", self._task_path(task_id, map_index), json={"new_state": state})

    def mark(self, state: str) -> None:
        self.api.json("PATCH", self.path, json={"state": state})

    def _reached(self, states: Collection[str]) -> str | None:
        state = self.state
        return state if state in states else None

    def _task_path(self, task_id: str, map_index: int) -> str:
        path = f"{self.path}/taskInstances/{task_id}"
        return path if map_index == UNMAPPED else f"{path}/{map_index}"


def region_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that identify a task instance's loop iteration; empty outside loops."""
    return {name: task[name] for name in ("region_id", "region_index") if task.get(name) is not None}


def _label(task: Mapping[str, Any]) -> str:
    index = task["map_index"]
    return task["task_id"] if index == UNMAPPED else f"{task['task_id']}[{index}]"


def _seconds_to_read(detail: Mapping[str, Any]) -> float:
    return READING_TIME + datetime.fromisoformat(detail["created_at"]).timestamp() - time.time()


def _said(event: Mapping[str, Any]) -> str:
    detail = event.get("error_detail") or [{"exc_value": ""}]
    return f"{event['event']}: {detail[0]['exc_value']}"
