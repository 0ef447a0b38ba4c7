"""What a DAG demands of an output, and where a large one goes; what is said of an execution that breaks a rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat import sdk
from airflow.providers.common.compat.sdk import AirflowException
from pydantic import BaseModel, Field, create_model
from waiting_tasks import kickoff_that_waits
from warning_log import WarningLog

from airflow_crew_provider.api.budget import Budget, figures
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Execution, ExecutionState, TaskResult, cost_usd, total_tokens
from airflow_crew_provider.wait import output as output_storage
from airflow_crew_provider.wait.files import CrewStorageUnavailable
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from airflow_crew_provider.wait.output import OutputRules
from airflow_crew_provider.wait.schema import named_keys

STAYS = (
    "The execution has completed, and its output is still available from the service; a retry would fail too. To run "
    "the crew again, clear its kickoff. If you only changed the rule, check this execution with a CrewStatusSensor: "
    "clearing a task that started it starts another one"
)
TASK = TaskResult(task_id="t", agent="a", output="long", execution_time=1.5)
OBJECT = {"type": "object", "required": ["total"]}


def completed(output: str | None = "text", **more: Any) -> Execution:
    named = {"kickoff_id": "k-1", "state": ExecutionState.COMPLETED, "raw_state": "completed", "tasks": (TASK,)}
    return Execution(**{**named, "output": output, **more})


@pytest.mark.row("N30")
@pytest.mark.parametrize(
    ("own", "chain", "passed", "unknown"),
    [
        ({"total_tokens": 60}, {"total_tokens": 120}, "used 120 tokens", ""),
        ({"total_tokens": 60}, {"total_tokens": 90}, "", ""),
        ({"total_tokens": 500}, {"total_tokens": 0}, "used 500 tokens", "how many tokens it used"),
        ({"total_tokens": 60}, {"total_tokens": 10}, "", "how many tokens it used"),
        ({"total_tokens": 60}, {}, "", "how many tokens it used"),
        ({"total_tokens": 60, "uncounted_calls": 3}, {"total_tokens": 60}, "", "how many tokens it used"),
    ],
)
def test_a_chain_used_at_least_what_its_last_execution_used(
    own: dict[str, Any], chain: dict[str, Any], passed: str, unknown: str
) -> None:
    budget = Budget(max_total_tokens=100)
    for usage in ({**own, "chain_usage": chain}, figures({**own, "chain_usage": chain})):
        said = budget.passed_by(usage), budget.unknown_in(usage)
        assert [bool(each) for each in said] == [bool(passed), bool(unknown)]
        assert passed in said[0]
        assert unknown in said[1]


@pytest.mark.parametrize("most", [0, -1, True, False, 1.5, "5"])
def test_a_limit_of_tokens_is_a_whole_number_above_0(most: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        Budget(max_total_tokens=most)
    assert str(error.value) == f"max_total_tokens must be an integer >= 1, not {most!r}"


def test_one_token_is_a_limit() -> None:
    assert Budget(max_total_tokens=1).limits == {"max_total_tokens": 1}


@pytest.mark.parametrize("most", [0, -0.5, True, "0.5", float("nan"), float("inf")])
def test_a_limit_of_costs_is_a_number_above_0(most: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        Budget(max_cost=most)
    assert str(error.value) == f"max_cost must be a number of USD above 0, not {most!r}"


@pytest.mark.parametrize("path", ["/x", ""])
def test_an_output_goes_into_one_file_or_into_several_xcoms(path: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        OutputRules(output_to=path, multiple_outputs=True)
    assert str(error.value) == "multiple_outputs puts the output into XCom; output_to keeps it out. Use one of them"


def test_a_bad_schema_is_refused_when_the_file_is_parsed() -> None:
    with pytest.raises(CrewInvalidInput, match="output_schema"):
        OutputRules({"type": "objekt"})


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        (OutputRules(), []),
        (OutputRules(OBJECT), ["output_schema"]),
        (OutputRules({}, Budget(1), output_to=""), ["output_schema", "max_total_tokens", "output_to"]),
        (OutputRules(budget=Budget(max_cost=1)), ["max_cost"]),
        (OutputRules(output_to="/x"), ["output_to"]),
        (OutputRules(multiple_outputs=True), ["multiple_outputs"]),
        (OutputRules({}, multiple_outputs=True), ["output_schema", "multiple_outputs"]),
    ],
)
def test_the_rules_that_were_given_are_named_as_their_parameters(rules: OutputRules, names: list[str]) -> None:
    assert rules.names == names


def test_an_unusable_rule_fails_before_anything_is_started(tmp_path: Path) -> None:
    OutputRules().refuse_unusable()
    OutputRules(OBJECT, output_to=str(tmp_path)).refuse_unusable()
    OutputRules(files_to=str(tmp_path)).refuse_unusable()
    for nowhere in ("", " ", "s3://bucket/", 5, "None"):
        with pytest.raises(CrewInvalidInput, match="is not the path of a file"):
            OutputRules(output_to=nowhere).refuse_unusable()
    with pytest.raises(CrewInvalidInput, match=r"^output_schema 'no_such_module:Model' cannot be imported"):
        OutputRules("no_such_module:Model").refuse_unusable()
    for nowhere in (" ", "None"):
        with pytest.raises(CrewInvalidInput, match=f"files_to was rendered as '{nowhere}'"):
            OutputRules(files_to=nowhere).refuse_unusable()
    with pytest.raises(CrewStorageUnavailable) as error:
        OutputRules(output_to="nowhere://x").refuse_unusable()
    cause = error.value.__cause__
    assert str(error.value) == f"output_to 'nowhere://x' cannot be opened: {type(cause).__name__}: {cause}"


@pytest.mark.parametrize(
    ("execution", "output"),
    [(completed(), "text"), (completed('{"a": 1}', output_json={"a": 1}), {"a": 1}), (completed(output_json={}), {})],
)
def test_without_rules_the_output_is_what_it_is(log: WarningLog, execution: Execution, output: Any) -> None:
    assert OutputRules().applied(execution, log) == {"output": output}
    assert log.lines == []


@pytest.mark.parametrize("used", [5, 5.0, 0])
def test_an_execution_within_its_tokens_is_taken(log: WarningLog, used: Any) -> None:
    rules = OutputRules(budget=Budget(5))
    assert rules.applied(completed(usage={"total_tokens": used}), log) == {"output": "text"}
    assert log.lines == []


@pytest.mark.parametrize("used", [6, 5.5])
def test_an_execution_that_used_more_tokens_fails(log: WarningLog, used: Any) -> None:
    with pytest.raises(CrewTaskFailed) as error:
        OutputRules(budget=Budget(5)).applied(completed(usage={"total_tokens": used}), log)
    assert str(error.value) == f"Execution k-1 used {used} tokens, more than max_total_tokens of 5. {STAYS}"


NO_TOKENS: list[Any] = [
    None,
    {},
    *({"total_tokens": each} for each in (None, "9", True, -1, float("nan"), float("inf"))),
]
UNKNOWN = "For execution k-1, the service did not report how many tokens it used (max_total_tokens is 5)"


@pytest.mark.row("N30")
@pytest.mark.parametrize("usage", NO_TOKENS, ids=str)
def test_where_the_service_does_not_count_tokens_the_task_fails(log: WarningLog, usage: Any) -> None:
    with pytest.raises(CrewTaskFailed) as error:
        OutputRules(budget=Budget(5)).applied(completed(usage=usage), log)
    assert str(error.value) == (
        f"{UNKNOWN}. Make the service report its usage (for max_cost, it needs a price for each model), or set "
        f"on_unknown_usage='ignore' to use the output unchecked. {STAYS}"
    )


@pytest.mark.row("N30")
@pytest.mark.parametrize("usage", NO_TOKENS, ids=str)
def test_unknown_usage_that_is_ignored_is_logged(log: WarningLog, usage: Any) -> None:
    rules = OutputRules(budget=Budget(5), on_unknown_usage="ignore")
    assert rules.applied(completed(usage=usage), log) == {"output": "text"}
    assert log.lines == [f"{UNKNOWN}; the output is used anyway because of on_unknown_usage"]


@pytest.mark.row("N30")
@pytest.mark.parametrize("usage", NO_TOKENS, ids=str)
def test_without_a_limit_nothing_needs_to_be_known(log: WarningLog, usage: Any) -> None:
    assert OutputRules().applied(completed(usage=usage), log) == {"output": "text"}
    assert log.lines == []


@pytest.mark.row("N30")
@pytest.mark.parametrize(
    ("budget", "usage", "said"),
    [
        (
            Budget(5, 0.5),
            {"total_tokens": 6, "cost_usd": 0.75},
            "used 6 tokens, more than max_total_tokens of 5 and cost",
        ),
        (Budget(5, 0.5), {"total_tokens": 6, "cost_usd": None}, "used 6 tokens, more than max_total_tokens of 5. The"),
        (Budget(5, 0.5), {"total_tokens": 5, "cost_usd": None}, "what it cost (max_cost is 0.5). Make the service"),
        (Budget(max_cost=0.5), {"cost_usd": 0.75}, "cost 0.75 USD, more than max_cost of 0.5. The execution"),
        (Budget(5, 0.5), None, "how many tokens it used (max_total_tokens is 5) and what it cost (max_cost is 0.5)"),
        (Budget(5), {"total_tokens": 0, "uncounted_calls": 3}, "is 5; 3 model calls reported no usage). Make the"),
        (Budget(5), {"total_tokens": 6, "uncounted_calls": 3}, "used 6 tokens, more than max_total_tokens of 5. The"),
        (
            Budget(max_cost=0.5),
            {"cost_usd": None, "by_model": {"a": {"cost_usd": None}, "b": {"cost_usd": 0.25}, "c": {}, "d": 7}},
            "what it cost (max_cost is 0.5; cost unknown for 'a')",
        ),
        (
            Budget(max_cost=0.5),
            {"by_model": {str(number): {"cost_usd": None} for number in range(7)}},
            "cost unknown for '0', '1', '2', '3', '4', 2 more)",
        ),
        (
            Budget(max_cost=0.5),
            {"by_model": {"a": {"cost_usd": None}, "b": {"cost_usd": 0.5}, "c": {"cost_usd": 0.25}}},
            "k-1 cost at least 0.75 USD, more than max_cost of 0.5. The",
        ),
    ],
)
def test_tokens_and_costs_are_limits_of_their_own(log: WarningLog, budget: Budget, usage: Any, said: str) -> None:
    with pytest.raises(CrewTaskFailed) as error:
        OutputRules(budget=budget).applied(completed(usage=usage), log)
    assert said in str(error.value)


PRICED = {"by_model": {"a": {"cost_usd": 50}, "b": {"cost_usd": 1.5}}}
UNPRICED = {"by_model": {"a": {"cost_usd": 50}, "b": {"cost_usd": None}}}
NO_FIGURES = [
    {"total_tokens": 0, "cost_usd": 0, "successful_requests": 3},
    {"total_tokens": 0, "cost_usd": 0.0, "prompt_tokens": 0, "completion_tokens": 0, "requests": 1},
    {"total_tokens": 0, "cost_usd": 0, "by_model": {"a": {"total_tokens": 0, "requests": 2}}},
    {"cost_usd": None, "successful_requests": 3},
]


@pytest.mark.row("N30")
@pytest.mark.parametrize("usage", NO_FIGURES, ids=str)
def test_nothing_beside_requests_is_not_known(log: WarningLog, usage: Any) -> None:
    for budget, said in ((Budget(5), "how many tokens it used"), (Budget(max_cost=0.5), "what it cost")):
        with pytest.raises(CrewTaskFailed, match=said):
            OutputRules(budget=budget).applied(completed(usage=usage), log)


@pytest.mark.row("N30")
@pytest.mark.parametrize(
    ("usage", "tokens", "cost"),
    [
        ({"cost_usd": 0, **PRICED}, None, 51.5),
        ({"cost_usd": 99, **PRICED}, None, 99),
        ({"total_tokens": 0, "by_model": {"a": {"total_tokens": 7}, "b": {"prompt_tokens": 1}}}, 7, None),
        ({"total_tokens": 0, "prompt_tokens": 8}, 8, None),
        ({"total_tokens": 9, "cost_usd": 0, "successful_requests": 1}, 9, 0),  # of a model that costs nothing
        ({"total_tokens": 0, "cost_usd": 0}, 0, 0),
        ({"prompt_tokens": 8}, None, None),
        ({"by_model": {"a": {"total_tokens": 7}}}, None, None),
        ({"cost_usd": 3, **UNPRICED}, None, None),
        ({"total_tokens": 2**63, "prompt_tokens": 2**63, "completion_tokens": 2**63}, 2**63, None),
        ({"by_model": [7], "total_tokens": 1, "cost_usd": 1}, 1, 1),
    ],
    ids=str,
)
def test_a_total_below_its_parts_counts_as_their_sum(usage: Any, tokens: Any, cost: Any) -> None:
    assert (total_tokens(usage), cost_usd(usage)) == (tokens, cost)
    limits = Budget(1, 0.5)
    assert limits.passed_by(figures(usage)) == limits.passed_by(usage)
    assert bool(limits.unknown_in(figures(usage))) is bool(limits.unknown_in(usage))


@pytest.mark.row("N30")
@pytest.mark.parametrize("whole", [None, 0, 3])
def test_the_parts_of_an_unknown_cost_are_its_minimum(whole: Any) -> None:
    said = Budget(max_cost=0.5).passed_by({"cost_usd": whole, **UNPRICED})
    assert said == "cost at least 50 USD, more than max_cost of 0.5"


@pytest.mark.row("N30")
def test_a_whole_beside_models_without_a_price_is_the_least() -> None:
    said = Budget(max_cost=0.5).passed_by({"cost_usd": 3, "by_model": {"a": {"cost_usd": None}}})
    assert said == "cost at least 3 USD, more than max_cost of 0.5"


@pytest.mark.row("N33")
@pytest.mark.parametrize("unpriced", [0, 1, 50_000])
def test_figures_of_many_models_are_few_and_judged_alike(unpriced: int) -> None:
    named = {f"{number}{'x' * 80}": {"cost_usd": 0.5 if number >= unpriced else None} for number in range(100_000)}
    usage, limits = {"total_tokens": 9, "by_model": named, "cost_usd": 1}, Budget(5, 0.5)
    kept = figures(usage)
    assert len(json.dumps(kept)) < 1000
    assert figures(kept) == kept
    assert limits.passed_by(kept) == limits.passed_by(usage) != ""
    assert bool(limits.unknown_in(kept)) is bool(limits.unknown_in(usage)) is bool(unpriced)


@pytest.mark.row("N30")
@pytest.mark.parametrize("chosen", ["ask", "skip", None, ""])
def test_only_a_task_with_a_form_can_ask(chosen: Any) -> None:
    with pytest.raises(CrewInvalidInput, match="on_unknown_usage must be 'fail' or 'ignore', not "):
        OutputRules(on_unknown_usage=chosen)


def test_matching_output_is_handed_on_as_its_schema_reads_it(log: WarningLog) -> None:
    assert OutputRules({"type": "array"}).applied(completed("[1]"), log) == {"output": [1]}
    read = {"total": 1}
    assert OutputRules(OBJECT).applied(completed("x", output_json=read), log) == {"output": read}


@pytest.mark.parametrize("text", ['{"total": 6.02e23}', '{"total": 1, "__id__": 2}'])
def test_an_output_that_airflow_cannot_pass_on_becomes_its_text(log: WarningLog, text: str) -> None:
    handed_on = OutputRules(OBJECT).applied(completed(f"```json\n{text}\n```"), log)["output"]
    assert isinstance(handed_on, str)
    assert json.loads(handed_on) == json.loads(text)


def test_an_output_that_does_not_match_fails_with_every_violation(log: WarningLog) -> None:
    with pytest.raises(CrewTaskFailed) as error:
        OutputRules({**OBJECT, "minProperties": 1}).applied(completed(output_json={}), log)
    assert str(error.value).startswith("The output of execution k-1 does not match output_schema, 2 violations: $: ")
    assert "'total' is a required property" in str(error.value)
    assert str(error.value).endswith(f". {STAYS}")


def test_one_violation_is_counted_as_one(log: WarningLog) -> None:
    with pytest.raises(CrewTaskFailed) as error:
        OutputRules(OBJECT).applied(completed(output_json={}), log)
    assert str(error.value).startswith("The output of execution k-1 does not match output_schema, 1 violation: $: ")


def test_an_output_with_a_missing_model_stays_unchecked_but_available(log: WarningLog) -> None:
    with pytest.raises(CrewTaskFailed) as error:
        OutputRules("no_such_module:Model").applied(completed(), log)
    assert str(error.value) == (f"{error.value.__cause__}. The output of execution k-1 was not checked. {STAYS}")


@pytest.mark.parametrize(
    ("execution", "written"),
    [
        (completed("text, 茶"), "text, 茶"),
        (completed("x", output_json={"a": "茶"}), '{"a": "茶"}'),
        (completed("half \ud800"), "half \ud800"),
        (completed(None), "null"),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_output_moves_from_the_record_to_its_path(
    log: WarningLog, tmp_path: Path, execution: Execution, written: str, scheme: str
) -> None:
    path = tmp_path / "new" / "folder" / "one.txt"
    for _ in range(2):
        record = OutputRules(output_to=f"{scheme}{path}").applied(execution, log)
    assert path.read_bytes() == written.encode("utf-8", "surrogatepass")
    left = {"task_id": "t", "agent": "a", "output": None, "execution_time": 1.5}
    assert record == {"output": None, "output_path": f"{scheme}{path}", "tasks": [left]}
    assert json.dumps(record)


def test_an_unwritable_output_is_left_to_a_retry(log: WarningLog, tmp_path: Path) -> None:
    with pytest.raises(AirflowException) as error:
        OutputRules(output_to=str(tmp_path)).applied(completed(), log)
    cause = error.value.__cause__
    assert not isinstance(error.value, CrewTaskFailed)
    assert str(error.value) == (
        f"The output of execution k-1 could not be written to {tmp_path}: {type(cause).__name__}: {cause}. The "
        "execution has completed, and its output is still available from the service. A retry of this task "
        "fetches and writes it again"
    )


def test_no_folder_is_made_in_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it would be a bucket."""
    written: list[Any] = []
    parent = SimpleNamespace(mkdir=lambda **more: written.append(more))
    for protocol in ("s3", "file", "local", ""):
        opened = SimpleNamespace(fs=None, protocol=protocol, parent=parent, write_bytes=written.append)
        monkeypatch.setattr(sdk, "ObjectStoragePath", lambda path, opened=opened: opened, raising=False)
        output_storage.stored("x://bucket/one", completed(), "text")
    made = {"parents": True, "exist_ok": True}
    assert written == [b"text", made, b"text", made, b"text", made, b"text"]


@pytest.mark.parametrize("given", ["", " ", 5, []])
@pytest.mark.parametrize(("name", "kind"), [("output_to", "a file or an object"), ("files_to", "a folder")])
def test_an_impossible_path_is_refused_when_the_dag_is_parsed(given: Any, name: str, kind: str) -> None:
    with pytest.raises(CrewInvalidInput, match=f"{name} must be the path of {kind}, not"):
        kickoff_that_waits(**{name: given})


def test_a_path_object_is_taken_as_its_text(tmp_path: Path) -> None:
    assert kickoff_that_waits(output_to=tmp_path).output_to == str(tmp_path)
    stored = sdk.ObjectStoragePath("file:///tmp/x")
    assert kickoff_that_waits(files_to=stored).files_to == "file:///tmp/x"
    assert kickoff_that_waits().output_to is None


def test_an_overflowing_cost_is_unknown_and_stops_no_wait() -> None:
    usage = {"total_tokens": 1, "cost_usd": None, "by_model": {"a": {"cost_usd": 10**400}, "b": {"cost_usd": 0.5}}}
    budget = Budget(max_cost=0.6)
    assert budget.passed_by(usage) == ""
    assert "'a'" in budget.unknown_in(usage)


@pytest.mark.row("N33")
@pytest.mark.parametrize(
    "usage",
    [
        {"total_tokens": 10, "uncounted_calls": "3"},
        {"total_tokens": 10, "uncounted_calls": True},
        {"total_tokens": 10, "uncounted_calls": 10**19},
        {"total_tokens": 10, "by_model": {"a": {"total_tokens": "1000000"}}},
        {"total_tokens": 10, "by_model": {"a": None}},
        {"total_tokens": 10, "by_model": ["a"]},
        {"total_tokens": 10, "prompt_tokens": 10**19, "completion_tokens": 5},
        {"total_tokens": 0, "successful_requests": "3"},
        "10",
    ],
    ids=str,
)
def test_tokens_that_are_given_and_cannot_be_read_are_unknown(usage: Any) -> None:
    budget = Budget(max_total_tokens=100)
    assert "how many tokens" in budget.unknown_in(usage)
    assert "how many tokens" in budget.unknown_in(figures(figures(usage)))


@pytest.mark.row("N33")
@pytest.mark.parametrize(
    "usage",
    [
        {"cost_usd": 0.1, "by_model": {"a": {"cost_usd": 0.1}, "b": "?"}},
        {"cost_usd": 0.1, "by_model": {"a": {"cost_usd": "1000"}}},
        {"cost_usd": 0.1, "uncounted_calls": 3},
        {"cost_usd": 0, "total_tokens": 0, "requests": "7"},
    ],
    ids=str,
)
def test_an_unreadable_cost_is_unknown(usage: Any) -> None:
    budget = Budget(max_cost=1.0)
    assert "what it cost" in budget.unknown_in(usage)
    assert "what it cost" in budget.unknown_in(figures(figures(usage)))
    assert "what it cost" not in budget.unknown_in({"cost_usd": 0.1, "total_tokens": "?"})


def test_an_immense_cost_stays_over_budget_in_trigger_events_too() -> None:
    costs = {model: {"total_tokens": 1, "cost_usd": 2.0**63} for model in ("a", "b")}
    usage = {"total_tokens": 3, "by_model": {**costs, "c": {"total_tokens": 1, "cost_usd": None}}}
    budget = Budget(max_cost=50)
    assert budget.passed_by(usage)
    assert budget.passed_by(figures(usage))


def naming(key: str) -> list[Any]:
    """Return schemas that name a key of the output, each in another place."""
    named = {"properties": {key: {"type": "string"}}}
    by_reference = {"type": "object", "$ref": "#/$defs/it", "$defs": {"it": named}}
    aliased = create_model("Aliased", field=(str, Field(alias=key)))
    nested = {"allOf": [{"anyOf": [{"if": {}, "then": by_reference["$defs"]["it"]}]}], "type": "object"}
    return [{"type": "object", **named}, {"type": "object", "required": [key]}, by_reference, nested, aliased]


@pytest.mark.row("A42")
@pytest.mark.parametrize("key", ["crew_decisions", "kickoff_id", "crew_inbox:x", "return_value", "open?"])
@pytest.mark.parametrize("place", range(5))
def test_a_schema_naming_a_reserved_key_is_refused_when_parsed(key: str, place: int) -> None:
    schema = naming(key)[place]
    OutputRules(schema)  # without `multiple_outputs`, the keys are no XComs
    with pytest.raises(CrewInvalidInput, match=f"{re.escape(repr(key))} (is an XCom key|contains)"):
        OutputRules(schema, multiple_outputs=True)


class Reserved(BaseModel):
    kickoff_id: str


class Item(BaseModel):
    """A model whose fields may have any name, because only the output's own keys become XComs."""

    items: list[Reserved]


@pytest.mark.row("A42")
def test_a_model_by_its_path_is_refused_before_the_start() -> None:
    rules = OutputRules(f"{__name__}:Reserved", multiple_outputs=True)
    with pytest.raises(CrewInvalidInput, match="'kickoff_id' is an XCom key"):
        rules.refuse_unusable()


@pytest.mark.row("A42")
@pytest.mark.parametrize(
    "schema", [Item, {"properties": {"kickoff_id": False, "crew_run": {}, "total": {}}, "type": "object"}], ids=str
)
def test_keys_that_cannot_collide_are_allowed(schema: Any) -> None:
    OutputRules(schema, multiple_outputs=True).refuse_unusable()


class Called(BaseModel):
    """A model without a JSON Schema."""

    kickoff_id: Callable[[], None]


LOOP = {"properties": {"total": {}}, "allOf": [{"$ref": "#/$defs/loop"}]}


@pytest.mark.row("A42")
@pytest.mark.parametrize(
    ("schema", "keys"),
    [
        (Called, ["kickoff_id"]),
        ({"type": "object", "$ref": "#/$defs/loop", "$defs": {"loop": LOOP}}, ["total"]),
        ({"type": "object"}, []),
        ("package.module:Model", []),
    ],
    ids=["no JSON Schema", "a loop", "no keys", "a path"],
)
def test_the_keys_that_a_schema_names_are_found_once(schema: Any, keys: list[str]) -> None:
    assert named_keys(schema) == keys
