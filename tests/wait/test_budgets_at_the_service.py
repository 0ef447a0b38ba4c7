"""Rows N30 and N33 against the real crew service, which counts tokens and, with prices, what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from faults.proxy import POLL, Fault, FaultProxy, Forward
from faults.wire import Reply
from simulated_airflow import Connect, TaskRun, run
from waiting_tasks import in_both_places, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from scripts.stack.waiting import wait_until

local = pytest.importorskip("crew_service.local", reason="needs the crew service")
prices = pytest.importorskip("crew_service.prices")

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
UNTIL_IT_IS_STOPPED = 600.0
PRICE = {"cheap": {"input": 1, "output": 2500}}  # a quarter of a USD for 100 tokens
Serve = Callable[..., None]
in_both_dialects = pytest.mark.parametrize("dialect", ["spec", "live"])


def a_task(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"task_{number}", "tokens": 100, "model": "cheap", "output": "x", **more}


# Of ten tasks, the third passes the budgets below. The fourth lasts until the crew is stopped.
TEN = [a_task(number, seconds=0.05 if number < 3 else UNTIL_IT_IS_STOPPED) for number in range(10)]
ASKS = [a_task(number, human_input=number == 2) for number in range(3)]
OVER_TOKENS = "used 300 tokens, more than max_total_tokens of 250"
OVER_COST = "cost 0.75 USD, more than max_cost of 0.6"


@pytest.fixture
def serve(connect: Connect, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Serve a crew with prices behind the connection, perhaps with a proxy between."""
    file = tmp_path / "prices.json"
    file.write_text(json.dumps(PRICE))
    running: list[Any] = []

    def serve(tasks: list[dict[str, Any]], *, dialect: str = "spec", without: Fault | None = None) -> None:
        priced = prices.Prices.read(str(file))
        running.append(local.running_service(scenario={"tasks": tasks}, dialect=dialect, prices=priced))
        service, url = running[-1].__enter__(), None
        if without:
            running.append(FaultProxy(service.url, seed=1, rate=1.0, faults=[without]))
            url = running[-1].__enter__().url
        connect(url or service.url, token=service.token)

    yield serve
    while running:
        running.pop().__exit__(None, None, None)


def failure(operator: Any, task_run: TaskRun) -> str:
    with pytest.raises(CrewTaskFailed) as failed:
        run(operator, task_run)
    assert isinstance(failed.value, AirflowFailException)
    return str(failed.value)


def executions() -> list[Any]:
    return CrewHook().list_executions()


def started(hook: CrewHook, state: ExecutionState) -> str:
    kickoff_id = hook.kickoff({})
    wait_until(lambda: hook.get_status(kickoff_id).state is state, f"the execution to be {state}")
    return kickoff_id


@pytest.mark.row("N33")
@in_both_places
@in_both_dialects
@pytest.mark.parametrize(
    ("budget", "passed"),
    [({"max_cost": 0.6}, OVER_COST), ({"max_total_tokens": 250}, OVER_TOKENS)],
    ids=["cost", "tokens"],
)
def test_a_crew_is_stopped_at_the_task_exceeding_its_budget(
    serve: Serve, dialect: str, deferrable: bool, budget: dict[str, Any], passed: str
) -> None:
    serve(TEN, dialect=dialect)
    task_run = TaskRun()
    said = failure(kickoff_that_waits(deferrable=deferrable, **budget), task_run)
    [execution] = executions()
    assert said.startswith(f"Execution {execution.kickoff_id} {passed}. Execution {execution.kickoff_id} was stopped. ")
    assert execution.state is ExecutionState.ERROR
    for _ in range(2):
        again = failure(kickoff_that_waits(deferrable=deferrable, **budget), task_run.retry())
        assert again.startswith(
            f"Execution {execution.kickoff_id} {passed}. Execution {execution.kickoff_id} has ended"
        )
    assert len(executions()) == 1


@pytest.mark.row("N33")
@in_both_places
@in_both_dialects
def test_nobody_is_asked_about_a_draft_of_an_overspent_execution(serve: Serve, dialect: str, deferrable: bool) -> None:
    serve(ASKS, dialect=dialect)
    kickoff_id = CrewHook().kickoff({})
    wait: dict[str, Any] = {"kickoff_id": kickoff_id, "deferrable": deferrable, "max_cost": 0.6}
    said = failure(sensor_that_waits(**wait), TaskRun("wait"))
    assert said.startswith(f"Execution {kickoff_id} {OVER_COST}. Execution {kickoff_id} was stopped. ")
    assert failure(sensor_that_waits(**wait), TaskRun("wait")).startswith(f"Execution {kickoff_id} {OVER_COST}. ")
    assert len(executions()) == 1


@pytest.mark.row("N33")
@in_both_places
def test_a_cost_within_the_budget_is_handed_on(serve: Serve, deferrable: bool) -> None:
    serve([a_task(1), a_task(2)])
    record = run(kickoff_that_waits(deferrable=deferrable, max_cost=0.5, max_total_tokens=200))
    of_model = {"total_tokens": 200, "prompt_tokens": 0, "completion_tokens": 200, "cost_usd": 0.5}
    assert record["usage"] == {**of_model, "by_model": {"cheap": of_model}}


def _without_usage(forward: Forward, random: Random) -> Reply:
    whole = forward()
    kept = {name: text for name, text in whole.headers.items() if name.lower() != USAGE.lower()}
    assert len(kept) == len(whole.headers) - 1
    return Reply(status=whole.status, body=whole.body, headers=kept)


@pytest.mark.row("N30")
@in_both_places
@pytest.mark.parametrize(
    ("budget", "missing"),
    [
        ({"max_total_tokens": 10}, "how many tokens it used (max_total_tokens is 10)"),
        ({"max_cost": 0.1}, "what it cost (max_cost is 0.1)"),
    ],
    ids=["tokens", "cost"],
)
def test_a_costly_execution_fails_if_proxies_remove_the_usage_header(
    serve: Serve, deferrable: bool, budget: dict[str, Any], missing: str
) -> None:
    serve([a_task(1, tokens=500_000)], without=Fault("N30", "usage removed", POLL, _without_usage))
    task_run = TaskRun()
    said = failure(kickoff_that_waits(deferrable=deferrable, **budget), task_run)
    [execution] = executions()
    assert said.startswith(
        f"For execution {execution.kickoff_id}, the service did not report {missing}. Make the service "
    )
    assert "or set on_unknown_usage='ignore'" in said
    assert failure(kickoff_that_waits(deferrable=deferrable, **budget), task_run.retry()) == said
    assert len(executions()) == 1


@pytest.mark.row("N30")
@in_both_places
@in_both_dialects
def test_an_unpriced_model_is_named_and_its_cost_is_unknown(serve: Serve, dialect: str, deferrable: bool) -> None:
    serve([a_task(1), a_task(2, model="new")], dialect=dialect)
    budget: dict[str, Any] = {"deferrable": deferrable, "max_cost": 0.5}
    said = failure(kickoff_that_waits(**budget), TaskRun())
    assert "what it cost (max_cost is 0.5; cost unknown for 'new'). Make the service" in said
    record = run(kickoff_that_waits(**budget, on_unknown_usage="ignore"))
    assert (record["usage"]["cost_usd"], record["usage"]["by_model"]["new"]["cost_usd"]) == (None, None)


@pytest.mark.row("N33")
@in_both_places
def test_priced_models_may_pass_the_budget_beside_an_unpriced_one(serve: Serve, deferrable: bool) -> None:
    serve([a_task(99, model="new"), *TEN])
    said = failure(kickoff_that_waits(deferrable=deferrable, max_cost=0.6, on_unknown_usage="ignore"), TaskRun())
    assert "cost at least 0.75 USD, more than max_cost of 0.6. Execution" in said
    assert [each.state for each in executions()] == [ExecutionState.ERROR]
