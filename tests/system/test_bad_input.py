"""What people get wrong ends in one clear line of the task log: the cause, and what became of the execution."""

from __future__ import annotations

import json
import re

import pytest

from scripts.stack import AirflowStack, CrewService, DagRun

NOT_STARTED = r"(?i)no execution was started|nothing was started"
CASES = {
    "missing_input": ("kickoff", [r"topic", NOT_STARTED]),
    "wrong_token": ("kickoff", [r"401", r"crew_wrong_token", NOT_STARTED]),
    "unknown_connection": ("kickoff", [r"crew_nowhere", NOT_STARTED]),
    "service_down": ("kickoff", [r"(?i)refused", NOT_STARTED]),
    "crew_fails": (
        "wait",
        [r"ValueError: no ink left", r"execution [0-9a-f-]{36} failed", r"'crew_failing' \(http://127\.0\.0\.1:\d+\)$"],
    ),
}


@pytest.fixture(scope="module")
def runs(airflow: AirflowStack) -> dict[str, DagRun]:
    runs = {dag_id: airflow.api.trigger(dag_id) for dag_id in CASES}
    for run in runs.values():
        run.wait_for("failed")
    return runs


@pytest.mark.parametrize("dag_id", list(CASES))
def test_bad_input_ends_in_one_line_with_cause_and_fate(dag_id: str, runs: dict[str, DagRun]) -> None:
    task_id, phrases = CASES[dag_id]
    errors = runs[dag_id].errors(task_id)
    assert len(errors) == 1, "one error, not a chain of them"
    for phrase in phrases:
        assert re.search(phrase, errors[0]), f"{phrase!r} is not said in: {errors[0]}"


@pytest.mark.parametrize("dag_id", list(CASES))
def test_bad_input_logs_no_provider_frames_and_no_preceding_warning(dag_id: str, runs: dict[str, DagRun]) -> None:
    task_id, _ = CASES[dag_id]
    events = [json.loads(line) for line in runs[dag_id].log(task_id).splitlines()]
    [failure] = [each for each in events if each.get("error_detail")]
    assert len(failure["error_detail"]) == 1, "the sentence alone, without what it was raised from"
    frames = [frame["filename"] for frame in failure["error_detail"][0]["frames"]]
    assert frames, "Airflow's own"
    assert not [name for name in frames if "airflow_crew_provider" in name]
    warnings = [each["event"] for each in events if each.get("level") == "warning"]
    assert [said for said in warnings if not said.startswith("[openlineage]")] == []


def test_no_token_is_in_any_log(
    airflow: AirflowStack,
    runs: dict[str, DagRun],
    gated_crew: CrewService,
    plain_crew: CrewService,
    failing_crew: CrewService,
) -> None:
    logs = airflow.logs() + gated_crew.log() + plain_crew.log() + failing_crew.log()
    assert "crew_fails" in logs, "the logs are read at all"
    for crew in (gated_crew, plain_crew, failing_crew):
        assert crew.token not in logs
    assert "a-token-that-nobody-knows" not in logs
