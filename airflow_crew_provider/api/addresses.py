"""Addresses: a connection's base URLs, the page of an execution, and the URLs that may receive a Flow's answers."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

# Excludes everything that URL parsers interpret differently: user names, backslashes, control characters.
_PLAIN_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[!-\[\]-~]*)?")
HOST = "Host"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def base_url(host: str | None, port: int | None, schema: str | None) -> str:
    """Return the base URL without a trailing slash; a missing scheme means https, and a path is kept."""
    if not host or not host.strip():
        raise ValueError("Host is empty; set it to the base URL of the deployed crew")
    return _base_url(host.strip(), port, schema, HOST)


def browser_url(given: str | None) -> str | None:
    """Read the Extra field ``browser_url``, a base URL like Host."""
    return _base_url(given, None, None, "Extra 'browser_url'") if given else None


def _base_url(host: str, port: int | None, schema: str | None, name: str) -> str:
    if "://" not in host:
        bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
        host = f"{schema or 'https'}://{f'[{host}]' if bare_ipv6 else host}"
    parts = urlsplit(host)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name}{' (with Schema)' if name == HOST else ''} is not an http or https address")
    if "@" in parts.netloc:
        raise ValueError(f"{name} contains a credential; put the token in Password")
    if parts.query or parts.fragment:
        raise ValueError(f"{name} has a query or a fragment; enter only the base URL")
    netloc = parts.netloc if _port(parts, name) or not port else f"{parts.netloc}:{port}"
    return urlunsplit((parts.scheme, netloc, quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"), "", ""))


def _port(parts: SplitResult, name: str) -> int | None:
    try:
        return parts.port
    except ValueError:  # its message would show the port
        problem = f"{name} has a port that is not a number up to 65535"
    raise ValueError(problem)


def proxy_url(given: str, name: str) -> str:
    """Read a proxy URL; a missing scheme means http.

    The HTTP libraries interpret anything else differently: requests mistakes ``proxy`` in ``proxy:3128`` for a scheme,
    and aiohttp speaks HTTP to a SOCKS proxy.
    """
    url = given if "://" in given else f"http://{given}"
    with suppress(ValueError):  # its message would show part of the password
        parts = urlsplit(url)
        rest = parts.path.removeprefix("/") + parts.query + parts.fragment
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not rest:
            return url
    raise ValueError(f"{name} is not an http or https address")


LONGEST_VIEW = 2048


def view_path(given: Any) -> str | None:
    """Return the path of an execution's page if it stays below the base URL, else None."""
    if not isinstance(given, str) or not given.startswith("/") or len(given) > LONGEST_VIEW:
        return None
    elsewhere = given.startswith("//") or "\\" in given or " " in given or not given.isprintable()
    return None if elsewhere else given


def hosts(given: Any) -> tuple[str, ...]:
    """Read the Extra field ``callback_hosts``: hosts with or without a port, as a list or separated by commas."""
    listed = given.split(",") if isinstance(given, str) else given or []
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ValueError("Extra 'callback_hosts' must be a list of hosts")
    named = tuple(each.strip().lower() for each in listed if each.strip())
    if any("/" in each or "@" in each for each in named):
        raise ValueError("Extra 'callback_hosts' must contain hosts, with or without a port, not URLs")
    return named


def is_allowed(url: str, own: str, others: tuple[str, ...]) -> bool:
    """Whether an answer may be sent to a URL: it must have the base URL's origin or be on another allowed host.

    A host without a port is allowed on the default port. If the base URL is https, the URL must be too.
    """
    parts = _plain(url)
    base = urlsplit(own)
    if parts is None or (base.scheme == "https" and parts.scheme != "https"):
        return False
    host, port = (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS[parts.scheme]
    if (parts.scheme, host, port) == (base.scheme, base.hostname, base.port or _DEFAULT_PORTS[base.scheme]):
        return True
    return f"{host}:{port}" in others or (host in others and port == _DEFAULT_PORTS[parts.scheme])


def _plain(url: str) -> SplitResult | None:
    if not _PLAIN_URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts
