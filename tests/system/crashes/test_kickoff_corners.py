"""Kickoffs and waits in the corners that only real processes have: kills, edited DAG files, connections that vanish."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from faults.proxy import KICKOFF, REFUSED_POSTS, Answer, Fault, FaultProxy, Forward
from faults.wire import Reply
from held import Deployment, HeldAnswer, holding, kill_worker, wait_for_looks, wait_until_deferred

from scripts.stack import AirflowStack, wait_until
from scripts.stack.waiting import PATIENCE

BUDGET_BEGINS = 8  # seconds after the refusal


@pytest.mark.long  # without processes: test_kickoff_retries.py
@pytest.mark.row("A15")
def test_a_task_killed_during_the_post_reports_the_send_time(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic, deployment, held = "killed during the post", deployments["spec"], HeldAnswer()
    faults = holding(held)
    with (
        FaultProxy(deployment.url, seed=0, rate=1.0, faults=faults) as proxy,
        deployment.behind(proxy, airflow) as crew,
    ):
        run = airflow.api.trigger("in_worker", {"crew": crew, "topic": topic})
        assert held.taken.wait(PATIENCE)
        run.mark_task("crew", "failed")
        said = "killed while a kickoff sent at 20"
        wait_until(lambda: said in run.log("crew", try_number=1), said)
        held.release.set()
        deployment.crew.let_go(topic)
    assert len(deployment.executions(topic)) == 1


@pytest.mark.long
@pytest.mark.row("A16")
def test_retrying_with_other_inputs_starts_nothing_beside_a_running_execution(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic, deployment = "other inputs", deployments["spec"]
    with FaultProxy(deployment.url, seed=0, faults=()) as proxy, deployment.behind(proxy, airflow) as crew:
        run = airflow.api.trigger("other_inputs_each_try", {"crew": crew, "topic": topic})
        wait_for_looks(proxy)
        kill_worker(airflow, run)
        said = "No second execution is started while the first may still be running"
        wait_until(lambda: said in run.log("crew", try_number=2), said)
        assert len(deployment.executions(topic)) == 1
        deployment.crew.let_go(topic)
        run.wait_for("success")
        first, second = deployment.executions(topic)
        assert run.xcom("crew")["execution_id"] == second["id"] != first["id"]


@pytest.mark.long  # without processes: test_kickoff_record.py
@pytest.mark.row("A34")
@pytest.mark.since_airflow("3.3")  # before, the record goes with the task's success
def test_a_clear_after_lowering_retries_counts_as_a_retry_once(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic, deployment = "edited retries", deployments["spec"]
    deployment.crew.let_go(topic)
    with FaultProxy(deployment.url, seed=0, faults=()) as proxy, deployment.behind(proxy, airflow) as crew:
        run = airflow.api.trigger("edited_retries", {"crew": crew, "topic": topic})
        run.wait_for("success")
        before = run.task("crew")["max_tries"]
        (airflow.home / "retries_of_the_edited_kickoff").write_text("1")
        airflow.api.parse_again("edited_retries")
        wait_until(lambda: _retries(airflow) == 1, "the edited DAG", pause=1)
        run.clear("crew")
        wait_until(lambda: run.task("crew")["try_number"] == 2, "the second try")
        run.wait_for("success")
        assert run.task("crew")["max_tries"] == before, "else this proves nothing"
        (first,) = deployment.executions(topic)
        assert run.xcom("crew") == first["id"]
        assert "clear it once more" in run.log("crew", try_number=2)
        run.clear("crew")
        wait_until(lambda: run.task("crew")["try_number"] == 3, "the third try")
        run.wait_for("success")
        _, second = deployment.executions(topic)
        assert run.xcom("crew") == second["id"]


def _retries(airflow: AirflowStack) -> int:
    return int(airflow.api.json("GET", "dags/edited_retries/tasks/crew")["retries"])


@pytest.mark.long
@pytest.mark.row("N18")
def test_a_temporarily_missing_connection_fails_neither_wait_nor_kickoff(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic, other, deployment = "gone for a while", "gone at first", deployments["spec"]
    with FaultProxy(deployment.url, seed=0, faults=()) as proxy, deployment.behind(proxy, airflow) as crew:
        run = airflow.api.trigger("deferred", {"crew": crew, "topic": topic})
        wait_until_deferred(run, proxy)
        airflow.api.call("DELETE", f"connections/{crew}")
        airflow.restart("triggerer")
        late = airflow.api.trigger("in_worker", {"crew": crew, "topic": other})
        wait_until(lambda: "isn't defined" in late.log("crew", try_number=1), "a try without its connection")
        assert "No execution was started" in late.log("crew", try_number=1)
        token = deployment.token
        airflow.api.add_connection(crew, conn_type="crew", host=proxy.url, password=token)
        deployment.crew.let_go(topic, other)
        run.wait_for("success")
        late.wait_for("success")
    assert len(deployment.executions(topic)) == len(deployment.executions(other)) == 1


@pytest.mark.row("A37")
@pytest.mark.since_airflow("3.4")
def test_a_try_that_is_rescheduled_waits_for_its_first_execution(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic, deployment = "rescheduled", deployments["spec"]
    with FaultProxy(deployment.url, seed=0, faults=()) as proxy, deployment.behind(proxy, airflow) as crew:
        run = airflow.api.trigger("rescheduled", {"crew": crew, "topic": topic})
        message = "reattaching to it"
        wait_until(lambda: run.log("crew", try_number=1).count(message) >= 2, "two reschedules")
        deployment.crew.let_go(topic)
        run.wait_for("success")
    assert len(deployment.executions(topic)) == 1


@pytest.mark.long
@pytest.mark.row("A51")
@pytest.mark.since_airflow("3.3")
def test_a_rule_that_names_our_error_decides_about_the_retry(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic, deployment = "refused for good", deployments["spec"]
    refusals = [each for each in REFUSED_POSTS if each.call == KICKOFF]
    with (
        FaultProxy(deployment.url, seed=0, rate=1.0, faults=refusals) as proxy,
        deployment.behind(proxy, airflow) as crew,
    ):
        run = airflow.api.trigger("refused_for_good", {"crew": crew, "topic": topic})
        run.wait_for("failed")
    assert run.task("crew")["try_number"] == 1, "else the task's own retries decided"
    assert not deployment.executions(topic)


@pytest.mark.long
@pytest.mark.row("A51")
@pytest.mark.since_airflow("3.3")
def test_a_budget_refused_kickoff_is_retried_when_the_budget_renews(
    airflow: AirflowStack, deployments: dict[str, Deployment]
) -> None:
    topic, deployment, sent = "waits for its budget", deployments["spec"], []
    until = (datetime.now(UTC) + timedelta(seconds=BUDGET_BEGINS)).isoformat(timespec="seconds")
    refusal = {"detail": "The budget is used up.", "budget": {"who": "*", "window": "hour", "until": until}}

    def refused_once(forward: Forward, random: Random) -> Answer:
        sent.append(time.monotonic())
        if len(sent) > 1:
            return forward()
        return Reply(status=429, headers={"Retry-After": str(BUDGET_BEGINS)}, body=refusal)

    deployment.crew.let_go(topic)
    fault = Fault("A51", "budget used up", KICKOFF, refused_once)
    with (
        FaultProxy(deployment.url, seed=0, rate=1.0, faults=[fault]) as proxy,
        deployment.behind(proxy, airflow) as crew,
    ):
        run = airflow.api.trigger("waits_for_budget", {"crew": crew, "topic": topic})
        run.wait_for("success")
    assert len(sent) == 2
    assert sent[1] - sent[0] >= BUDGET_BEGINS  # and not the task's own retry_delay of an hour
    assert "budget" in run.log("crew", try_number=1)
    assert len(deployment.executions(topic)) == 1
