"""Which of Airflow's internals the installed Airflow has, and which files touch them.

The table is the list to go through for a new version of Airflow.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import airflow
from packaging.version import Version

import airflow_crew_provider

PACKAGE = Path(airflow_crew_provider.__file__).parent
INSTALLED = Version(Version(airflow.__version__).base_version)
# Names that Airflow and its compat provider promise; all else stands in `compat/` and the files of `OWN`.
PUBLIC = (
    "airflow.providers.common.compat.sdk",
    "airflow.triggers.base",
    "airflow.providers.common.ai.exceptions",
    "airflow.providers.common.ai.managed_agents.base",
)


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
TRIGGER = "airflow.models.trigger:Trigger"
ROW = "a query of the inbox"
INTERNALS = [
    Internal(RUNNER, "compat/supervisor.py", "tells Airflow 3 from 2", since="3.0"),
    Internal(f"{RUNNER}:SUPERVISOR_COMMS", "compat/supervisor.py", "the line to Airflow", since="3.0"),
    Internal(f"{RUNNER}:RuntimeTaskInstance.get_task_states", "compat/supervisor.py", "a task's state", since="3.0"),
    Internal(
        "airflow.sdk.execution_time.supervisor:InProcessSupervisorComms",
        "compat/supervisor.py",
        "the line of `dag.test()`, by its name",
        since="3.0",
    ),
    Internal(
        "airflow.sdk.exceptions:AirflowRescheduleException", "compat/supervisor.py", "what ends no try", since="3.2"
    ),
    Internal("airflow.exceptions:AirflowRescheduleException", "compat/supervisor.py", "the same before 3.2"),
    Internal("airflow.sdk.exceptions:AirflowTaskTimeout", "compat/supervisor.py", "why on_kill is called", since="3.2"),
    Internal("airflow.exceptions:AirflowTaskTimeout", "compat/supervisor.py", "the same before 3.2"),
    Internal(
        "airflow.providers.common.compat.sdk:BaseOperator._do_render_template_fields",
        "compat/rendered_fields.py",
        "renders the fields of mapped tasks too",
    ),
    Internal("airflow.sdk:RetryPolicy", "retries.py", "base class of the policy", since="3.3"),
    Internal("airflow.sdk:RetryDecision.retry", "retries.py", "its decisions", since="3.3"),
    Internal("airflow.sdk:RetryDecision.reschedule", "retries.py", "a wait that uses no retry", since="3.4"),
    Internal("airflow.triggers.base:BaseTrigger", "compat/supervisor.py", "base class of the trigger"),
    Internal("airflow.triggers.base:BaseTrigger.on_kill", "compat/supervisor.py", "a user's kill", since="3.3"),
    Internal("airflow.triggers.base:BaseTrigger.task_instance", "tasks/cancellation.py", "whose state is asked for"),
    Internal("airflow.triggers.base:BaseTrigger.cleanup", "triggers/crew.py", "gives the session back"),
    Internal("airflow.models.taskinstance:TaskInstance.state", "compat/supervisor.py", "a task's state on 2.11"),
    Internal(f"{TASK}.job_id", "compat/supervisor.py", "tells a worker from a call by hand on 2.11", until="3.0"),
    Internal("airflow.settings:engine", "compat/variables.py", "whether a Variable exists on 2.11"),
    Internal("airflow.utils.session:create_session", "inbox/store.py", "a transaction"),
    *(
        Internal(f"airflow.models.xcom:{model}.{name}", "inbox/store.py", "what stood there before an upgrade", since)
        for model, since in (("XComModel", "3.0"), ("XComModelV1", "3.4"))
        for name in ("key", "value", "dag_id", "run_id", "task_id", "map_index")
    ),
    Internal("airflow.models.dagrun:DagRun.end_date", "inbox/store.py", "when a run was over"),
    Internal("airflow.models.dagrun:DagRun.state", "inbox/store.py", ROW),
    Internal(f"{TASK}.trigger_id", "inbox/store.py", ROW),
    Internal(f"{TASK}.next_kwargs", "inbox/store.py", "finds the tasks that wait for an execution"),
    Internal(f"{TRIGGER}.classpath", "inbox/store.py", ROW),
    Internal(f"{TRIGGER}.kwargs", "inbox/store.py", ROW),
    Internal(f"{TRIGGER}.created_date", "inbox/store.py", "when the task was deferred"),
    Internal(f"{TRIGGER}.submit_event", "inbox/store.py", "wakes a deferred task"),
    Internal("airflow.triggers.base:TriggerEvent", "inbox/store.py", "what wakes it"),
    Internal("airflow.sdk.execution_time.context:NEVER_EXPIRE", "compat/task_instance.py", "state store", since="3.3"),
    Internal(
        "airflow.providers.common.compat.sdk:DecoratedOperator", "decorators/crew.py", "base class of `@task.crew`"
    ),
    Internal("airflow.providers.common.compat.sdk:BaseOperator", "decorators/crew.py", "whether it has `xcom_push`"),
    Internal("airflow.providers.common.compat.sdk:Variable", "compat/variables.py", "records"),
    Internal("airflow.providers.common.compat.sdk:conf", "compat/deferral.py", "the supervisor's heartbeat"),
    Internal("airflow.providers.common.compat.sdk:XCom", "compat/task_instance.py", "whether a backend is configured"),
    Internal("airflow.sdk.bases.xcom:BaseXCom.get_one", "compat/task_instance.py", "reads the inbox", since="3.0"),
    Internal(
        "airflow.sdk.bases.xcom:BaseXCom.get_all", "compat/task_instance.py", "the tasks that registered", since="3.0"
    ),
    Internal("airflow.sdk.bases.xcom:BaseXCom.set", "compat/task_instance.py", "past an XCom backend", since="3.0"),
    Internal("airflow.sdk.bases.xcom:BaseXCom.aget_one", "compat/task_instance.py", "without a thread", since="3.3"),
    Internal("airflow.models.dagrun:DagRun.clear_number", "task/attempt.py", "tells a clear from a retry"),
    Internal("airflow.providers.common.compat.sdk:BaseHook", "compat/connections.py", "the same in `dag.test()`"),
    Internal(
        "airflow.providers.common.compat.connection:get_async_connection",
        "compat/connections.py",
        "looks a connection up in a trigger",
    ),
    Internal("airflow.providers.common.compat.sdk:Stats", "compat/metrics.py", "the metrics of a task"),
    Internal("airflow.observability.stats:Stats", "compat/metrics.py", "those of a triggerer", since="3.2"),
    Internal("airflow.stats:Stats", "compat/metrics.py", "the same before 3.2"),
    Internal("airflow.assets.manager:asset_manager", "inbox/assets.py", "adds an event", since="3.0"),
    *(
        Internal(f"airflow.models.asset:{name}", "inbox/assets.py", "events that are known", since="3.0")
        for name in ("AssetModel.uri", "AssetModel.active", "AssetEvent.asset_id", "AssetEvent.extra")
    ),
    Internal("airflow.models.connection:Connection", "inbox/store.py", "the secrets of webhooks"),
    *(
        Internal(f"airflow.models.variable:Variable.{name}", "inbox/store.py", "what the inbox stores")
        for name in ("key", "description", "get_val", "set_val")
    ),
    Internal("airflow.models.crypto:get_fernet", "compat/encryption.py", "encrypts what the inbox stores"),
    Internal("airflow.providers.common.compat.sdk:mask_secret", "inbox/source.py", "hides a callback's token"),
    Internal("airflow:__version__", "compat/version.py", "what this release has"),
    Internal(HITL, "review/airflow_form.py", "base class of the review", since="3.1"),
    *(
        Internal(f"airflow.models.hitl:HITLDetail.{name}", "review/refusal_notice.py", "a question's row", since="3.1")
        for name in ("body", "options", "params", "responded_at", "responded_by", "chosen_options", "params_input")
    ),
    *(
        Internal(f"airflow.models.hitl:HITLDetail.{name}", "compat/task_records.py", "an open form", since="3.1")
        for name in ("ti_id", "responded_at")
    ),
    *(
        Internal(f"{TASK}.{name}", "compat/task_records.py", "the tasks of a run, and how Airflow labels them")
        for name in ("id", "state", "map_index", "rendered_map_index")
        if name != "id" or Version("3.0") <= INSTALLED
    ),
    *(
        Internal(f"{name}", "compat/loops.py", "iterations of a loop", since)
        for name, since in (
            (f"{TASK}.region_id", "3.4"),
            (f"{TASK}.region_index", "3.4"),
            ("airflow.models.task_coordinates:public_map_index_expression", "3.4"),
            ("airflow.sdk.definitions.loop:LoopDecision", "3.4"),
            ("airflow.sdk.execution_time.xcom:XCom.get_one", "3.0"),
            ("airflow.sdk:task_group", "3.0"),
        )
    ),
    Internal(f"{RUNNER}:RuntimeTaskInstance.get_task_breadcrumbs", "compat/supervisor.py", "what is over", since="3.2"),
    Internal("airflow.models.dagrun:DagRun.id", "compat/task_records.py", "whether there is such a run"),
    Internal("airflow.models.xcom:XComModel.get_many", "compat/task_records.py", "what tasks have pushed", since="3.0"),
    Internal(
        "airflow.api_fastapi.core_api.security:requires_access_dag", "compat/access.py", "who may see", since="3.0"
    ),
    *(
        Internal(
            f"airflow.api_fastapi.auth.managers.models.resource_details:DagAccessEntity.{name}",
            "compat/access.py",
            "what a role may see of a DAG",
            since,
        )
        for name, since in (("XCOM", "3.0"), ("HITL_DETAIL", "3.1"))
    ),
    Internal("airflow.providers.common.compat.sdk:AirflowPlugin", "view/plugin.py", "base class of the plugin"),
    Internal(
        "airflow.providers.standard.triggers.hitl:HITLTrigger",
        "compat/answer_trigger.py",
        "waits for a person before 3.3",
        since="3.1",
    ),
    *(
        Internal(name, "compat/answer_trigger.py", "looks for the answer to an earlier attempt's form", since)
        for name, since in (
            ("airflow.sdk.execution_time.hitl:get_hitl_detail_content_detail", "3.1"),
            ("airflow.sdk.exceptions:AirflowRuntimeError", "3.0"),
        )
    ),
    *(
        Internal(f"{module}:{name}", "compat/answer_trigger.py", "whether an answer can be read back", since)
        for module, since in (("airflow.sdk.serde", "3.2"), ("airflow.serialization.serde", "2.11"))
        for name in ("deserialize", "serialize")
    ),
    Internal(f"{HITL}.serialized_params", "review/airflow_form.py", "the form as Airflow stores it", since="3.1"),
    Internal("airflow.sdk:Param", "review/airflow_form.py", "a field of the form", since="3.0"),
    Internal("airflow.sdk.definitions.param:ParamsDict.get_param", "review/airflow_form.py", "the form", since="3.0"),
    Internal(
        "airflow.sdk.definitions.param:ParamsDict.filter_params_by_source",
        "review/airflow_form.py",
        "tells the task's params from its DAG's",
        since="3.2",
    ),
    *(
        Internal(f"{DETAIL}.{field}", "review/airflow_form.py", "a field of the question", since="3.1")
        for field in ("ti_id", "options", "subject", "body", "defaults", "multiple", "params", "assigned_users")
    ),
    Internal("airflow.providers.common.compat.sdk:ParamValidationError", "review/airflow_form.py", "a bad answer"),
    Internal("airflow.sdk.exceptions:TaskAwaitingInput", "review/airflow_form.py", "parks a review", since="3.3"),
    Internal("airflow.providers.common.compat.sdk:TaskDeferred", "review/airflow_form.py", "looks for an answer"),
    *(
        Internal(name, "review/airflow_form.py", "no answer was found", since=since)
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


def test_the_installed_airflow_has_the_internals_the_package_uses() -> None:
    missing = [
        f"Airflow {INSTALLED} has no {each.name}, which {each.used_by} uses ({each.purpose}). Find what took its "
        "place, handle it there, and note in this table until which version it existed"
        for each in INTERNALS
        if each.is_expected and not each.is_there()
    ]
    assert missing == []


def test_the_installed_airflow_lacks_the_internals_the_table_denies() -> None:
    unexpected = [
        f"Airflow {INSTALLED} has {each.name} although the table says: from {each.since} until before {each.until}. "
        f"Correct the table; {each.used_by} may take another way than was tried"
        for each in INTERNALS
        if not each.is_expected and each.is_there()
    ]
    assert unexpected == []


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


# Beside `compat/`, the files by which a subpackage stores what Airflow keeps for it, or shows what Airflow shows.
OWN = ("inbox/store.py", "inbox/assets.py", "review/airflow_form.py", "review/refusal_notice.py", "retries.py")
TOUCHING = [*sorted((PACKAGE / "compat").glob("[!_]*.py")), *(PACKAGE / each for each in OWN)]


def test_only_these_files_touch_the_internals_of_airflow() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if path not in TOUCHING]
    imports = [(path.name, name) for path in others for name in imports_of_airflow(path)]
    assert imports
    assert [each for each in imports if each[1].split(":")[0] not in PUBLIC] == []


def test_every_internal_that_they_import_stands_in_the_table() -> None:
    listed = {part for internal in INTERNALS for part in _parts(internal.name)}
    imports = [(path.name, name) for path in TOUCHING for name in imports_of_airflow(path)]
    assert imports
    assert [each for each in imports if each[1].rstrip(":").replace(":", ".") not in listed] == []


def _parts(name: str) -> Iterator[str]:
    """Yield a dotted name and all that it is a part of."""
    words = name.replace(":", ".").split(".")
    yield from (".".join(words[:length]) for length in range(1, len(words) + 1))


def test_only_the_generated_table_says_which_versions_were_tried() -> None:
    assert [path.name for path in PACKAGE.rglob("*.py") if re.search(r"\b[Tt]ried (on|with) ", path.read_text())] == []
