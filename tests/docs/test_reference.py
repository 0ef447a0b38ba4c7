"""`docs/operators.md` against the code: parameters, their order and their defaults, methods, fields and errors."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_crew_provider import exceptions, models
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.compat.arguments import StartArguments, WaitArguments
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.kickoff.request import StartingTask
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.task.waiting import WaitingTask

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text("utf-8")
CONFIGURED = {("CrewKickoffOperator", "deferrable"), ("CrewStatusSensor", "deferrable")}  # by Airflow's settings
INHERITED = {"CrewStatusSensor": {"timeout", "mode", "soft_fail", "exponential_backoff", "max_wait"}}
# Public for other parts of the package; no user needs them.
INTERNAL = {"with_credentials", "astop", "mask", "send_resume"}
Row = tuple[str, str]


def documented() -> dict[str, Callable[..., Any]]:
    """Each class or function with a table of its parameters, by its name; some need a newer Airflow."""
    classes: list[Any] = [CrewKickoffOperator, CrewStatusSensor, CrewResumeOperator]
    try:
        from airflow_crew_provider.operators.review import CrewReviewOperator
        from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
        from airflow_crew_provider.task_groups.crew import crew_with_review
    except ImportError:
        return {"The output as data": WaitingTask, **{each.__name__: each for each in classes}}
    more = (*classes, CrewReviewOperator, CrewUsageApprovalOperator, crew_with_review)
    return {"The output as data": WaitingTask, **{each.__name__: each for each in more}}


def section(name: str) -> str:
    """The text below the heading of that name, up to the next heading of the same level."""
    found = re.search(rf"^## {name}\b.*?$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/operators.md has no section {name}"
    return found[1]


def rows(name: str) -> Iterator[Row]:
    table = re.search(r"^\| parameter \| default \|.*?\n\|[-|]+\n((?:\|.*\n)+)", section(name), re.MULTILINE)
    assert table, f"the section {name} has no table of parameters"
    for line in table[1].splitlines():
        names, default = (cell.strip() for cell in line.split("|")[1:3])
        yield from ((found, default.strip("`")) for found in re.findall(r"`(\w+)`", names))


def expected(name: str) -> list[Row]:
    """The parameters and defaults of the signature, as the page writes them."""
    parameters = inspect.signature(documented()[name]).parameters.values()
    own = [each for each in parameters if each.name != "self" and each.kind is not each.VAR_KEYWORD]
    return [(each.name, shown(name, each)) for each in own]


def shown(name: str, parameter: inspect.Parameter) -> str:
    if (name, parameter.name) in CONFIGURED:
        return "Airflow's default"
    default = parameter.default
    if default is inspect.Parameter.empty:
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("name", documented())
def test_the_table_of_parameters_is_that_of_the_signature(name: str) -> None:
    on_the_page = [row for row in rows(name) if row[0] not in INHERITED.get(name, ())]
    assert on_the_page == expected(name)


@pytest.mark.parametrize("name", INHERITED)
def test_parameters_named_as_inherited_are_taken(name: str) -> None:
    on_the_page = {parameter for parameter, _ in rows(name)}
    assert on_the_page >= INHERITED[name]
    assert "**kwargs" in str(inspect.signature(documented()[name]))


def plain(function: Callable[..., Any], name: str) -> str:
    """`name(first, *, second=None)`: a signature without types."""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]
    return name + str(inspect.Signature(parameters))


def public_methods() -> dict[str, Callable[..., Any]]:
    both = {**vars(ConnectedCrew), **vars(CrewHook)}
    own = {name: value for name, value in both.items() if inspect.isfunction(value)}
    return {name: value for name, value in own.items() if not name.startswith("_") and name not in INTERNAL}


@pytest.mark.parametrize("name", public_methods())
def test_every_method_of_the_hook_is_documented_with_its_signature(name: str) -> None:
    assert f"`{plain(public_methods()[name], name)}`" in section("CrewHook").replace("await ", "")


@pytest.mark.parametrize("model", [models.Webhooks, models.HumanInputWebhook], ids=lambda model: model.__name__)
def test_request_fields_are_documented_with_their_defaults(model: type) -> None:
    fields = [
        field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default}"
        for field in dataclasses.fields(model)
    ]
    assert f"`{model.__name__}({', '.join(fields)})`" in " ".join(section("CrewHook").split())


def test_the_tree_of_errors_is_that_of_the_code() -> None:
    def tree(kind: type, depth: int = 0) -> Iterator[tuple[str, int]]:
        yield kind.__name__, depth
        for child in kind.__subclasses__():
            if child.__module__ == exceptions.__name__:
                yield from tree(child, depth + 1)

    lines = re.search(r"```\n(CrewError\n.*?)```", section("Errors"), re.DOTALL)
    assert lines
    on_the_page = [(found[2], len(found[1]) // 4) for found in re.finditer(r"^([│├└─ ]*)(\w+)", lines[1], re.MULTILINE)]
    assert on_the_page == list(tree(exceptions.CrewError))


def test_every_default_of_the_page_that_is_compared_is_there() -> None:
    assert sum(len(list(rows(name))) for name in documented()) >= 40


def test_the_crew_in_one_task_takes_what_the_page_says() -> None:
    if "CrewReviewOperator" not in documented():
        return  # on this Airflow nobody can be asked
    run = importlib.import_module("airflow_crew_provider.operators.run").CrewRunOperator
    [taken] = re.findall(r"^It takes (.*?)\. `retries`", section("CrewRunOperator"), re.MULTILINE | re.DOTALL)
    own, *excepted = (
        set(re.findall(r"`(\w+)`", part)) for part in re.split(r", the parameters of|, and those of", taken)
    )
    parents = (CrewKickoffOperator, documented()["CrewReviewOperator"])
    inherited = {name for parent, without in zip(parents, excepted, strict=True) for name in named(parent) - without}
    of_kickoff = set(StartArguments.__annotations__) - set(WaitArguments.__annotations__)
    assert named(run) | of_kickoff == (inherited - {"output_schema"}) | own | {"notifiers"}


def test_all_operators_that_start_an_execution_have_the_same_defaults() -> None:
    kickoff, shared = (inspect.signature(each).parameters for each in (CrewKickoffOperator, StartingTask))
    of_kickoff = set(StartArguments.__annotations__) - set(WaitArguments.__annotations__)
    assert {name: shared[name].default for name in of_kickoff} == {name: kickoff[name].default for name in of_kickoff}


def named(kind: Callable[..., Any]) -> set[str]:
    """The parameters that a class names itself."""
    return set(inspect.signature(kind).parameters) - {"kwargs"}
