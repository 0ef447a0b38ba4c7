"""Which of Airflow's internals the installed Airflow has, and that only `compat/` touches them.

The table is the list to go through for a new version of Airflow. Each row was checked on 2.11.2, 3.0.6, 3.1.8, 3.2.2
and 3.3.2.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import airflow
import pytest
from packaging.version import Version

import airflow_crew_provider

PACKAGE = Path(airflow_crew_provider.__file__).parent
INSTALLED = Version(Version(airflow.__version__).base_version)
# Names that Airflow and its compat provider promise; all else stands in `compat/`.
PUBLIC = ("airflow.providers.common.compat.sdk", "airflow.triggers.base")


@dataclass(frozen=True)
class Internal:
    """One name of Airflow's: ``module:attribute.attribute``, and which versions have it."""

    name: str
    used_by: str
    purpose: str
    since: str = "2.11"
    until: str = "99"  # the first version without it

    @property
    def is_expected(self) -> bool:
        return Version(self.since) <= INSTALLED < Version(self.until)

    def is_there(self) -> bool:
        module, _, attributes = self.name.partition(":")
        try:
            found = importlib.import_module(module)
            for attribute in attributes.split(".") if attributes else ():
                found = _member(found, attribute)
        except Exception:  # a provider that refuses an old Airflow raises an error of its own
            return False
        return True


def _member(owner: object, name: str) -> object:
    """Return an attribute, a field of a Pydantic model, or what a module or class only declares or sets."""
    if hasattr(owner, name):
        return getattr(owner, name)
    declared = {**getattr(owner, "model_fields", {}), **getattr(owner, "__annotations__", {})}
    return declared[name] if name in declared else _set_in_constructor(owner, name)


def _set_in_constructor(owner: object, name: str) -> object:
    assert isinstance(owner, type)
    assert name in owner.__init__.__code__.co_names  # type: ignore[misc]
    return name


RUNNER = "airflow.sdk.execution_time.task_runner"
HITL = "airflow.providers.standard.operators.hitl:HITLOperator"
DETAIL = "airflow.sdk.execution_time.comms:CreateHITLDetailPayload"
TASK = "airflow.models.taskinstance:TaskInstance"
XCOM = "airflow.models.xcom:XComModel"
TRIGGER = "airflow.models.trigger:Trigger"
ROW = "a query of the inbox"
INTERNALS = [
    Internal(RUNNER, "compat/supervisor.py", "tells Airflow 3 from 2", since="3.0"),
    Internal(f"{RUNNER}:SUPERVISOR_COMMS", "compat/supervisor.py", "the line to Airflow", since="3.0"),
    Internal(f"{RUNNER}:RuntimeTaskInstance.get_task_states", "compat/supervisor.py", "a task's state", since="3.0"),
    Internal("airflow.sdk.exceptions:AirflowTaskTimeout", "compat/supervisor.py", "why on_kill is called", since="3.2"),
    Internal("airflow.exceptions:AirflowTaskTimeout", "compat/supervisor.py", "the same before 3.2"),
    Internal("airflow.triggers.base:BaseTrigger", "compat/supervisor.py", "base class of the trigger"),
    Internal("airflow.triggers.base:BaseTrigger.on_kill", "compat/supervisor.py", "a user's kill", since="3.3"),
    Internal("airflow.triggers.base:BaseTrigger.task_instance", "tasks/cancellation.py", "whose state is asked for"),
    Internal("airflow.triggers.base:BaseTrigger.cleanup", "triggers/crew.py", "gives the session back"),
    Internal("airflow.models.taskinstance:TaskInstance.state", "compat/supervisor.py", "a task's state on 2.11"),
    Internal(f"{TASK}.job_id", "compat/supervisor.py", "tells a worker from a call by hand on 2.11", until="3.0"),
    Internal("airflow.utils.session:create_session", "compat/database.py", "a transaction"),
    Internal(f"{XCOM}.key", "compat/database.py", ROW, since="3.0"),
    Internal(f"{XCOM}.value", "compat/database.py", ROW, since="3.0"),
    Internal(f"{XCOM}.timestamp", "compat/database.py", "the row that is locked", since="3.0"),
    Internal(f"{XCOM}.dag_run_id", "compat/database.py", ROW, since="3.0"),
    Internal(f"{XCOM}.map_index", "compat/database.py", ROW, since="3.0"),
    Internal("airflow.models.dagrun:DagRun.state", "compat/database.py", ROW),
    Internal(f"{TASK}.trigger_id", "compat/database.py", ROW),
    Internal(f"{TASK}.next_kwargs", "compat/database.py", "finds the tasks that wait for an execution"),
    Internal(f"{TRIGGER}.classpath", "compat/database.py", ROW),
    Internal(f"{TRIGGER}.kwargs", "compat/database.py", ROW),
    Internal(f"{TRIGGER}.created_date", "compat/database.py", "when the task was deferred"),
    Internal(f"{TRIGGER}.submit_event", "compat/database.py", "wakes a deferred task"),
    Internal("airflow.triggers.base:TriggerEvent", "compat/database.py", "what wakes it"),
    Internal("airflow.state:get_state_backend", "compat/database.py", "keeps a question through a retry", since="3.3"),
    Internal("airflow.state:TaskScope", "compat/database.py", "names the task in that store", since="3.3"),
    Internal("airflow.sdk.execution_time.context:NEVER_EXPIRE", "compat/task_state.py", "the store", since="3.3"),
    Internal(
        "airflow.providers.common.compat.sdk:DecoratedOperator", "compat/decorator.py", "base class of `@task.crew`"
    ),
    Internal("airflow.providers.common.compat.sdk:BaseOperator", "compat/decorator.py", "whether it has `xcom_push`"),
    Internal("airflow.providers.common.compat.sdk:Variable", "compat/task_state.py", "the store before 3.3"),
    Internal("airflow.providers.common.compat.sdk:conf", "compat/deferral.py", "the supervisor's heartbeat"),
    Internal("airflow.providers.common.compat.sdk:XCom", "compat/xcoms.py", "whether a backend is configured"),
    Internal("airflow.sdk.bases.xcom:BaseXCom.get_one", "compat/xcoms.py", "reads the inbox", since="3.0"),
    Internal("airflow.sdk.bases.xcom:BaseXCom.get_all", "compat/xcoms.py", "the tasks that registered", since="3.0"),
    Internal("airflow.sdk.bases.xcom:BaseXCom.set", "compat/xcoms.py", "past an XCom backend", since="3.0"),
    Internal("airflow.sdk.bases.xcom:BaseXCom.aget_one", "compat/xcoms.py", "without a thread", since="3.3"),
    Internal("airflow.models.dagrun:DagRun.clear_number", "compat/attempt.py", "tells a clear from a retry"),
    Internal("airflow.providers.common.compat.sdk:BaseHook", "compat/connections.py", "the same in `dag.test()`"),
    Internal(
        "airflow.providers.common.compat.connection:get_async_connection",
        "compat/connections.py",
        "looks a connection up in a trigger",
    ),
    Internal("airflow.providers.common.compat.sdk:Stats", "compat/metrics.py", "the metrics of a task"),
    Internal("airflow.observability.stats:Stats", "compat/metrics.py", "those of a triggerer", since="3.2"),
    Internal("airflow.stats:Stats", "compat/metrics.py", "the same before 3.2"),
    Internal("airflow.assets.manager:asset_manager", "compat/crew_assets.py", "adds an event", since="3.0"),
    *(
        Internal(f"airflow.models.asset:{name}", "compat/crew_assets.py", "events that are known", since="3.0")
        for name in ("AssetModel.uri", "AssetModel.active", "AssetEvent.asset_id", "AssetEvent.extra")
    ),
    Internal("airflow.models.connection:Connection", "compat/crew_senders.py", "the secrets of webhooks"),
    Internal("airflow.models.variable:Variable", "compat/flow_store.py", "where questions of Flows are stored"),
    Internal("airflow.providers.common.compat.sdk:mask_secret", "compat/flow_variables.py", "hides a callback's token"),
    Internal("airflow:__version__", "compat/version.py", "whether plugins can serve the inbox"),
    Internal(HITL, "compat/human_in_the_loop.py", "base class of the review", since="3.1"),
    *(
        Internal(f"airflow.models.hitl:HITLDetail.{name}", "compat/refusal_notice.py", "a question's row", since="3.1")
        for name in ("body", "options", "params", "responded_at", "responded_by", "chosen_options", "params_input")
    ),
    Internal(
        "airflow.providers.standard.triggers.hitl:HITLTrigger",
        "compat/answer_trigger.py",
        "waits for a person before 3.3",
        since="3.1",
    ),
    Internal(f"{HITL}.serialized_params", "compat/human_in_the_loop.py", "the form as Airflow stores it", since="3.1"),
    Internal("airflow.sdk:Param", "compat/human_in_the_loop.py", "a field of the form", since="3.0"),
    Internal(
        "airflow.sdk.definitions.param:ParamsDict.get_param", "compat/human_in_the_loop.py", "the form", since="3.0"
    ),
    Internal(
        "airflow.sdk.definitions.param:ParamsDict.filter_params_by_source",
        "compat/human_in_the_loop.py",
        "tells the task's params from its DAG's",
        since="3.2",
    ),
    *(
        Internal(f"{DETAIL}.{field}", "compat/human_in_the_loop.py", "a field of the question", since="3.1")
        for field in ("ti_id", "options", "subject", "body", "defaults", "multiple", "params", "assigned_users")
    ),
    Internal("airflow.providers.common.compat.sdk:ParamValidationError", "compat/human_in_the_loop.py", "a bad answer"),
    Internal("airflow.sdk.exceptions:TaskAwaitingInput", "compat/human_in_the_loop.py", "parks a review", since="3.3"),
    Internal("airflow.providers.common.compat.sdk:TaskDeferred", "compat/human_in_the_loop.py", "looks for an answer"),
    *(
        Internal(name, "compat/human_in_the_loop.py", "no answer was found", since=since)
        for name, since in (
            ("airflow.sdk.exceptions:TaskDeferralError", "3.2"),
            ("airflow.sdk.exceptions:TaskDeferralTimeout", "3.2"),
            ("airflow.exceptions:TaskDeferralError", "2.11"),
            ("airflow.exceptions:TaskDeferralTimeout", "3.0"),
        )
    ),
    Internal(
        "airflow.providers.common.compat.sdk:BaseSensorOperator._get_next_poke_interval",
        "sensors/crew.py",
        "the pause between two pokes",
    ),
]


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda each: each.name)
def test_the_installed_airflow_has_what_the_package_uses_of_its_internals(internal: Internal) -> None:
    there = internal.is_there()
    assert there or not internal.is_expected, (
        f"Airflow {INSTALLED} has no {internal.name}, which {internal.used_by} uses ({internal.purpose}). Find what "
        "took its place, handle it there, and note in this table until which version it existed"
    )
    assert internal.is_expected or not there, (
        f"Airflow {INSTALLED} has {internal.name} although the table says: from {internal.since} until before "
        f"{internal.until}. Correct the table; {internal.used_by} may take another way than was tried"
    )


def imports_of_airflow(path: Path) -> Iterator[str]:
    """Yield ``module:name`` for each name of Airflow's that a file imports, wherever in it it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [f"{alias.name}:" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}:{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(":")[0].split(".")[0] == "airflow")


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_compat_touches_the_internals_of_airflow(path: Path) -> None:
    if path.parent.name == "compat":
        return
    private = [name for name in imports_of_airflow(path) if name.split(":")[0] not in PUBLIC]
    assert private == [], f"{path.name} imports {', '.join(private)}; what is not public belongs into compat/"


@pytest.mark.parametrize("path", sorted((PACKAGE / "compat").glob("[!_]*.py")), ids=lambda path: path.name)
def test_every_internal_that_compat_imports_stands_in_the_table(path: Path) -> None:
    listed = {part for internal in INTERNALS for part in _parts(internal.name)}
    assert [name for name in imports_of_airflow(path) if name.rstrip(":").replace(":", ".") not in listed] == []


def _parts(name: str) -> Iterator[str]:
    """Yield a dotted name and all that it is a part of."""
    words = name.replace(":", ".").split(".")
    yield from (".".join(words[:length]) for length in range(1, len(words) + 1))


@pytest.mark.parametrize("path", sorted((PACKAGE / "compat").glob("[!_]*.py")), ids=lambda path: path.name)
def test_a_file_of_compat_opens_with_the_versions_that_it_was_tried_on(path: Path) -> None:
    opening = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert re.search(r"\b(on|Airflow) (\d\.\d+(\.\d+)?(, | and )?)*3\.3", opening), (
        f"{path.name} does not say on which versions of Airflow it was tried"
    )
