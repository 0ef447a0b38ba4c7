"""What is said twice drifts: each of these stands in one module of the package, and nowhere else."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import airflow_crew_provider
from airflow_crew_provider import stored_names

PACKAGE = Path(airflow_crew_provider.__file__).parent
# Words of the API too, where they do not name an XCom.
ALSO_FIELDS = ("KICKOFF_ID_KEY", "EXECUTION_ID_KEY", "FEEDBACK_FIELD", "EXECUTIONS")
STORED = {name: value for name, value in vars(stored_names).items() if name.isupper() and isinstance(value, str)}

pytestmark = pytest.mark.xdist_group("one home")  # one worker reads the package for all of them


@cache
def trees() -> dict[str, ast.Module]:
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


@cache
def texts() -> dict[str, set[object]]:
    """Return the literals of each module."""
    return {
        path: {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        for path, tree in trees().items()
    }


def places_of(text: str) -> list[str]:
    return sorted(path for path, found in texts().items() if text in found)


def test_a_stored_name_is_written_in_one_module() -> None:
    for name in set(STORED).difference(ALSO_FIELDS):
        # The plugin and the DAG-facing word of the inbox happen to be called like one of its XComs.
        of_the_plugin = {"inbox/plugin.py"} if STORED[name] == "crew_inbox" else set()
        assert set(places_of(STORED[name])) - of_the_plugin == {"stored_names.py"}, name


def test_no_xcom_is_pushed_or_pulled_under_a_literal_key() -> None:
    calls = [
        (path, keyword.value.value)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "xcom" in node.func.attr
        for keyword in node.keywords
        if keyword.arg == "key" and isinstance(keyword.value, ast.Constant)
    ]
    assert [call for call in calls if call[1] != "return_value"] == []


@pytest.mark.row("A42")
def test_only_listed_keys_are_pushed_or_pulled_by_name() -> None:
    named = {
        keyword.value.id
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ("xcom" in ast.unparse(node.func) or "shared" in ast.unparse(node.func))
        for keyword in [*node.keywords, *(ast.keyword("key", each) for each in node.args)]
        if keyword.arg == "key" and isinstance(keyword.value, ast.Name) and keyword.value.id in STORED
    }
    assert {"REVIEW_KEY", "DECISIONS_KEY", "RESUME_KEY", "POSTED_KEY"} <= named
    assert {STORED[name] for name in named} <= stored_names.XCOM_KEYS


def test_only_one_module_reads_the_time_to_notice_a_deferral() -> None:
    assert places_of("min_heartbeat_interval") == ["compat/deferral.py"]


def test_only_one_function_recognizes_a_status_of_the_live_dialect() -> None:
    """The key `state` tells it, so nobody else of the provider asks whether a body has that key."""
    deciding = {
        (path, ast.unparse(node))
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.Call) and "'state'" in ast.unparse(node)
        if (isinstance(node, ast.Compare) and any(isinstance(each, ast.In | ast.NotIn) for each in node.ops))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance")
    }
    assert deciding == {("models.py", "'state' in status")}
