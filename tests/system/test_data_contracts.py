"""Outputs as data on real Airflow: what a mapped group sends back by itself, what fails, and keys as XComs."""

from __future__ import annotations

import pytest

from scripts.stack import AirflowStack, CrewService, ProcessGroup, wait_until

CREW = {
    "inputs": ["first", "second", "review"],
    "tasks": [
        {"id": "gather", "agent": "Clerk", "seconds": 0.2, "output": "Figures."},
        {
            "id": "total",
            "agent": "Clerk",
            "seconds": 0.2,
            "human_input": "review",
            "output": '{"total": {first}}',
            "revised": '{"total": {second}, "asked": "{revision}"}',
        },
    ],
}
MATCHES, REVISED, NEVER_MATCHES = 0, 1, 2


@pytest.fixture(scope="module")
def stack(airflow: AirflowStack, group: ProcessGroup) -> AirflowStack:
    service = CrewService(CREW, name="crew-service-totals", group=group).start()
    airflow.api.add_connection("crew_totals", **service.connection)
    return airflow


def test_only_output_keys_become_xcoms_that_feed_the_next_task(
    stack: AirflowStack,
) -> None:
    run = stack.api.trigger("data_keys")
    run.wait_for("success")
    assert run.xcom("double") == 42
    assert run.xcom("count")["output"] == {"total": 21}
    pushed = {entry["key"] for entry in stack.api.pages(f"{run.path}/taskInstances/count/xcomEntries", "xcom_entries")}
    assert "total" in pushed
    assert not pushed & {"state", "output", "usage"}


@pytest.mark.long
def test_a_mapped_groups_schema_revises_once_before_people_see_violations(stack: AirflowStack) -> None:
    run = stack.api.trigger("data_revisions")
    wait_until(lambda: len(run.reviews()) == 3, "three questions", pause=2)
    asked = {each["task_instance"]["map_index"]: each for each in run.reviews()}
    rounds = {index: each["task_instance"]["task_id"].split(".")[2] for index, each in asked.items()}
    assert rounds == {MATCHES: "round_1", REVISED: "round_2", NEVER_MATCHES: "round_2"}
    shows_violations = {index for index, each in asked.items() if "The draft does not match" in each["body"]}
    assert shows_violations == {NEVER_MATCHES}
    assert "Requested in round 1**, by `the schema`" in asked[REVISED]["body"]
    for each in asked.values():
        run.answer(each, "approve", human_feedback="")

    run.wait_for("failed")
    task = "report.crew.result"
    assert run.xcom(task, map_index=MATCHES)["output"] == {"total": 1}
    assert run.xcom(task, map_index=REVISED)["output"] == {"total": 2, "asked": "2"}
    assert run.task(task, map_index=NEVER_MATCHES)["state"] == "upstream_failed"
    said = run.log("report.crew.round_2.wait", map_index=NEVER_MATCHES)
    assert "$.total: 'two' is not of type 'number'" in said
    assert "Only a waiting draft can be revised" in said
