"""One crew for each row of input."""

from __future__ import annotations

from scripts.stack import AirflowStack

TOPICS = [f"topic {number}" for number in range(20)]


def test_a_mapped_kickoff_over_20_topics_gives_20_right_outputs(airflow: AirflowStack) -> None:
    run = airflow.api.trigger("mapped", {"topics": TOPICS})
    run.wait_for("success", timeout=300)
    records = [run.xcom("crew", map_index=index) for index in range(len(TOPICS))]
    assert [record["output"] for record in records] == [f"A text on {topic}." for topic in TOPICS]
    assert len({record["execution_id"] for record in records}) == len(TOPICS)
