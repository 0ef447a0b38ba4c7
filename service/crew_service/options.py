"""The options of `serve` and `work`: their names, and the settings they produce."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from crew_service import addresses, logs
from crew_service.budgets import ALLOW, CREW, ORGANIZATION, REFUSE, USD, BadBudget, Budget, is_reserved
from crew_service.crewai import price_catalogue
from crew_service.crewai.process_limits import SUPPORTED, ProcessLimits
from crew_service.crewai.process_pool import PROCESSES, WATCH
from crew_service.crewai.world import places_of
from crew_service.engine.crew import BadTarget, Crew
from crew_service.engine.paths import ROOT
from crew_service.engine.principals import BadToken, usable
from crew_service.engine.tool_rules import PREPARE, RUN_ONCE, BadRule, JournalOptions, ToolRule
from crew_service.http import starting
from crew_service.http.dialects import DIALECTS
from crew_service.prices import Prices
from crew_service.settings import FileLimits, Settings
from crew_service.storage.schema import WITH_ASKS, WITH_PREPARE, WITH_RULES
from crew_service.targets import EXPECTED, load, title

NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,63})=(?P<target>.+)", re.DOTALL)
SIZE = re.compile(r"(?P<number>[0-9]{1,15}) ?(?P<unit>[KMG]iB)?")
UNITS = ("", "KiB", "MiB", "GiB")
TOKEN_VARIABLE = "CREW_SERVICE_TOKEN"  # noqa: S105 the name of a variable
MAX_MEMORY = "CREW_SERVICE_MAX_MEMORY"
MAX_PROCESSES = "CREW_SERVICE_MAX_PROCESSES"
NO_PRICES = "none"
PRICES_VARIABLE = "CREW_SERVICE_PRICES"
SECRET_VARIABLE = "CREW_SERVICE_FLOW_WEBHOOK_SECRET"  # noqa: S105
USER_TOKENS = "CREW_SERVICE_USER_TOKENS"
WEBHOOK_SECRET = "CREW_SERVICE_WEBHOOK_SECRET"  # noqa: S105


def add_crews(parser: argparse.ArgumentParser) -> None:
    """Add the options that must be the same in every process of a service."""
    option = parser.add_argument
    option("target", nargs="?", metavar="TARGET", help="the same as --crew TARGET")
    option(
        "--crew",
        action="append",
        metavar="TARGET",
        help=f"{EXPECTED} (demo); NAME=TARGET, which may be repeated, is served at /crews/NAME",
    )
    option("--dialect", choices=sorted(DIALECTS), default="spec", help="(%(default)s)")
    option("--workers", type=positive(int), metavar="N", help="concurrent executions per crew (32; CrewAI crews: 4)")
    option(
        "--idle-crews",
        type=at_least_0,
        metavar="N",
        help="number of projects whose crews stay loaded while none of them runs (4); each takes 190 MB",
    )
    option(
        "--max-seconds",
        "--time-limit",
        dest="time_limit",
        type=positive(float),
        default=3600.0,
        metavar="SECONDS",
        help="maximum run time per execution (%(default)g)",
    )
    option("--max-tokens", type=positive(int), metavar="N", help="maximum model tokens per execution (no limit)")
    option(
        "--max-memory",
        type=size,
        default=os.environ.get(MAX_MEMORY) or None,
        metavar="SIZE",
        help=f"maximum memory of a CrewAI execution's processes together, such as 2GiB; also {MAX_MEMORY} (no limit)",
    )
    option(
        "--max-processes",
        type=positive(int),
        default=os.environ.get(MAX_PROCESSES) or None,
        metavar="N",
        help=f"maximum number of a CrewAI execution's processes; also {MAX_PROCESSES} (no limit)",
    )
    option(
        "--prices",
        metavar="FILE",
        help=f"TOML or JSON file with USD per million tokens for each model, or {NO_PRICES}; also {PRICES_VARIABLE} "
        "(the catalogue of the newest CrewAI of all machines)",
    )
    option(
        "--budget",
        action="append",
        default=[],
        metavar="WHO=AMOUNT/WINDOW",
        help="what may be used: WHO is * (this service), crew:NAME, organization, the name of a user token, or "
        "crew:NAME/USER for one of a crew's own; AMOUNT 20USD or 500000tokens; WINDOW hour, day or month (UTC); may be "
        "repeated",
    )
    option("--budget-stops", action="store_true", help="a budget that is used up also ends what is running")
    option(
        "--on-unknown-price",
        choices=(REFUSE, ALLOW),
        default=REFUSE,
        help="what budgets in USD do about models without a price (%(default)s)",
    )
    option(
        "--tool",
        action="append",
        default=[],
        metavar="[CREW/]NAME=RULE",
        help="`approve`: a person must approve each call to a tool matching NAME; `once`: a person is asked before a "
        "call with an unknown outcome is repeated; `repeat`: such a call is repeated without asking",
    )
    option(
        "--flow-tool",
        action="append",
        default=[],
        metavar="[CREW/]NAME",
        help="a tool of a Flow with tool rules, which may call no others; may be repeated",
    )
    option("--no-journal", dest="journal", action="store_false", help="repeat all calls of an interrupted task")
    option(
        "--keep-days",
        type=positive(float),
        default=30.0,
        metavar="DAYS",
        help="how long finished executions are kept (%(default)g)",
    )
    option(
        "--keep-memory-days",
        type=positive(float),
        metavar="DAYS",
        help="how long CrewAI crews remember (default: for ever)",
    )
    option("--shared-memory", action="store_true", help="let users share the organization's memory")
    for name, default, what in (
        ("--max-file-size", FileLimits.of_file, "a file"),
        ("--max-files-size", FileLimits.of_execution, "the files of one execution"),
        ("--max-stored-files", None, "all files in the database"),
    ):
        most = f"{default >> 20}MiB" if default else "no limit"
        option(name, type=size, default=default, metavar="SIZE", help=f"maximum size of {what} ({most})")
    option("--log-format", choices=sorted(logs.FORMATS), default="json", help="(%(default)s)")
    option("--log-level", choices=logs.LEVELS, default="info", help="(%(default)s)")
    option("-v", "--verbose", action="store_true", help="print the traceback of a crew that cannot be loaded")


def add_http(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    starting.add_to(parser)
    option("--token", help=f"organization token; also {TOKEN_VARIABLE} (default: generated and printed)")
    option(
        "--crew-token",
        action="append",
        default=[],
        metavar="CREW[/NAME]=TOKEN",
        type=crew_token,
        help="organization or user token for one crew; replaces the global ones; may be repeated",
    )
    option("--flow-webhook", type=web_address, metavar="URL", help="where to announce each Flow question")
    option("--flow-webhook-secret", metavar="SECRET", help=f"secret for signing these webhooks; also {SECRET_VARIABLE}")
    option(
        "--base-url",
        type=web_address,
        metavar="URL",
        help="public base URL, used in Flow callback URLs (default: host and port)",
    )
    option(
        "--max-body",
        type=positive(int),
        default=1024 * 1024,
        metavar="BYTES",
        help="maximum size of a request (%(default)d)",
    )
    option(
        "--allow-file-urls",
        action="store_true",
        help="fetch files of a kickoff from public web addresses; without it, callers can only upload them",
    )
    option(
        "--max-connections",
        type=positive(int),
        metavar="N",
        help="maximum number of open connections (as many as the limit on open files allows)",
    )
    option("--no-work", dest="works", action="store_false", help="answer requests only; `work` processes run the crews")
    option(
        "--unbounded-connections",
        action="store_true",
        help="serve without limits on slow and silent clients if the installed uvicorn is an untested version",
    )
    option("--user-token", action="append", default=[], metavar="NAME=TOKEN", help="user token; may be repeated")
    option("--user-tokens-file", metavar="FILE", help=f"file with one NAME=TOKEN per line; also {USER_TOKENS}")
    option("--webhook-secret", metavar="SECRET", help=f"secret for signing outgoing webhooks; also {WEBHOOK_SECRET}")


def crews_of(arguments: argparse.Namespace) -> dict[str, Crew]:
    """Return the crews by name; a crew without a name is served alone, at the root."""
    targets: dict[str, str] = {}
    for text in arguments.crew or ["demo"]:
        named = NAMED.fullmatch(text)
        name, target = (named["name"], named["target"]) if named else (ROOT, text)
        if name in targets:
            raise BadTarget(f"{text!r}: several crews need distinct names, as NAME=TARGET.")
        targets[name] = os.path.expanduser(target)  # the shell does so only at the beginning of a word
    if ROOT in targets and len(targets) > 1:
        raise BadTarget(f"{targets[ROOT]!r} has no name: several crews need names, as NAME=TARGET.")
    for crew, _, _ in getattr(arguments, "crew_token", ()):
        if crew not in targets or crew == ROOT:
            raise BadTarget(f"There is a token for the crew {crew!r}, which is not served.")
    rules, flow_tools = _tool_rules(arguments.tool, targets), _flow_tools(arguments.flow_tool, targets)
    if arguments.idle_crews is not None:
        PROCESSES.most_idle = arguments.idle_crews
    WATCH.limits = _process_limits(arguments)
    places = places_of(
        targets,
        getattr(arguments, "crew_token", None),
        has_users="user_token" in arguments and bool(user_tokens(arguments)),
        shares_memory=arguments.shared_memory,
    )
    crews = {
        name: load(target, JournalOptions(rules[name], tuple(flow_tools[name]), arguments.journal), places[name])
        for name, target in targets.items()
    }
    for text in arguments.flow_tool:
        if not any(crews[name].kind == "flow" for name in _named_in("--flow-tool", text, targets)[0]):
            raise BadTarget(f"--flow-tool {text}: it names a tool of a Flow, but no Flow is served there.")
    for rule in {rule for own in rules.values() for rule in own if rule.is_common}:
        if not any(crew.has_tool(rule) for crew in crews.values()):
            raise BadTarget(
                f"--tool {rule}: none of the crews has such a tool. If a crew's tools are unknown until its tasks run, "
                f"name the crew: --tool CREW/{rule}."
            )
    asking = next((crew.asks for crew in crews.values() if crew.asks), None)
    if asking and DIALECTS[arguments.dialect].fresh_ids:  # its answers can only contain text
        raise BadTarget(
            f"A crew cannot be served in the live dialect: {asking} asks people questions in the middle of a task, "
            "which needs --dialect spec."
        )
    return crews


def _process_limits(arguments: argparse.Namespace) -> ProcessLimits:
    limits = ProcessLimits(arguments.max_memory, arguments.max_processes)
    if limits and not SUPPORTED:
        raise BadTarget("--max-memory and --max-processes need Linux: elsewhere, processes cannot be measured.")
    return limits


def oldest_release(crews: Iterable[Crew]) -> str | None:
    """Return the last migration of the oldest release that may run these crews; None if any release may."""
    rules = {rule.rule for crew in crews for rule in crew.rules}
    if PREPARE in rules:
        return WITH_PREPARE
    if any(crew.asks for crew in crews):
        return WITH_ASKS
    return WITH_RULES if rules.intersection(RUN_ONCE) else None


def _tool_rules(texts: list[str], crews: Iterable[str]) -> dict[str, tuple[ToolRule, ...]]:
    """Return the rules of each crew; a rule without a crew applies to all of them."""
    rules: dict[str, list[ToolRule]] = {name: [] for name in crews}
    for text in texts:
        names, own = _named_in("--tool", text, rules)
        try:
            rule = ToolRule.read(own)
        except BadRule as problem:
            raise BadTarget(f"--tool {text}: {problem}.") from None
        for name in names:
            rules[name].append(rule if len(names) == 1 else replace(rule, is_common=True))
    return {name: tuple(own) for name, own in rules.items()}


def _flow_tools(texts: list[str], crews: Iterable[str]) -> dict[str, list[str]]:
    tools: dict[str, list[str]] = {name: [] for name in crews}
    for text in texts:
        names, tool = _named_in("--flow-tool", text, tools)
        for name in names:
            tools[name].append(tool)
    return tools


def _named_in(option: str, text: str, crews: Iterable[str]) -> tuple[list[str], str]:
    """Split `[CREW/]REST`; return the crews that it is for, which are all of them if it names none, and the rest."""
    known = list(crews)
    crew, separator, rest = text.partition("/")
    if not separator:
        return known, text
    if crew == ROOT or crew not in known:
        served = ", ".join(filter(None, known)) or "the only crew has no name"
        raise BadTarget(f"{option} {text}: there is no crew {crew!r} ({served}).")
    return [crew], rest


def settings_of(arguments: argparse.Namespace, token: str, crews: dict[str, Crew], **more: Any) -> Settings:
    """Return the settings from the options; a process that serves no requests has only some of them."""
    values = vars(arguments)
    serves = "user_token" in values
    prices = prices_of(arguments)
    owners = _owners(arguments) if serves else None
    webhook_secret = serves and (arguments.webhook_secret or os.environ.get(WEBHOOK_SECRET))
    return Settings(
        token=token,
        user_tokens=user_tokens(arguments) if serves else [],
        crew_tokens=values.get("crew_token", []),
        title=title(arguments.crew[0] if arguments.crew else "demo"),
        dialect=arguments.dialect,
        database=arguments.db,
        workers=arguments.workers,
        time_limit=arguments.time_limit,
        max_tokens=arguments.max_tokens,
        max_body=values.get("max_body", Settings.max_body),
        max_connections=values.get("max_connections"),
        works=values.get("works", True),
        unbounded_connections=values.get("unbounded_connections", False),
        file_limits=FileLimits(arguments.max_file_size, arguments.max_files_size, arguments.max_stored_files),
        allow_file_urls=values.get("allow_file_urls", False),
        prices=prices,
        budgets=budgets_of(arguments.budget, crews if serves else None, owners, prices),
        budget_stops=arguments.budget_stops,
        on_unknown_price=arguments.on_unknown_price,
        keep_days=arguments.keep_days,
        keep_memory_days=arguments.keep_memory_days,
        oldest_release=oldest_release(crews.values()),
        flow_webhook=values.get("flow_webhook"),
        flow_webhook_secret=values.get("flow_webhook_secret") or os.environ.get(SECRET_VARIABLE, ""),
        webhook_secret=webhook_secret or None,
        **more,
    )


def budgets_of(
    given: list[str], crews: Collection[str] | None, owners: Collection[str] | None, prices: Prices
) -> tuple[Budget, ...]:
    """Return the budgets.

    :param crews: what a budget may name; None for a process that knows only some of them
    :param owners: likewise
    :raises BadBudget: one cannot be parsed, concerns nobody, or needs prices
    """
    budgets: dict[tuple[str, str, str], Budget] = {}
    for text in given:
        budget = Budget.read(text)
        if crews is not None and budget.crew is not None and budget.crew not in crews:
            raise BadBudget(f"--budget {text}: there is no crew {budget.crew!r}.")
        if owners is not None and budget.owner is not None and budget.who not in owners:
            known = ", ".join(sorted(owners))
            raise BadBudget(f"--budget {text}: there is no user token named {budget.who!r} ({known}).")
        if budget.unit == USD and not prices:
            raise BadBudget(f"--budget {text}: a budget in USD needs --prices.")
        key = (budget.who, budget.unit, budget.window)
        if key in budgets:
            raise BadBudget(
                f"--budget {text}: there is already a budget of {budget.who} in {budget.unit} for this window."
            )
        budgets[key] = budget
    return tuple(budgets.values())


def _owners(arguments: argparse.Namespace) -> set[str]:
    """Return the owners of executions as a budget names them; a user's name must not be another WHO of a budget."""
    names = {name for name, _ in user_tokens(arguments)} | {user for _, user, _ in arguments.crew_token if user}
    if reserved := sorted(name for name in names if is_reserved(name)):
        raise BadToken(
            f"A user token must not be named {reserved[0]!r}: in a budget, that is somebody else. Choose another name."
        )
    own = {f"{CREW}{crew}/{user or ORGANIZATION}" for crew, user, _ in arguments.crew_token}
    return {name for name, _ in user_tokens(arguments)} | own | {ORGANIZATION}


def prices_of(arguments: argparse.Namespace) -> Prices:
    file = arguments.prices or os.environ.get(PRICES_VARIABLE)
    if file == NO_PRICES:
        return Prices()
    return Prices.read(file) if file else Prices(default=price_catalogue.installed())


def token_of(arguments: argparse.Namespace) -> str | None:
    """Return the organization's token; None if none is given, so that one must be generated."""
    sources = [
        ("the token of --token", arguments.token),
        (f"the token in {TOKEN_VARIABLE}", os.environ.get(TOKEN_VARIABLE)),
    ]
    return next((usable(token, name) for name, token in sources if token and token.strip()), None)


def user_tokens(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the names and tokens from the command line, the file and the environment."""
    lines = [("--user-token", line) for line in arguments.user_token]
    if arguments.user_tokens_file:
        lines += [(arguments.user_tokens_file, line) for line in _read(arguments.user_tokens_file)]
    lines += [(USER_TOKENS, line) for line in os.environ.get(USER_TOKENS, "").splitlines()]
    stripped = [(source, line.strip()) for source, line in lines]
    return [_pair(source, line) for source, line in stripped if line and not line.startswith("#")]


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadToken(f"The user tokens in {path!r} cannot be read: {reason}.") from None


def _pair(source: str, line: str) -> tuple[str, str]:
    """Split NAME=TOKEN; the error does not quote the line, which may contain a token."""
    name, _, token = line.partition("=")
    if not (name.strip() and token.strip()):
        raise BadToken(f"A user token in {source} does not have the form NAME=TOKEN.")
    return name.strip(), usable(token, f"the token of {name.strip()!r} in {source}")


def size(text: str) -> int:
    """Return bytes."""
    match = SIZE.fullmatch(text)
    if not match or not int(match["number"]):
        raise argparse.ArgumentTypeError("must be a number of bytes greater than 0, or one with KiB, MiB or GiB")
    factor: int = 1024 ** UNITS.index(match["unit"] or "")
    return int(match["number"]) * factor


def at_least_0(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def web_address(text: str) -> str:
    try:
        addresses.parsed(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must begin with http:// or https:// and contain a host") from None
    return text


def positive(kind: type) -> Callable[[str], Any]:
    def positive(text: str) -> Any:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError("must be a number greater than 0")
        return value

    return positive


def crew_token(text: str) -> tuple[str, str | None, str]:
    place, _, token = text.partition("=")
    crew, slash, user = place.partition("/")
    if not (crew and token and bool(user) == bool(slash)):
        raise argparse.ArgumentTypeError("expected CREW=TOKEN or CREW/NAME=TOKEN")
    try:
        return crew, user or None, usable(token, f"the token of --crew-token {place}")
    except BadToken as problem:  # argparse would quote the value of any other ValueError
        raise argparse.ArgumentTypeError(str(problem)) from None
