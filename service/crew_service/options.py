"""The options of `serve` and `work`: what they are called, and what they come to."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from typing import Any

from crew_service import addresses, operating
from crew_service.engine.crew import BadTarget, Crew
from crew_service.engine.paths import ROOT
from crew_service.http.dialects import DIALECTS
from crew_service.prices import Prices
from crew_service.settings import Settings
from crew_service.targets import EXPECTED, load, title

NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,63})=(?P<target>.+)", re.DOTALL)
TOKEN_VARIABLE = "CREW_SERVICE_TOKEN"  # noqa: S105 the name of a variable
PRICES_VARIABLE = "CREW_SERVICE_PRICES"
SECRET_VARIABLE = "CREW_SERVICE_FLOW_WEBHOOK_SECRET"  # noqa: S105


def add_crews(parser: argparse.ArgumentParser) -> None:
    """The options that must be the same in every process of one service."""
    option = parser.add_argument
    option(
        "--crew",
        action="append",
        metavar="TARGET",
        help=f"{EXPECTED} (demo); with NAME=TARGET, once or more, each is served at /crews/NAME",
    )
    option("--dialect", choices=sorted(DIALECTS), default="spec", help="(%(default)s)")
    option("--workers", type=positive(int), metavar="N", help="executions of a crew at once (32; CrewAI crews: 4)")
    option(
        "--max-seconds",
        "--time-limit",
        dest="time_limit",
        type=positive(float),
        default=3600.0,
        metavar="SECONDS",
        help="of work, of one execution (%(default)g)",
    )
    option("--max-tokens", type=positive(int), metavar="N", help="of language models, of one execution (no limit)")
    option(
        "--prices",
        metavar="FILE",
        help=f"TOML or JSON: USD for a million tokens of each model; also as {PRICES_VARIABLE}",
    )
    option("--keep-days", type=positive(float), default=30.0, metavar="DAYS", help="(%(default)g)")
    operating.add_logs(parser)


def add_http(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--host", type=host, default="127.0.0.1")
    option("--port", type=port, default=8300)
    option("--token", help=f"of the organization; also as {TOKEN_VARIABLE}; by default one is made and printed")
    option(
        "--crew-token",
        action="append",
        default=[],
        metavar="CREW[/NAME]=TOKEN",
        type=crew_token,
        help="the organization's or a user's, for one of several crews, in the place of those for all",
    )
    option("--flow-webhook", type=web_address, metavar="URL", help="where to announce each question of a Flow")
    option("--flow-webhook-secret", metavar="SECRET", help=f"that signs these; also as {SECRET_VARIABLE}")
    option(
        "--base-url",
        type=web_address,
        metavar="URL",
        help="of this service, for answers to these (by default its host and port)",
    )
    option("--max-body", type=positive(int), default=1024 * 1024, metavar="BYTES", help="(%(default)d)")
    option("--max-connections", type=positive(int), metavar="N", help="at once (what the limit on open files leaves)")
    operating.add_http(parser)


def crews_of(arguments: argparse.Namespace) -> dict[str, Crew]:
    """The crews by name; one without a name is served alone, at the root."""
    targets: dict[str, str] = {}
    for text in arguments.crew or ["demo"]:
        named = NAMED.fullmatch(text)
        name, target = (named["name"], named["target"]) if named else (ROOT, text)
        if name in targets:
            raise BadTarget(f"{text!r}: give every crew a name of its own, as NAME=TARGET, where several are served.")
        targets[name] = target
    if ROOT in targets and len(targets) > 1:
        raise BadTarget(f"{targets[ROOT]!r} has no name: give it one, as NAME=TARGET, since several crews are served.")
    for crew, _, _ in getattr(arguments, "crew_token", ()):
        if crew not in targets or crew == ROOT:
            raise BadTarget(f"There is a token for the crew {crew!r}, which is not served.")
    return {name: load(target) for name, target in targets.items()}


def settings_of(arguments: argparse.Namespace, token: str, **more: Any) -> Settings:
    given = vars(arguments)
    return Settings(
        token=token,
        crew_tokens=given.get("crew_token", []),
        title=title(arguments.crew[0] if arguments.crew else "demo"),
        dialect=arguments.dialect,
        database=arguments.db,
        workers=arguments.workers,
        time_limit=arguments.time_limit,
        max_tokens=arguments.max_tokens,
        max_body=given.get("max_body", Settings.max_body),
        prices=prices_of(arguments),
        keep_days=arguments.keep_days,
        flow_webhook=given.get("flow_webhook"),
        flow_webhook_secret=given.get("flow_webhook_secret") or os.environ.get(SECRET_VARIABLE, ""),
        **operating.settings(arguments),
        **more,
    )


def prices_of(arguments: argparse.Namespace) -> Prices:
    file = arguments.prices or os.environ.get(PRICES_VARIABLE)
    return Prices.read(file) if file else Prices()


def token_of(arguments: argparse.Namespace) -> str | None:
    return arguments.token or os.environ.get(TOKEN_VARIABLE)


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return number


def host(text: str) -> str:
    if not text:  # the socket would listen on every interface
        raise argparse.ArgumentTypeError("must not be empty; 0.0.0.0 listens on every interface")
    return text


def web_address(text: str) -> str:
    try:
        addresses.parsed(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must begin with http:// or https:// and name a host") from None
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
    return crew, user or None, token
