"""The OpenLineage facet for a crew's execution; imported only when OpenLineage needs it.

Its schema is in `docs/crew-run-facet.json`. The facet never contains the values of inputs, outputs or feedback.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attrs import define
from openlineage.client.facet_v2 import RunFacet

from airflow_crew_provider.models import Json, cost_usd, total_tokens

SCHEMA = "urn:airflow-crew-provider:crew-run-facet:1"


@define
class CrewRunFacet(RunFacet):
    """The state of an execution when its task last saw it; unknown fields are None."""

    connId: str
    inputNames: list[str]
    kickoffId: str | None = None
    executionId: str | None = None
    state: str | None = None
    totalTokens: float | None = None
    costUsd: float | None = None

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA


@dataclass(frozen=True)
class Lineage:
    """The fields that OpenLineage's extractor reads; it adds the task's inlets and outlets as inputs and outputs."""

    run_facets: dict[str, RunFacet]
    job_facets: dict[str, Any] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def lineage_of(conn_id: str, input_names: list[str], report: Json) -> Lineage:
    """Return a task's lineage.

    :param report: the fields recorded by `CrewTask.report`; empty before the first POST
    """
    facet = CrewRunFacet(
        connId=conn_id,
        inputNames=input_names,
        kickoffId=report.get("kickoff_id"),
        executionId=report.get("execution_id"),
        state=report.get("state"),
        totalTokens=total_tokens(report.get("usage")),
        costUsd=cost_usd(report.get("usage")),
    )
    return Lineage({"crew": facet})
