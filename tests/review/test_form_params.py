"""The form shows the feedback and the task's own params, and none of its DAG's, on every Airflow that has reviews."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict
from airflow_stand_ins import PENDING

from airflow_crew_provider.operators.review import CrewReviewOperator

OF_DAG = {"topic": "tea", "size": Param(3, type="integer", minimum=1)}


@pytest.fixture(params=["as installed", "without a source, as on 3.1"], autouse=True)
def airflow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away by what later versions tell the task's params from the DAG's; 3.1 has none of it."""
    if request.param.startswith("without"):
        monkeypatch.delattr(ParamsDict, "filter_params_by_source", raising=False)
        monkeypatch.delattr(ParamsDict, "_fill_missing_param_source", raising=False)
        monkeypatch.setattr("airflow.sdk.bases.operator.get_merged_defaults", _merged_as_on_31)


def _merged_as_on_31(dag: Any, task_group: Any, task_params: Any, task_default_args: Any) -> tuple[Any, ParamsDict]:
    merged = copy.deepcopy(dag.params) if dag else ParamsDict()
    merged.update(task_params or {})
    return dict(dag.default_args if dag else {}), merged


def fields_of(of_dag: dict[str, Any] | None, **arguments: Any) -> dict[str, Any]:
    if of_dag is None:
        return CrewReviewOperator(task_id="review", pending=PENDING, **arguments).serialized_params
    with DAG("form", schedule=None, params=of_dag):
        return CrewReviewOperator(task_id="review", pending=PENDING, **arguments).serialized_params


@pytest.mark.parametrize("of_dag", [None, {}, OF_DAG], ids=["no DAG", "a DAG without params", "a DAG with params"])
def test_task_params_appear_on_the_form_beside_the_feedback(of_dag: dict[str, Any] | None) -> None:
    fields = fields_of(of_dag, params={"tone": Param("kind", type="string")})
    assert set(fields) == {"tone", "human_feedback"}
    assert fields["tone"]["value"] == "kind"


def test_task_params_override_dag_params_of_the_same_name() -> None:
    fields = fields_of(OF_DAG, params={"topic": "coffee"})
    assert {name: field["value"] for name, field in fields.items()} == {"topic": "coffee", "human_feedback": ""}


def test_without_task_params_the_form_has_only_the_feedback() -> None:
    assert set(fields_of(OF_DAG)) == {"human_feedback"}
