"""A name that CrewAI does not document may be gone in its next release: it then costs a feature, never the service."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from engine_stub import CREWS
from packaging.version import Version

from crew_service.crewai import child_process
from crew_service.crewai.internals import NEWEST, NO_JOURNAL, Seam, _exists, flow_methods
from crew_service.crewai.internals.stored_memory import FOLDERS

Start = Callable[..., Command]
TOKEN = "a-token-for-tests-only"
NAMES = {path: seam for seam in Seam.all for path in seam.names}
# Not in tables: whole modules, and names whose absence was met before there were tables.
MORE = (
    *("internal_instructor", "base_agent_tools", "ConsoleProvider", "_initial_state_t"),
    *("async_feedback", "flow_config", "is_crew_class", "input_provider", "telemetry_session", "register_hook"),
)
OF_NEWEST = pytest.mark.skipif(
    Version(version("crewai")) < Version(NEWEST), reason="a release to come is the newest one, changed"
)
TARGETS = {"crew": "plain:crew", "flow": "plain:PlainFlow"}
# What CrewAI's documentation imports by this path: each name, and the page below docs.crewai.com/en.
LISTENERS, FEEDBACK = "concepts/event-listener", "learn/human-feedback-in-flows"
STOPPED = ("strip_jsonc_comments", "load_agent_from_definition", "AgentLogsExecutionEvent", "ToolUsageEvent", "flush")
DOCUMENTED = {
    "crewai:Agent": "concepts/agents",
    "crewai:BaseLLM": "learn/custom-llm",
    "crewai:Crew": "concepts/crews",
    "crewai:CrewOutput": "learn/sequential-process",
    "crewai:Flow": "guides/flows/conversational-flows",
    "crewai:Process": "concepts/processes",
    "crewai:Process.hierarchical": "concepts/processes",
    "crewai:Task": "concepts/tasks",
    "crewai:TaskOutput": "concepts/tasks",
    "crewai:__version__": "installation",
    **{
        f"crewai.events:{name}": LISTENERS
        for name in (
            *("AgentReasoningCompletedEvent", "AgentReasoningFailedEvent", "AgentReasoningStartedEvent"),
            *("LLMCallCompletedEvent", "MemoryRetrievalCompletedEvent", "MemoryRetrievalFailedEvent"),
            *("MemoryRetrievalStartedEvent", "TaskCompletedEvent", "ToolUsageErrorEvent", "ToolUsageFinishedEvent"),
            *("ToolUsageStartedEvent", "crewai_event_bus", "crewai_event_bus.on"),
        )
    },
    "crewai.flow:HumanFeedbackPending": FEEDBACK,
    "crewai.flow:PendingFeedbackContext": FEEDBACK,
    "crewai.flow.flow:Flow": "concepts/flows",
    "crewai.flow.flow:Flow.from_declaration": "guides/flows/conversational-flows",
    "crewai.flow.human_feedback:HumanFeedbackResult": FEEDBACK,
    "crewai.flow.persistence:FlowPersistence": "concepts/flows",
    "crewai.hooks:HookAborted": "learn/execution-hooks",
    "crewai.hooks:InterceptionPoint": "learn/execution-hooks",
    "crewai.hooks:InterceptionPoint.EXECUTION_START": "learn/execution-hooks",
    "crewai.hooks:InterceptionPoint.INPUT": "learn/execution-hooks",
    "crewai.hooks:InterceptionPoint.PRE_STEP": "learn/step-hooks",
    "crewai.hooks:get_hooks": "learn/execution-hooks",
    "crewai.hooks:on": "learn/execution-hooks",
    "crewai.hooks:unregister_hook": "learn/llm-hooks",
    "crewai.project:load_crew": "concepts/flows",
    "crewai.tasks.conditional_task:ConditionalTask": "learn/conditional-tasks",
    "crewai.tools:BaseTool": "concepts/tools",
}
# What may be missing without being in a table: it is read within `try`, `suppress` or `getattr`, or only with files.
OPTIONAL = {
    "crewai.events.event_context:push_event_scope": "then CrewAI prints a warning",
    "crewai.flow.flow:Flow.chat": "not in every version",
    "crewai.lite_agent:LiteAgent": "deprecated; then no such agent can run while a crew is loaded",
    "crewai.memory:unified_memory": "then drafts of tasks with human_input are not remembered, or these are refused",
    "crewai.memory.storage.lancedb_storage:LanceDBStorage": "then the log says that no memory is deleted",
    "crewai.telemetry.tracing:telemetry_session": "not in every version; without it, there are no spans",
    "crewai.utilities:tool_result_artifacts": "not in every version",
    "crewai.utilities:tool_result_artifacts._TOOL_RESULT_TEMP_DIR": "not in every version",
    "crewai.utilities:tool_result_artifacts.token_urlsafe": "not in every version",
    "crewai_core:lock_store": "not in every version",
    "crewai_core:lock_store.tempfile": "then CrewAI's locks do not keep out other executions",
    "crewai_core.lock_store:lock": "not in every version",
    "crewai_core.lock_store:lock.__wrapped__": "not in every version",
    "crewai_files:File": "not installed with every version; only executions with files need it",
    "crewai_files:FilePath": "only executions with files need it",
}
PACKAGES = ("crewai", "crewai_core", "crewai_files")
OF_EVERY_CLASS = (".__module__", ".__wrapped__", ".model_fields", ".model_validate", ".__subclasses__", ".__mro__")
# In users' code, too, or in Python's.
WORDS = ("human_feedback", "listen", "methods", "name", "router", "start", "add", "read", "cache")


def renamed(name: str, folder: Path) -> dict[str, str]:
    """Copy the installed CrewAI with a name renamed wherever it occurs; return the environment that prefers it.

    :param name: a regular expression
    """
    assert child_process  # has imported all modules with tables
    for package in ("crewai", "crewai_core"):
        found = find_spec(package)
        assert found is not None
        shutil.copytree(Path(str(found.origin)).parent, folder / package)
    for file in folder.rglob("*.py"):
        text = file.read_text()
        changed = re.sub(rf"\b({name})\b", r"\1_renamed", text)
        if changed != text:
            file.write_text(changed)
    for path in [path for path in folder.rglob("*") if re.fullmatch(name, path.stem)]:
        path.rename(path.with_stem(f"{path.stem}_renamed"))
    places = [str(folder), str(CREWS), os.environ.get("PYTHONPATH")]
    return {"CREW_SERVICE_TOKEN": TOKEN, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def last(path: str) -> str:
    return re.split(r"[:.]", path)[-1]


def ran(client: Client) -> Any:
    answer = client.post("/kickoff", {"inputs": {"topic": "ducks"}})
    assert answer.ok, answer.text
    kickoff_id = answer.json()["kickoff_id"]
    eventually(lambda: client.status(kickoff_id)["status"] != "running", "the end")
    status = client.status(kickoff_id)
    assert status["status"] == "completed", status
    return status["result"]["output"]


def serves(command: Start, environment: dict[str, str], crews: dict[str, str]) -> tuple[list[str], str]:
    """Run a crew and a Flow that need no internal name; return what is off, and the log."""
    options = [part for name, target in crews.items() for part in ("--crew", f"{name}={target}" if name else target)]
    service = command(*options, environment=environment, fresh=True)
    for name, target in crews.items():
        answer = "a draft" if target == TARGETS["crew"] else "draft from the outline of ducks"
        assert ran(service.client(TOKEN, name)) == answer
    off = service.client(TOKEN).get("/readyz").json().get("off", [])
    service.kill()
    return off, service.log.read_text()


@pytest.mark.row("S81")
@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    # Sorted, because workers that collect the tests may have imported the modules with tables in another order.
    [path for path in sorted(NAMES) if last(path) not in WORDS],
)
def test_crews_and_flows_run_without_crewai_names_they_never_need(command: Start, tmp_path: Path, path: str) -> None:
    name = last(path)
    environment = renamed(name, tmp_path / "renamed")
    alone = NAMES[path] is FOLDERS
    served = [{"": target} for target in TARGETS.values()] if alone else [TARGETS]
    for number, crews in enumerate(served):
        off, log = serves(command, {**environment, "CREW_SERVICE_DB": f"{number}.db"}, crews)
    told = next(what for what in off if what.startswith(NAMES[path].off))
    assert f"{name}; the newest version" in told
    assert NEWEST in told
    assert told in log


@pytest.mark.row("S81")
def test_they_run_without_all_that_once_stopped_the_start(command: Start, tmp_path: Path) -> None:
    names = (*STOPPED, *MORE)
    off, _ = serves(command, renamed(rf"(?:{'|'.join(names)})", tmp_path / "renamed"), TARGETS)
    assert [each for each in off if each.startswith("agents described in JSON are refused")]


UNTRACED = """
from crewai.telemetry import tracing

def telemetry_session(kickoff_id, name, exporters, *, tenant, resource):
    raise AssertionError

tracing.telemetry_session = telemetry_session
from crew_service.crewai import traces

with traces.below({"traceparent": f"00-{1:032x}-{1:016x}-01"}, "some id") as spans:
    print("spans:", spans)
"""


@pytest.mark.row("S81")
@pytest.mark.long
@OF_NEWEST
def test_a_crew_runs_although_its_spans_cannot_be_exported() -> None:
    ran = subprocess.run([sys.executable, "-c", UNTRACED], capture_output=True, text=True)
    assert ran.stdout == "spans: None\n", ran.stderr
    assert "own spans are not exported" in ran.stderr


@pytest.mark.row("S81")
@pytest.mark.long
def test_an_unpausable_flow_says_so_when_its_crew_asks(command: Start, tmp_path: Path) -> None:
    environment = renamed("_execute_single_listener", tmp_path / "renamed")
    client = command("--crew", "flows:AwaitedFlow", environment=environment, fresh=True).client(TOKEN)
    kickoff_id = client.post("/kickoff", {"inputs": {"topic": "ducks"}}).json()["kickoff_id"]
    eventually(lambda: client.status(kickoff_id)["status"] == "error", "the end")
    told = str(client.status(kickoff_id))
    assert "A task has human_input, but people cannot be asked: CrewAI" in told
    assert "use a task with human_input" not in told


@pytest.mark.row("S81")
@pytest.mark.long
def test_that_no_journal_is_kept_is_told_beside_other_features(command: Start, tmp_path: Path) -> None:
    environment = renamed("(?:flush|to_structured_tool)", tmp_path / "renamed")
    off, log = serves(command, environment, {"": TARGETS["crew"]})
    told = [each for each in off if each.startswith(NO_JOURNAL)]
    assert len(off) == 2
    assert told
    assert told[0] in log


def test_only_errors_in_crew_code_are_blamed_on_forgotten_attributes() -> None:
    def failed() -> AttributeError:
        try:
            flow_methods.stamp(object(), "some id")  # type: ignore[arg-type]
        except AttributeError as error:
            return error
        raise AssertionError

    own, elsewhere = failed(), failed()
    assert elsewhere.__traceback__
    elsewhere.__traceback__ = elsewhere.__traceback__.tb_next
    assert child_process._failed(own, continues=True)["error"].endswith(child_process.FORGOTTEN)
    assert "attributes on `self`" not in child_process._failed(elsewhere, continues=True)["error"]


@pytest.mark.long
@pytest.mark.parametrize("name", [*MORE, "(?:_save_to_memory|unified_memory)"])
def test_they_run_without_what_is_in_no_table(command: Start, tmp_path: Path, name: str) -> None:
    serves(command, renamed(name, tmp_path / "renamed"), TARGETS)


# In a file below crewai: a pattern, and what a release might make of it. The callers pass what the function now needs.
CHANGED = [
    ("task.py", r"(def _a?execute_core\([^)]*tools: list\[Any\] \| None,\n)", r"\1        *, stage: str,\n"),
    ("task.py", r"(self\._a?execute_core\(agent, context, tools)\)", r"\1, stage='s')"),
    ("task.py", r"(def interpolate_inputs_and_add_conversation_history\(\n\s+self,[^)]*\])\n", r"\1, *, stage: str\n"),
    ("crew.py", r"(task\.interpolate_inputs_and_add_conversation_history\()", r"\1stage='s', inputs="),
    (
        "agents/agent_builder/base_agent.py",
        r"(def interpolate_inputs\(self, inputs: dict\[str, Any\])",
        r"\1, stage='s'",
    ),
    ("llms/base_llm.py", r"(def _track_token_usage_internal\(self, usage_data: dict\[str, Any\])", r"\1, stage='s'"),
    ("utilities/rpm_controller.py", r"(def check_or_wait\(self)", r"\1, stage='s'"),
    (
        "flow/runtime/__init__.py",
        r"(def _execute_start_method\(self, start_method_name: FlowMethodName)",
        r"\1, *, stage: str",
    ),
    ("flow/runtime/__init__.py", r"(self\._execute_start_method\(start_method)\)", r"\1, stage='s')"),
    (
        "flow/runtime/__init__.py",
        r"(await self\._execute_listeners\()(start_method_name, result, finished_event_id)",
        r"\1\2, stage='s'",
    ),
    (
        "flow/runtime/__init__.py",
        r"(async def _execute_listeners\(\n\s+self,)",
        r"\1 *args: Any, stage: str = '', **kwargs: Any) -> None:\n"
        r"        await self._listeners(*args, **kwargs)\n\n    async def _listeners(\n        self,",
    ),
    (
        "utilities/agent_utils.py",
        r"return convert_tools_to_openai_schema\(original_tools\)",
        r"return convert_tools_to_openai_schema(original_tools, stage='s')[:3]",
    ),
    (
        "utilities/agent_utils.py",
        r"(def convert_tools_to_openai_schema\(\n\s+tools: Sequence\[BaseTool \| CrewStructuredTool\],)",
        r"\1 *, stage: str = '',",
    ),
    (
        "telemetry/tracing/session.py",
        r"(\n    resource: Resource \| None = None,\n    attributes)",
        r"\n    tenant: str,\1",
    ),
]
# In a file below crewai: what a release might require of classes that its users derive from, or ask of a provider.
LATER = "    def later(self, *args: Any) -> None:\n        raise NotImplementedError\n\n"
REQUIRED = [
    ("tools/base_tool.py", r"(    @abstractmethod\n    def _run\()", rf"    @abstractmethod\n{LATER}\1"),
    ("flow/persistence/base.py", r"(    @abstractmethod\n    def init_db\()", rf"    @abstractmethod\n{LATER}\1"),
    ("core/providers/human_input.py", r"(    def setup_messages\()", r"    def later(self) -> None: ...\n\n\1"),
    ("agents/agent_executor.py", r"(        provider\.post_setup_messages\()", r"        provider.later()\n\1"),
]
OWN = r"(\nclass \w+\((?:BaseTool|FlowPersistence)\b.*\):\n)"  # CrewAI's own classes have what it requires


def changed(environment: dict[str, str], changes: list[tuple[str, str, str]]) -> None:
    """Change the copy of CrewAI that this environment prefers."""
    copy = Path(environment["PYTHONPATH"].partition(os.pathsep)[0]) / "crewai"
    for place, pattern, by in changes:
        text, count = re.subn(pattern, by, (copy / place).read_text())
        assert count, pattern
        (copy / place).write_text(text)


@pytest.mark.row("S100")
@pytest.mark.long
@OF_NEWEST
def test_a_release_may_require_more_of_tools_persistences_and_providers(command: Start, tmp_path: Path) -> None:
    environment = renamed("a_name_that_nothing_has", tmp_path / "changed")
    places = [file for file in (tmp_path / "changed/crewai").rglob("*.py") if re.search(OWN, file.read_text())]
    changed(environment, [(str(file), OWN, rf"\1{LATER}") for file in places])
    changed(environment, REQUIRED)
    crews = {"gated": "samples:last_gate", "briefing": "flows:BriefingFlow", "rounds": "flows:RoundsFlow"}
    answers = {"gated": {"is_approve": True}, "briefing": {"outcome": "drop"}, "rounds": {"outcome": "send"}}
    options = [part for name, target in crews.items() for part in ("--crew", f"{name}={target}")]
    service = command(*options, environment=environment, fresh=True)
    assert "off" not in service.client(TOKEN).get("/readyz").json()
    for name, answer in answers.items():
        client = service.client(TOKEN, name)
        inputs = {"topic": "ducks", "log": str(tmp_path / name)}
        kickoff_id = client.post("/kickoff", {"inputs": inputs}).json()["kickoff_id"]
        asked = client.until(kickoff_id, "pending")
        body = {"execution_id": kickoff_id, "task_id": asked["task_id"], "human_feedback": "", **answer}
        assert client.post("/resume", body).ok
        client.until(kickoff_id, "completed")
    AskPerson = "from crew_service.crewai.ask_person import AskPerson; AskPerson()"
    subprocess.run([sys.executable, "-c", AskPerson], env={**os.environ, **environment}, check=True)


# Their callers in CrewAI unpack the answer; the second one does not declare that it returns something else.
OBJECT = """
class Ran:
    def __init__(self, values: Any) -> None:
        self.values = values

    def __iter__(self) -> Any:
        return iter(self.values)
"""
RETURNED = [
    (
        "flow/runtime/__init__.py",
        r"(    async def )_execute_method(\()",
        r"\1_execute_method(self, *args: Any, **kwargs: Any) -> Ran:\n"
        r"        return Ran(await self._ran(*args, **kwargs))\n\n\1_ran\2",
    ),
    ("flow/runtime/__init__.py", r"\Z", OBJECT),
    (
        "utilities/agent_utils.py",
        r"\Z",
        f"{OBJECT}\n_convert = convert_tools_to_openai_schema\n"
        "def convert_tools_to_openai_schema(*args: Any) -> tuple[Any, Any, Any]:\n"
        "    return Ran(_convert(*args))\n",
    ),
]


@pytest.mark.row("S101")
@pytest.mark.long
def test_a_function_that_returns_something_else_costs_a_feature(command: Start, tmp_path: Path) -> None:
    environment = renamed("a_name_that_nothing_has", tmp_path / "changed")
    changed(environment, RETURNED)
    off, log = serves(command, environment, TARGETS)
    journal, flows = (
        next(each for each in off if each.startswith(what)) for what in (NO_JOURNAL, flow_methods.FLOWS.off)
    )
    assert flows.startswith(f"{flow_methods.FLOWS.off}: CrewAI")
    assert "has no crewai.flow.flow:Flow._execute_method that returns tuple; the newest version" in flows
    assert "calls tools in a different way" in journal
    assert flows in log
    assert journal in log


GATE = "task 'final' has human_input, but people cannot be asked: CrewAI"
REFUSED = {
    "people": ("SyncHumanInputProvider", ["samples:last_gate"], GATE),
    "continue": (
        "checkpoint_kickoff_event_id",
        ["samples:last_gate"],
        GATE,
    ),
    "flows": ("_execute_method", ["flows:BriefingFlow"], "asks a person, but Flows cannot pause: CrewAI"),
    "methods": ("flow_definition", ["flows:BriefingFlow"], "'draft' asks a person, but Flows cannot pause: CrewAI"),
    "nested": ("_execute_core", ["flows:BriefingFlow"], "asks a person, but Flows cannot pause: CrewAI"),
    "folders": ("DEFAULT_STORAGE_PATH", ["one=plain:crew"], "needs a folder of its own, which cannot be set: CrewAI"),
    "rules": ("sanitize_tool_name", ["plain:crew", "--tool", "note=approve"], "is not supported: CrewAI"),
    "files": (
        "_original_output_file",
        ["samples:into_a_file"],
        "in its output_file, whose path cannot be checked",
    ),
}


@pytest.mark.row("S81", "S102")
@pytest.mark.long
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_at_the_start(tmp_path: Path, case: str) -> None:
    name, target, sentence = REFUSED[case]
    environment = {**os.environ, **renamed(name, tmp_path / "renamed")}
    words = [sys.executable, "-m", "crew_service", "serve", "--port", "0", "--crew", *target]
    start = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert start.returncode == 2, start.stderr
    said = start.stderr.splitlines()[-1]
    assert sentence in said
    assert name in said
    assert f"the newest version tested is {NEWEST}" in said


def names_in(text: str) -> set[str]:
    """List what a module imports from CrewAI, and the attributes that it reads of that."""
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            imported |= {each.asname or each.name: f"{node.module}:{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            modules = {each.name for each in node.names if each.name.partition(".")[0] in PACKAGES}
            assert modules <= {"crewai"}
            imported |= {name: f"{name}:" for name in modules}
    read = {
        f"{imported[node.value.id]}.{node.attr}".replace(":.", ":")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
    }
    return read | {path for path in imported.values() if not path.endswith(":")}


@pytest.mark.row("S81")
@pytest.mark.long
@OF_NEWEST
def test_internal_functions_may_take_more_than_before(command: Start, tmp_path: Path) -> None:
    environment = renamed("a_name_that_nothing_has", tmp_path / "changed")
    changed(environment, CHANGED)
    off, _ = serves(command, environment, TARGETS)
    assert off == []


def test_only_tables_name_what_crewai_does_not_document() -> None:
    package = Path(child_process.__file__).parent
    used = {name for file in package.rglob("*.py") for name in names_in(file.read_text())}
    found = {name for name in used if not name.endswith(OF_EVERY_CLASS)}
    assert found - DOCUMENTED.keys() - OPTIONAL.keys() - NAMES.keys() == set()
    assert (DOCUMENTED.keys() | OPTIONAL.keys()) - used == set()


def test_what_the_tables_call_documented_exists() -> None:
    assert [path for path in DOCUMENTED if not _exists(path)] == []
