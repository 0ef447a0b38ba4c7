"""The example with two rounds: a revision by the first person, silence, and an edited draft by the deputy."""

from __future__ import annotations

import pytest

from scripts.stack import AirflowApi, AirflowStack, DagRun, wait_until

EDITED = "Release 2.0 is out, as the deputy wrote."


@pytest.mark.long
def test_a_deputy_edits_the_second_draft_after_the_reviewers_silence(airflow: AirflowStack) -> None:
    run = airflow.api.trigger("crew_two_rounds", {"topic": "oil"})
    of_rita = DagRun(AirflowApi(airflow.url, "rita", airflow.passwords["rita"]), run.dag_id, run.run_id)
    first = run.wait_for_review()
    assert "Draft 1 on oil" in first["body"]
    of_rita.answer(first, "revise", human_feedback="Shorter.")

    second = run.wait_for_review()
    assert "this is the last round" in second["body"]
    silent = "step 1 of the escalation; admin may now answer too"
    wait_until(lambda: silent in run.log("note.round_2.review"), "the escalation")
    run.answer(run.wait_for_review(), "approve", human_feedback="", edited_draft=EDITED)

    run.wait_for("success")
    assert run.xcom("publish") == EDITED
    assert run.xcom("note.round_1.review")["reviewer"]["id"] == "rita"
    review = run.xcom("note.round_2.review")
    assert (review["reviewer"]["id"], review["edited_output"]) == ("admin", EDITED)
