"""One Airflow and its crew services for all tests of a worker, started once: they cost half a minute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.statsd import StatsdServer
from fork_template import forked_services

from scripts.find_postgres import WANTED, server_url
from scripts.stack import AirflowStack, CrewService, ProcessGroup, free_port

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "example_dags"
SECONDS = 1.0
LINEAGE = "lineage.jsonl"
GROUPS: list[ProcessGroup] = []
GATED_CREW = {
    "inputs": ["topic"],
    "tasks": [
        # Long enough to be seen at work on a busy machine.
        {"id": "research", "agent": "Researcher", "seconds": 8.0, "output": "Notes on {topic}."},
        {
            "id": "write",
            "agent": "Writer",
            "seconds": 4.0,
            "human_input": "review",  # as the demo crew: unless the input `review` says no
            "output": "Draft {revision} on {topic}.",
            "revised": "Draft {revision} on {topic}, after: {feedback}",
        },
    ],
}
PLAIN_CREW = {
    "inputs": ["topic"],
    "tasks": [{"id": "write", "agent": "Writer", "seconds": SECONDS, "output": "A text on {topic}."}],
}
FAILING_CREW = {
    "inputs": ["topic"],
    "tasks": [{"id": "write", "agent": "Writer", "seconds": SECONDS, "error": "ValueError: no ink left"}],
}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)
            # One Airflow serves a group, named after the folder; most of the time its tests wait.
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))


@pytest.fixture(scope="session")
def postgres() -> str:
    """A PostgreSQL server on which a test may make its databases."""
    server = server_url()
    if not server:
        pytest.skip(WANTED)
    return server


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the processes with the last test that needs them: they would take a fifth of the time of the others."""
    if nextitem is None or HERE not in nextitem.path.parents:
        for group in GROUPS:
            group.stop()


@pytest.fixture(scope="session", autouse=True)
def _forked_services() -> Iterator[None]:
    with forked_services():
        yield


@pytest.fixture(scope="session")
def group() -> Iterator[ProcessGroup]:
    with ProcessGroup() as group:
        GROUPS.append(group)
        yield group


@pytest.fixture(scope="session")
def gated_crew(group: ProcessGroup) -> CrewService:
    """A crew that asks a person; the example DAGs talk to it."""
    return CrewService(GATED_CREW, name="crew-service-gated", group=group).start()


@pytest.fixture(scope="session")
def plain_crew(group: ProcessGroup) -> CrewService:
    return CrewService(PLAIN_CREW, name="crew-service-plain", group=group).start()


@pytest.fixture(scope="session")
def failing_crew(group: ProcessGroup) -> CrewService:
    return CrewService(FAILING_CREW, name="crew-service-failing", group=group).start()


@pytest.fixture(scope="session")
def statsd() -> Iterator[StatsdServer]:
    """Receives the metrics of the shared Airflow."""
    with StatsdServer() as server:
        yield server


@pytest.fixture(scope="session")
def airflow(
    group: ProcessGroup,
    gated_crew: CrewService,
    plain_crew: CrewService,
    failing_crew: CrewService,
    statsd: StatsdServer,
) -> AirflowStack:
    """The shared Airflow: the example DAGs and those beside these tests, on PostgreSQL where there is one."""
    stack = AirflowStack(
        dags=[EXAMPLES, HERE / "dags"],
        connections={
            "crew_default": gated_crew.connection,
            "crew_plain": plain_crew.connection,
            "crew_failing": failing_crew.connection,
            "crew_wrong_token": {**gated_crew.connection, "password": "a-token-that-nobody-knows"},
            "crew_down": {**gated_crew.connection, "host": f"http://127.0.0.1:{free_port()}"},
        },
        users={"admin": "ADMIN", "op": "OP", "rita": "USER", "no-xcoms": "VIEWER", "no-dag": "VIEWER"},
        env={
            "AIRFLOW__CORE__AUTH_MANAGER": "limited_auth.LimitedAuthManager",
            "AIRFLOW__CREW__TASK_TAB": "True",
            # To look for work costs as much as a small task; three of these schedulers share two cores with the tests.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "2",
            "CREW_EXAMPLE_PATIENCE": "30",
            "PYTHONPATH": str(HERE / "auth"),
            **statsd.environment,
        },
        postgres=server_url(),
        group=group,
    )
    transport = {"type": "file", "log_file_path": str(stack.home / LINEAGE), "append": True}
    stack.env["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps(transport)
    stack.env["AIRFLOW__OPENLINEAGE__DISABLED"] = "False"
    stack.env["AIRFLOW__OPENLINEAGE__SELECTIVE_ENABLE"] = "True"
    return stack.start_all()


@pytest.fixture
def lineage(airflow: AirflowStack) -> Path:
    """The file with the OpenLineage events of DAGs that ask for them."""
    return airflow.home / LINEAGE
