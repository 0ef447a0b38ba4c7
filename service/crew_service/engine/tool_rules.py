"""Tool rules: whether to repeat a call with an unknown outcome, and whether a person must approve each call.

`repeat` is the default rule. A tool with `once` is never called again automatically after a call with an unknown
outcome: a person is asked or, if that is impossible, the execution fails. `approve` is like `once`, but a person must
also approve each call before it runs. A call of a tool with `prepare`, which has effects only in its process, is made
again when its task begins again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from crew_service.engine.printed import shortened

REPEAT, ONCE, APPROVE, PREPARE = "repeat", "once", "approve", "prepare"
KNOWN = (REPEAT, ONCE, APPROVE, PREPARE)
RUN_ONCE = (ONCE, APPROVE)  # tools with these rules may run only once
NEEDS_JOURNAL = "needs the journal, which --no-journal disables."
NOT_AGAIN = (
    "the call of {} that prepared for it was made by {!r}, which has finished and does not run again, and its tool is "
    "not among those of this task; let one task, or one method of a Flow, make both calls"
)
CALLED_AGAIN = "a tool that prepares for later calls called it when it was made again"
LONGEST_SHOWN = 500  # characters of arguments in an error


class BadRule(ValueError):
    """The rule is not valid; the message completes a sentence that names it."""


@dataclass(frozen=True)
class ToolRule:
    pattern: str  # for `fnmatch`
    rule: str
    is_common: bool = False  # shared by several crews, at least one of which must have such a tool

    def __post_init__(self) -> None:
        if not self.pattern:
            raise BadRule("it names no tool")
        if self.rule not in KNOWN:
            raise BadRule(f"{self.rule!r} is not a known rule; this release supports {', '.join(KNOWN)}")

    def __str__(self) -> str:
        return f"{self.pattern}={self.rule}"

    @classmethod
    def read(cls, text: str) -> ToolRule:
        """Read `NAME=RULE`."""
        pattern, separator, rule = text.rpartition("=")
        if not separator:
            raise BadRule("expected NAME=RULE")
        return cls(pattern, rule)

    def matches(self, names: Iterable[str]) -> bool:
        """Return whether one of a tool's names matches: its own name or the one that CrewAI shows the model."""
        return any(fnmatchcase(name, self.pattern) for name in names)


@dataclass(frozen=True)
class JournalOptions:
    """Command-line options for a crew's journal; the crew's project may add to them."""

    rules: tuple[ToolRule, ...] = ()
    flow_tools: tuple[str, ...] = ()  # names of a Flow's tools
    is_kept: bool = True


def of_project(declared: Any) -> list[ToolRule]:
    """Read a project's `tools` table."""
    if not isinstance(declared, dict):
        raise BadRule("it must be a table of names and rules")
    return [ToolRule(pattern, str(rule)) for pattern, rule in declared.items()]


def flow_tools_of_project(declared: Any) -> list[str]:
    """Read a project's `flow_tools`: the names of its Flow's tools, because no tool of a Flow is known at the start."""
    if not (isinstance(declared, list) and all(isinstance(name, str) and name for name in declared)):
        raise BadRule("[tool.airflow-crew-service] flow_tools must be a list of names")
    return declared


def undeclared(rules: Collection[ToolRule], flow_tools: Collection[str]) -> str | None:
    """Return why a Flow cannot follow its rules, as the end of a sentence; None if it can or has none."""
    if not rules or flow_tools:
        return None
    plain = next((rule.pattern for rule in rules if not set("*?[") & set(rule.pattern)), "name")
    return (
        f"its rule {next(iter(rules))} needs the names of all its tools, which are unknown until a Flow's methods run: "
        f'add flow_tools = ["{plain}", ...] to [tool.airflow-crew-service] in pyproject.toml, or --flow-tool {plain}.'
    )


def not_declared(name: str) -> str:
    return (
        f"The tool {name} was not run: a Flow with tool rules may call only the tools that it declares. Add it to "
        "flow_tools in [tool.airflow-crew-service], or as --flow-tool, and start the Flow again."
    )


def is_no_tool(name: str) -> str:
    return (
        f"The model was not called: it may run {name}, which has a tool rule, as a plain function, to which "
        "rules do not apply. Make it a tool, and pass the tool's `run` in available_functions."
    )


def rule_of(rules: Iterable[ToolRule], names: Iterable[str]) -> str:
    """Return the first rule that matches, or the default."""
    known = tuple(names)
    return next((each.rule for each in rules if each.matches(known)), REPEAT)


def has_rule(rules: Iterable[ToolRule], names: Iterable[str]) -> bool:
    """Return whether any rule, even the default one, was given for a tool."""
    known = tuple(names)
    return any(each.matches(known) for each in rules)


def problem(rules: Collection[ToolRule], tools: Collection[Collection[str]] | None, *, is_kept: bool) -> str | None:
    """Return why a crew cannot follow its rules, as the end of a sentence; None if it can.

    :param tools: each tool's names, the model's name for it last; None if not all are known yet
    :param is_kept: whether there is a journal
    """
    once = run_once(rules)
    if once and not is_kept:
        return f"{once} {NEEDS_JOURNAL}"
    if conflicting := next(filter(None, (conflict(rules, names) for names in [*(tools or ()), *_plain(rules)])), None):
        return conflicting
    if tools is None:
        return None
    lost = unmatched(rules, tools)
    known = ", ".join(list(names)[-1] for names in tools) or "it has none"
    return f"its rule {lost[0]} matches none of its tools ({known})." if lost else None


def unmatched(rules: Iterable[ToolRule], tools: Collection[Iterable[str]]) -> list[ToolRule]:
    """Return the rules that match none of a crew's tools, given by their names, and that no other crew shares."""
    return [rule for rule in rules if not (rule.is_common or any(map(rule.matches, tools)))]


def conflict(rules: Iterable[ToolRule], names: Collection[str]) -> str | None:
    """Return why a tool cannot follow its rules, as the end of a sentence: no call may run only once and again."""
    own = [each for each in rules if each.matches(names)]
    prepare = next((each for each in own if each.rule == PREPARE), None)
    once = next((each for each in own if each.rule in RUN_ONCE), None)
    if prepare is None or once is None:
        return None
    return f"its rules {prepare} and {once} are for the same tool ({list(names)[-1]})."


def _plain(rules: Iterable[ToolRule]) -> list[list[str]]:
    """Return the rules' own names, because not every tool may be known."""
    return [[rule.pattern] for rule in rules]


def run_once(rules: Iterable[ToolRule]) -> str | None:
    """Return the first rule that allows a tool to run only once, as the beginning of a sentence."""
    return next((f"its rule {rule}" for rule in rules if rule.rule in RUN_ONCE), None)


def asking(rules: Iterable[ToolRule]) -> str | None:
    """Return the first rule that requires asking people, as the beginning of a sentence."""
    return next((f"its rule {rule}" for rule in rules if rule.rule == APPROVE), None)


def not_prepared(name: str, arguments: str, reason: str) -> str:
    return (
        f"The tool {name} prepares for later calls, but its call with {_short(arguments)}, made again because the task "
        f"began again, {reason}. No later call was made; start the crew again."
    )


def not_run(name: str, arguments: str, reason: str) -> str:
    return f"The tool {name} may run only once, and it was not run with {_short(arguments)}: {reason}."


def not_known(name: str, arguments: str, reason: str) -> str:
    return (
        f"The tool {name} may run only once, but it is unknown whether it did its work with {_short(arguments)}: "
        f"{reason}. It was not run again; check what it did before you start the crew again."
    )


def task_gone(name: str, task_id: str) -> str:
    return (
        f"The tool {name} may run only once, and the task that called it no longer has the id {task_id!r}. No task was "
        "run; restore that task's name or place to continue, or check what the call did before you start the crew "
        "again."
    )


def _short(arguments: str) -> str:
    return shortened(arguments, LONGEST_SHOWN)
