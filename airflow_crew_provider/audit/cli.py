"""Print people's decisions in a DAG as JSON lines. Credentials come from the environment."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from airflow_crew_provider import stored_names
from airflow_crew_provider.api.values import visible
from airflow_crew_provider.audit.airflow_api import AirflowApi, AuditError
from airflow_crew_provider.models import REGION_FIELDS

Json = dict[str, Any]
EVERY = "~"


def decisions(api: AirflowApi, dag_id: str, run_id: str | None = None) -> Iterator[Json]:
    """Yield every decision in a DAG, or in one of its runs, run by run, in chronological order."""
    runs = [run_id] if run_id else [run["dag_run_id"] for run in _runs(api, dag_id)]
    for each in runs:
        yield from _of_run(api, dag_id, each)


def _runs(api: AirflowApi, dag_id: str) -> Iterator[Json]:
    return api.pages("dag_runs", "dags", dag_id, "dagRuns", order_by="run_after")


def _of_run(api: AirflowApi, dag_id: str, run_id: str) -> Iterator[Json]:
    path = ("dags", dag_id, "dagRuns", run_id)
    asked = _asked(api, path)
    several = [_place(entry) for entry in _entries(api, path, stored_names.DECISIONS_KEY)]
    if not asked and not several:
        return
    answers = _answers(api, path)
    found = [_decision(api, path, each, answers) for each in asked if _place(each["task_instance"]) not in several]
    found += [line for place in several for line in _of_one_task(api, path, place, asked)]
    yield from sorted((each for each in found if each), key=lambda each: str(each["decided_at"]))


def _of_one_task(api: AirflowApi, path: tuple[str, ...], place: Json, asked: list[Json]) -> Iterator[Json]:
    """Yield the decisions of a task that asks several times, and any answers that it has not processed yet."""
    task = _without_form(api, path, place)["task_instance"]
    about = {"dag_id": path[1], "run_id": path[3], **place, "task_state": task["state"]}
    listed = _value(api, path, place, stored_names.DECISIONS_KEY)
    decided = [each for each in (listed if isinstance(listed, list) else []) if _is_decision(each)]
    by_people = (each for each in decided if each.get(stored_names.SCHEMA_REVISION) != stored_names.BY_SCHEMA)
    yield from ({**about, "taken": True, "service": None, **each, **about} for each in by_people)
    known = {datetime.fromisoformat(each["decided_at"]) for each in decided}
    answered = [each for each in asked if each["response_received"] and _place(each["task_instance"]) == place]
    late = [_not_taken(each) for each in answered]
    yield from ({**about, **each} for each in late if datetime.fromisoformat(each["decided_at"]) not in known)


def _asked(api: AirflowApi, path: tuple[str, ...]) -> list[Json]:
    """Return each review's form, or a placeholder if Airflow has none.

    On Airflow 3.4, a task that used the answer to an earlier attempt's form has no form of its own.
    """
    forms = [detail for detail in api.pages("hitl_details", *path, "hitlDetails") if _is_ours(detail)]
    shown = [_place(form["task_instance"]) for form in forms]
    decided = (_place(entry) for entry in _entries(api, path, stored_names.REVIEW_KEY))
    return forms + [_without_form(api, path, place) for place in decided if place not in shown]


def _place(of: Json) -> Json:
    """Return the fields that identify a task instance in its run: in a loop, the map index is -1 in each iteration."""
    region = _region(of) if of["map_index"] < 0 else {}
    return {"task_id": of["task_id"], "map_index": of["map_index"], **region}


def _region(of: Json) -> Json:
    return {name: of[name] for name in REGION_FIELDS if of.get(name) is not None}


def _without_form(api: AirflowApi, path: tuple[str, ...], place: Json) -> Json:
    index = [str(place["map_index"])] if place["map_index"] >= 0 else []
    task = api.get(*path, "taskInstances", place["task_id"], *index, **_region(place)) or {"state": None}
    return {"task_instance": {**place, "state": task["state"]}, "response_received": False}


def _is_ours(detail: Json) -> bool:
    return stored_names.FEEDBACK_FIELD in (detail.get("params") or {})


def _answers(api: AirflowApi, path: tuple[str, ...]) -> list[Json]:
    """Read what each resume in the run sent, and the service's response."""
    return [
        value
        for entry in _entries(api, path, stored_names.RESUME_KEY)
        if isinstance(value := _value(api, path, _place(entry), stored_names.RESUME_KEY), dict)
    ]


def _entries(api: AirflowApi, path: tuple[str, ...], key: str) -> list[Json]:
    found = api.pages("xcom_entries", *path, "taskInstances", EVERY, "xcomEntries", xcom_key_pattern=key)
    return [entry for entry in found if entry["key"] == key]


def _value(api: AirflowApi, path: tuple[str, ...], place: Json, key: str) -> Any:
    where = {"map_index": place["map_index"], **_region(place)}
    entry = api.get(
        *path, "taskInstances", place["task_id"], "xcomEntries", key, **where, deserialize="false", stringify="false"
    )
    return entry["value"] if entry else None


def _decision(api: AirflowApi, path: tuple[str, ...], detail: Json, answers: list[Json]) -> Json | None:
    """Return the record of a decision; None if there is none yet. A decision at a deadline may have no response."""
    task = detail["task_instance"]
    place = _place(task)
    review = _value(api, path, place, stored_names.REVIEW_KEY)
    about = {"dag_id": path[1], "run_id": path[3], **place}
    if not _is_decision(review) or "output_sha256" not in review:
        # Any task's form may have a field of this name, but only a review records its execution before it asks.
        if not detail["response_received"] or not isinstance(
            _value(api, path, place, stored_names.EXECUTION_KEY), dict
        ):
            return None
        return {**about, "task_state": task["state"], **_not_taken(detail)}
    if review.get(stored_names.SCHEMA_REVISION) == stored_names.BY_SCHEMA:
        return None  # nobody was asked
    service = next((_said(each) for each in answers if _answers_to(review, each)), None)
    taken = not (service and service["status"] == stored_names.NOT_SENT)
    known = {**about, "task_state": task["state"], "taken": taken}
    return {**known, **review, **known, "service": service if taken else None}


def _is_decision(value: Any) -> bool:
    """Whether an XCom has a decision's shape; other code may have written it."""
    with suppress(KeyError, TypeError, ValueError):
        return isinstance(value, dict) and datetime.fromisoformat(value["decided_at"]).tzinfo is not None
    return False


def _not_taken(detail: Json) -> Json:
    """Return the record of an answer that came too late or that the task has not processed yet."""
    return {
        "taken": False,
        "chosen_options": detail["chosen_options"],
        "human_feedback": (detail.get("params_input") or {}).get(stored_names.FEEDBACK_FIELD),
        "reviewer": detail.get("responded_by_user"),
        "decided_at": detail["responded_at"].replace("Z", "+00:00"),
    }


def _answers_to(review: Json, answer: Json) -> bool:
    return all(answer.get(name) == review.get(name) for name in ("execution_id", "crew_task_id", "decided_at"))


def _said(answer: Json) -> Json:
    return {name: answer.get(name) for name in ("kickoff_id", "status", "message")}


ENVIRONMENT = """Set the credentials in the environment, because other users of the machine can see the command line:
AIRFLOW_API_TOKEN, or AIRFLOW_API_USER and AIRFLOW_API_PASSWORD. AIRFLOW_API_URL can replace --airflow-url."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the decisions; return 0, or print an error and return 1."""
    given = _parser().parse_args(arguments)
    try:
        for decision in decisions(_api(given.airflow_url, os.environ), given.dag_id, given.run_id):
            sys.stdout.write(visible(json.dumps(decision, ensure_ascii=False)) + "\n")
    except AuditError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="airflow-crew-reviews", description=__doc__, epilog=ENVIRONMENT)
    parser.add_argument("dag_id", help="print the decisions in this DAG")
    parser.add_argument("run_id", nargs="?", help="print only the decisions in this run")
    parser.add_argument("--airflow-url", help="URL of Airflow's web server (default: AIRFLOW_API_URL)")
    return parser


def _api(url: str | None, environment: Mapping[str, str]) -> AirflowApi:
    url = url or environment.get("AIRFLOW_API_URL")
    if not url:
        raise AuditError("Set Airflow's URL with --airflow-url or AIRFLOW_API_URL")
    if token := environment.get("AIRFLOW_API_TOKEN"):
        return AirflowApi(url, token)
    user, password = environment.get("AIRFLOW_API_USER"), environment.get("AIRFLOW_API_PASSWORD")
    if not (user and password):
        raise AuditError("Set AIRFLOW_API_TOKEN, or AIRFLOW_API_USER and AIRFLOW_API_PASSWORD")
    return AirflowApi.logged_in(url, user, password)


if __name__ == "__main__":
    sys.exit(main())
