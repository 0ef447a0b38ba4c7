"""Run one crew for each of 20 customers, five at a time, and summarize their letters.

The pool `crews` limits how many run at once. It must include deferred tasks:
`airflow pools set crews 5 "Crews that run at once" --include-deferred`

Serve the crew with `airflow-crew-service serve --crew example_dags/crews/customer_letters.json`, and point the
connection `crew_letters` at it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.common.compat.sdk import DAG, task

from airflow_crew_provider.operators.crew import CrewKickoffOperator

LETTER = {
    "type": "object",
    "required": ["customer", "late_invoices", "letter"],
    "properties": {
        "customer": {"type": "string"},
        "late_invoices": {"type": "integer", "minimum": 0},
        "letter": {"type": "string", "minLength": 1},
    },
}

with DAG(
    dag_id="crew_per_customer",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    tags=["crew", "data", "mapping"],
    doc_md=__doc__,
):

    @task
    def customers() -> list[dict[str, Any]]:
        """Return the customers; a real task would query them."""
        return [{"customer": f"Customer {number:02}", "late_invoices": number % 4} for number in range(1, 21)]

    found = customers()
    letters = CrewKickoffOperator.partial(
        task_id="letter",
        crew_conn_id="crew_letters",
        pool="crews",
        map_index_template="{{ task.inputs['customer'] }}",
        wait_for_completion=True,
        deferrable=True,
        poll_interval=1,
        output_schema=LETTER,
        retries=2,  # safe: a retry reattaches to the same execution
        retry_delay=timedelta(seconds=30),
    ).expand(inputs=found)

    @task(trigger_rule="all_done")
    def summarize(asked: list[dict[str, Any]], records: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Summarize the letters that were written, then fail if any customer has none."""
        written = list(records)
        missing = {each["customer"] for each in asked} - {each["output"]["customer"] for each in written}
        summary = {
            "letters": len(written),
            "late_invoices": sum(each["output"]["late_invoices"] for each in written),
        }
        print(summary)  # noqa: T201 - the point of this example
        if missing:
            raise ValueError(f"No letter for {', '.join(sorted(missing))}")
        return summary

    summarize(found, letters.output)
