"""Writes the argument types of operators and of `@task.crew`, for type checkers.

`python -m scripts.arguments` writes two files from the signatures of Airflow and the operators; with `--check`, it only
reports whether they are up to date. Airflow's own arguments come from the installed version.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import airflow
from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator

from airflow_crew_provider.operators.kickoff import CrewKickoffOperator
from airflow_crew_provider.task.waiting import WaitingTask

ROOT = Path(__file__).parent.parent
ARGUMENTS = ROOT / "airflow_crew_provider" / "compat" / "arguments.py"
STUB = ROOT / "airflow_crew_provider" / "decorators" / "__init__.pyi"
# Types that the written file can use; all other types in Airflow's signatures become Any.
KNOWN = {
    *("Any", "None", "bool", "dict", "float", "int", "list", "str", "type"),
    *("Json", "MutableMapping", "Sequence", "datetime", "timedelta"),
}
OWN_OF_KICKOFF = ("crew_conn_id", "wait_for_completion", "deferrable")  # other operators declare the first themselves
CONFIGURED = "deferrable"  # its default is an Airflow setting

THE_ARGUMENTS = '''\
"""The arguments of Airflow's base classes, so that type checkers find misspelled ones.

Written by `python -m scripts.arguments` from Airflow {version}; older versions reject newer arguments when they parse
the DAG file.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Required, TypedDict

from airflow_crew_provider.models import Json


class TaskOptions(TypedDict, total=False):
    """Arguments of every task, whether it uses a decorator or an operator."""

{task}


class TaskArguments(TaskOptions, total=False):
    """Arguments of every operator."""

    task_id: Required[str]
    multiple_outputs: bool


class DecoratorArguments(TaskOptions, total=False):
    """Arguments of every decorator; the task id may come from the function."""

    task_id: str


class WaitArguments(TaskArguments, total=False):
    """Arguments of operators and sensors that wait, from their base class."""

{wait}


class StartArguments(WaitArguments, total=False):
    """Arguments of every operator that starts an execution, as `CrewKickoffOperator` documents them."""

{start}


class SensorArguments(WaitArguments, total=False):
    """Arguments of sensors, except ``poke_interval``."""

{sensor}


class QuestionArguments(TaskArguments, total=False):
    """Arguments of tasks that ask a person a question."""

    notifiers: Any
    defaults: str | list[str] | None
'''
THE_STUB = '''\
"""The stub for `task`: other packages cannot extend Airflow's own, so this one adds `crew` to it.

Written by `python -m scripts.arguments` from the signature of `CrewKickoffOperator`.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Unpack, overload

from airflow.sdk import XComArg
from airflow.sdk.bases.decorator import FParams, FReturn, Task, TaskDecorator
from airflow.sdk.definitions.decorators import TaskDecoratorCollection

from airflow_crew_provider.compat.arguments import DecoratorArguments
from airflow_crew_provider.models import Json, Webhooks

__all__ = ["task"]

class CrewTaskDecoratorCollection(TaskDecoratorCollection):
    @overload
    def crew(
        self,
        *,
{parameters}
        **kwargs: Unpack[DecoratorArguments],
    ) -> TaskDecorator:
        """Run a crew with the inputs that the decorated function returns, and return the completed record.

{described}
        """
    @overload
    def crew(self, python_callable: Callable[FParams, FReturn]) -> Task[FParams, FReturn]: ...

task: CrewTaskDecoratorCollection
'''


def main() -> int:
    """Write the two files, or only check them."""
    written = {ARGUMENTS: arguments(), STUB: stub()}
    stale = [path for path, text in written.items() if path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date; run: python -m scripts.arguments")
        return int(bool(stale))
    for path in stale:
        path.write_text(written[path], "utf-8")
    return 0


def arguments() -> str:
    """Return the module with the arguments of each kind of task."""
    return THE_ARGUMENTS.format(
        version=airflow.__version__,
        task=_keys(BaseOperator.__init__, but=("task_id", "multiple_outputs")),
        wait=_keys(WaitingTask, but=("multiple_outputs",)),
        start=_keys(CrewKickoffOperator, but=OWN_OF_KICKOFF),
        sensor=_keys(BaseSensorOperator.__init__, but=("poke_interval",)),  # our own sensor declares it
    )


def _keys(of: Callable[..., Any], but: tuple[str, ...]) -> str:
    """Return the keyword arguments of a signature, each with a type that is valid in the written file."""
    found = inspect.signature(of).parameters.values()
    named = [each for each in found if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    kept = [each for each in named if each.name not in ("self", *but)]
    return "\n".join(f"    {each.name}: {_type(each)}" for each in kept)


def _type(parameter: inspect.Parameter) -> str:
    short = re.sub(r"\bdict\b(?!\[)", "dict[str, Any]", str(parameter.annotation).replace("collections.abc.", ""))
    is_known = set(re.findall(r"[A-Za-z_.]+", short)) <= KNOWN
    written = short if is_known and not short.startswith("Any") else "Any"
    return f"Required[{written}]" if parameter.default is parameter.empty else written


def stub() -> str:
    """Return the stub, whose `task.crew` takes the operator's arguments except the inputs."""
    operator = inspect.signature(CrewKickoffOperator).parameters
    taken = {**operator, **inspect.signature(WaitingTask).parameters}
    own = [each for each in taken.values() if each.kind is each.KEYWORD_ONLY and each.name != "inputs"]
    described = dict(_described(CrewKickoffOperator)) | dict(_described(WaitingTask))
    lines = [described[each.name] for each in own]
    lines.append("        :param kwargs: arguments of every task, such as ``retries`` and ``pool``")
    return THE_STUB.format(parameters="\n".join(map(_parameter, own)), described="\n".join(lines))


def _parameter(parameter: inspect.Parameter) -> str:
    # `@task.crew` waits; Airflow's settings decide whether it does so in the triggerer.
    shown = {"wait_for_completion": "True", CONFIGURED: "..."}
    default = shown.get(parameter.name, repr(parameter.default).replace("'", '"'))
    return f"        {parameter.name}: {parameter.annotation} = {default},"


def _described(of: type) -> Iterator[tuple[str, str]]:
    """Yield the name and lines of each parameter that the docstring describes."""
    text = inspect.getdoc(of) or ""
    for name, about in re.findall(r"^:param (\w+): (.*(?:\n[ ]+.*)*)", text, re.MULTILINE):
        line = f":param {name}: {' '.join(about.split())}"
        yield name, fill(line, 120, initial_indent=" " * 8, subsequent_indent=" " * 12, break_long_words=False)


if __name__ == "__main__":
    sys.exit(main())
