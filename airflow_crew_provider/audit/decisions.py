"""One record for each reviewer's answer, joined from the question, the review and the service's response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_crew_provider.audit.airflow_api import AirflowApi
from airflow_crew_provider.core.stored_names import (
    BY_SCHEMA,
    FEEDBACK_FIELD,
    NOT_SENT,
    RESUME_KEY,
    REVIEW_KEY,
    SCHEMA_REVISION,
)

Json = dict[str, Any]
EVERY = "~"


def decisions(api: AirflowApi, dag_id: str, run_id: str | None = None) -> Iterator[Json]:
    """Yield every decision of a DAG, or of one of its runs, run by run in the order in which they were made."""
    runs = [run_id] if run_id else [run["dag_run_id"] for run in _runs(api, dag_id)]
    for each in runs:
        yield from _of_run(api, dag_id, each)


def _runs(api: AirflowApi, dag_id: str) -> Iterator[Json]:
    return api.pages("dag_runs", "dags", dag_id, "dagRuns", order_by="run_after")


def _of_run(api: AirflowApi, dag_id: str, run_id: str) -> Iterator[Json]:
    path = ("dags", dag_id, "dagRuns", run_id)
    asked = _asked(api, path)
    if not asked:
        return
    answers = _answers(api, path)
    found = (_decision(api, path, detail, answers) for detail in asked)
    yield from sorted((each for each in found if each), key=lambda each: str(each["decided_at"]))


def _asked(api: AirflowApi, path: tuple[str, ...]) -> list[Json]:
    """Return the form of each review, also where Airflow shows none.

    On Airflow 3.4 a task that took the answer to the form of an earlier attempt has none of its own.
    """
    forms = [detail for detail in api.pages("hitl_details", *path, "hitlDetails") if _is_ours(detail)]
    shown = {_place(form["task_instance"]) for form in forms}
    decided = (_place(entry) for entry in _entries(api, path, REVIEW_KEY))
    return forms + [_without_form(api, path, *place) for place in decided if place not in shown]


def _place(of: Json) -> tuple[str, int]:
    return of["task_id"], of["map_index"]


def _without_form(api: AirflowApi, path: tuple[str, ...], task_id: str, map_index: int) -> Json:
    index = [str(map_index)] if map_index >= 0 else []
    task = api.get(*path, "taskInstances", task_id, *index) or {"state": None}
    place = {"task_id": task_id, "map_index": map_index, "state": task["state"]}
    return {"task_instance": place, "response_received": False}


def _is_ours(detail: Json) -> bool:
    return FEEDBACK_FIELD in (detail.get("params") or {})


def _answers(api: AirflowApi, path: tuple[str, ...]) -> list[Json]:
    """Read what each resume of the run has sent, and the service's response."""
    return [
        value
        for entry in _entries(api, path, RESUME_KEY)
        if isinstance(value := _value(api, path, entry["task_id"], RESUME_KEY, entry["map_index"]), dict)
    ]


def _entries(api: AirflowApi, path: tuple[str, ...], key: str) -> list[Json]:
    found = api.pages("xcom_entries", *path, "taskInstances", EVERY, "xcomEntries", xcom_key_pattern=key)
    return [entry for entry in found if entry["key"] == key]


def _value(api: AirflowApi, path: tuple[str, ...], task_id: str, key: str, map_index: int) -> Any:
    entry = api.get(
        *path, "taskInstances", task_id, "xcomEntries", key, map_index=map_index, deserialize="false", stringify="false"
    )
    return entry["value"] if entry else None


def _decision(api: AirflowApi, path: tuple[str, ...], detail: Json, answers: list[Json]) -> Json | None:
    """Return the record of a decision; None while there is none. A deadline may decide without a response."""
    task = detail["task_instance"]
    review = _value(api, path, task["task_id"], REVIEW_KEY, task["map_index"])
    about = {"dag_id": path[1], "run_id": path[3], "task_id": task["task_id"], "map_index": task["map_index"]}
    if not isinstance(review, dict) or "output_sha256" not in review:
        not_taken = _not_taken(detail) if detail["response_received"] else None
        return not_taken and {**about, "task_state": task["state"], **not_taken}
    if review.get(SCHEMA_REVISION) == BY_SCHEMA:
        return None  # nobody was asked
    service = next((_said(each) for each in answers if _answers_to(review, each)), None)
    taken = not (service and service["status"] == NOT_SENT)
    return {**about, "task_state": task["state"], "taken": taken, **review, "service": service if taken else None}


def _not_taken(detail: Json) -> Json:
    """Return the record of an answer that came too late, or that the task has not processed yet."""
    return {
        "taken": False,
        "chosen_options": detail["chosen_options"],
        "human_feedback": (detail.get("params_input") or {}).get(FEEDBACK_FIELD),
        "reviewer": detail.get("responded_by_user"),
        "decided_at": detail["responded_at"].replace("Z", "+00:00"),
    }


def _answers_to(review: Json, answer: Json) -> bool:
    return all(answer.get(name) == review.get(name) for name in ("execution_id", "crew_task_id", "decided_at"))


def _said(answer: Json) -> Json:
    return {name: answer.get(name) for name in ("kickoff_id", "status", "message")}
