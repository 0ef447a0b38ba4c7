"""One trace from a DAG run of Airflow to the calls of a crew's model, over a review and a kill of the service."""

from __future__ import annotations

from contextlib import closing

import pytest

from scripts.stack.collector import Collector
from scripts.trace_picture import drawn, play, rows


def of_task(task_id: str) -> tuple[str, ...]:
    """Return the spans of a task and of its run, as Airflow 3.3 names them."""
    return f"worker.{task_id}", f"task_run.{task_id}", "dag_run.crew_review"


CREW = ("call llm", "execute agent", "execute task", "execute crew", "segment")
FROM_CALL_TO_RUN = (*CREW, "POST /kickoff", "POST /kickoff", *of_task("article.kickoff"))


@pytest.mark.long
def test_one_trace_spans_dag_run_review_restart_and_model_calls() -> None:
    with closing(Collector()) as collector:
        _, trace = play(collector)
        spans = [span for span in collector.spans if span.trace_id == trace]
        calls = [span for span in spans if span.name == "call llm"]
        assert {tuple(collector.lineage(call)) for call in calls} == {FROM_CALL_TO_RUN}
        [answer] = [span for span in spans if span.name == "POST /resume" and span.service == "airflow-crew-service"]
        assert collector.lineage(answer)[1:] == ["POST /resume", *of_task("article.round_1.resume")]
        last = collector.named("segment")[-1]
        assert last.links == (answer.span_id,)
        assert len([span for span in spans if span.name == "segment"]) == 2
        assert not any(b"salt" in body for body in collector.raw)
        assert drawn(rows(spans)).count("call llm") == len(calls) > 0
