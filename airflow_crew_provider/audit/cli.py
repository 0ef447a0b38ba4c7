"""Print people's decisions in a DAG, or what its crews have used, as JSON lines."""

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
from airflow_crew_provider.api.answers import was_taken
from airflow_crew_provider.api.values import visible
from airflow_crew_provider.audit.airflow_api import AirflowApi, AuditError
from airflow_crew_provider.models import REGION_FIELDS, Json

EVERY = "~"
EXECUTIONS = stored_names.EXECUTIONS


def decisions(api: AirflowApi, dag_id: str, run_id: str | None = None) -> Iterator[Json]:
    """Yield every decision in a DAG, or in one of its runs, run by run, in chronological order."""
    for path in _runs(api, dag_id, run_id):
        yield from _of_run(api, path)


def usage(api: AirflowApi, dag_id: str, run_id: str | None = None) -> Iterator[Json]:
    """Yield a line for each task instance that has used crews in a DAG, or in one of its runs, run by run.

    ``executions`` is that of the XCom ``crew_usage``. A task that was killed or marked by hand has none: its record
    names the executions of that try, whose ``state`` and ``usage`` are then null.
    """
    for path in _runs(api, dag_id, run_id):
        for place in map(_place, _entries(api, path, stored_names.EXECUTION_KEY)):
            pushed = _value(api, path, place, stored_names.USAGE_KEY)
            if executions := pushed[EXECUTIONS] if isinstance(pushed, dict) else _on_record(api, path, place):
                state = _without_form(api, path, place)["task_instance"]["state"]
                yield {"dag_id": path[1], "run_id": path[3], **place, "task_state": state, EXECUTIONS: executions}


def _on_record(api: AirflowApi, path: tuple[str, ...], place: Json) -> list[Json]:
    """Return the executions of a task instance that its record and its last try name; none if it started none."""
    parts = _parts(api, path, place)
    posts = [parts[each] for each in (stored_names.KICKOFF_STATE, stored_names.RESUME_STATE) if parts and each in parts]
    if parts is not None and not any(posts):
        return []  # e.g. a sensor or a review, whose execution another task has started
    executions: list[Json] = (parts or {}).get(stored_names.USAGE_STATE, {}).get(EXECUTIONS, [])
    started = [each for newest in posts for each in (*newest.get("earlier", ()), newest) if not each.get("cleared")]
    ids = {each["kickoff_id"]: each["kickoff_id"] for each in started if each.get("kickoff_id")}
    last = _value(api, path, place, stored_names.EXECUTION_KEY)
    if isinstance(last, dict):
        ids |= {last["kickoff_id"]: last["execution_id"]}
    known = {each[name] for each in executions for name in ("kickoff_id", "execution_id")}
    return executions + [
        {"execution_id": execution_id, "kickoff_id": kickoff_id, "state": None, "usage": None}
        for kickoff_id, execution_id in ids.items()
        if known.isdisjoint((kickoff_id, execution_id))
    ]


def _parts(api: AirflowApi, path: tuple[str, ...], place: Json) -> Json | None:
    """Return the parts of a task instance's record; None if Airflow masks it, because of the task's id."""
    name = stored_names.TASK_RECORD + stored_names.record_suffix({"dag_id": path[1], "run_id": path[3], **place})
    variable = api.get("variables", name)
    with suppress(ValueError):
        return json.loads(variable["value"])[stored_names.PARTS] if variable else {}
    return None


def _runs(api: AirflowApi, dag_id: str, run_id: str | None) -> Iterator[tuple[str, ...]]:
    """Yield the path of each run."""
    all_runs = () if run_id else api.pages("dag_runs", "dags", dag_id, "dagRuns", order_by="run_after")
    for each in [run_id] if run_id else [run["dag_run_id"] for run in all_runs]:
        yield "dags", dag_id, "dagRuns", each


def _of_run(api: AirflowApi, path: tuple[str, ...]) -> Iterator[Json]:
    questions = _asked(api, path)
    several = [_place(entry) for entry in _entries(api, path, stored_names.DECISIONS_KEY)]
    if not questions and not several:
        return
    answers = _answers(api, path)
    lines = [_decision(api, path, each, answers) for each in questions if _place(each["task_instance"]) not in several]
    lines += [line for place in several for line in _of_one_task(api, path, place, questions)]
    yield from sorted((each for each in lines if each), key=lambda each: str(each["decided_at"]))


def _of_one_task(api: AirflowApi, path: tuple[str, ...], place: Json, questions: list[Json]) -> Iterator[Json]:
    """Yield the decisions of a task that asks several times, and any answers that it has not processed yet."""
    task = _without_form(api, path, place)["task_instance"]
    about = {"dag_id": path[1], "run_id": path[3], **place, "task_state": task["state"]}
    listed = _value(api, path, place, stored_names.DECISIONS_KEY)
    decided = [each for each in (listed if isinstance(listed, list) else []) if _is_decision(each)]
    by_people = (each for each in decided if each.get(stored_names.SCHEMA_REVISION) != stored_names.BY_SCHEMA)
    yield from ({**about, "taken": True, "service": None, **each, **about} for each in by_people)
    known = {datetime.fromisoformat(each["decided_at"]) for each in decided}
    answered = [each for each in questions if each["response_received"] and _place(each["task_instance"]) == place]
    late = [_not_taken(each) for each in answered]
    yield from ({**about, **each} for each in late if datetime.fromisoformat(each["decided_at"]) not in known)


def _asked(api: AirflowApi, path: tuple[str, ...]) -> list[Json]:
    """Return each review's form, or a placeholder if Airflow has none.

    On Airflow 3.4, a task that used the answer to an earlier attempt's form has no form of its own.
    """
    forms = [detail for detail in api.pages("hitl_details", *path, "hitlDetails") if _is_ours(detail)]
    places = [_place(form["task_instance"]) for form in forms]
    decided = (_place(entry) for entry in _entries(api, path, stored_names.REVIEW_KEY))
    return forms + [_without_form(api, path, place) for place in decided if place not in places]


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
    entries = api.pages("xcom_entries", *path, "taskInstances", EVERY, "xcomEntries", xcom_key_pattern=key)
    return [entry for entry in entries if entry["key"] == key]


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
    sent = next((each for each in answers if _answers_to(review, each)), None)
    known = {**about, "task_state": task["state"], "taken": sent is None or was_taken(sent)}
    service = _said(sent) if sent is not None and sent.get("status") != stored_names.NOT_SENT else None
    return {**known, **review, **known, "service": service}


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
    """Print the lines; return 0, or print an error and return 1."""
    options = _parser().parse_args(arguments)
    lines = usage if options.usage else decisions
    try:
        for line in lines(_api(options.airflow_url, os.environ), options.dag_id, options.run_id):
            sys.stdout.write(visible(json.dumps(line, ensure_ascii=False)) + "\n")
    except AuditError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="airflow-crew-reviews", description=__doc__, epilog=ENVIRONMENT)
    parser.add_argument("dag_id", help="print the decisions in this DAG")
    parser.add_argument("run_id", nargs="?", help="print only the decisions in this run")
    parser.add_argument("--usage", action="store_true", help="print what the crews of each task have used instead")
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
