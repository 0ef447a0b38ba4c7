"""Addresses: a connection's base URLs, the page of an execution, redirects, and where a Flow's answers may go.

URL parsers disagree about backslashes, user names, control characters and more. So an address from elsewhere is used
only if every parser reads it alike, and no request is sent to its text: `Place` is built from its checked parts.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, urljoin, urlsplit, urlunsplit

# Both exclude everything that URL parsers interpret differently: user names, backslashes, control characters.
_PLAIN_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[!-\[\]-~]*)?")
_AMBIGUOUS = re.compile(r"[\\\s\x00-\x1f\x7f-\x9f]")
HOST = "Host"
SHORTEST_QUERY, SHORTEST_SIGNATURE = 8, 24  # characters; a shorter value may be a date, which would mask every time
DEFAULT_PORTS = {"http": 80, "https": 443}


def query_secrets(url: str) -> tuple[str, ...]:
    """Return what may be a secret in the address of a file: its query, and each value in it as long as a signature."""
    query = url.partition("?")[2]
    signatures = [value for _, value in parse_qsl(query) if len(value) >= SHORTEST_SIGNATURE]
    return tuple(dict.fromkeys(each for each in (query, *signatures) if len(each) >= SHORTEST_QUERY))


def base_url(host: str | None, port: int | None, schema: str | None) -> str:
    """Return the base URL without a trailing slash; a missing scheme means https, and a path is kept."""
    if not host or not host.strip():
        raise ValueError("Host is empty; set it to the base URL of the deployed crew")
    return _base_url(host.strip(), port, schema, HOST)


def browser_url(address: str | None) -> str | None:
    """Read the Extra field ``browser_url``, a base URL like Host."""
    return _base_url(address, None, None, "Extra 'browser_url'") if address else None


def _base_url(host: str, port: int | None, schema: str | None, name: str) -> str:
    if "://" not in host:
        bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
        host = f"{schema or 'https'}://{f'[{host}]' if bare_ipv6 else host}"
    parts = _split(host)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name}{' (with Schema)' if name == HOST else ''} is not an http or https address")
    if "@" in parts.netloc:
        raise ValueError(f"{name} contains a credential; put the token in Password")
    if parts.query or parts.fragment:
        raise ValueError(f"{name} has a query or a fragment; enter only the base URL")
    netloc = parts.netloc if _port(parts, name) or not port else f"{parts.netloc}:{port}"
    return urlunsplit((parts.scheme, netloc, quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"), "", ""))


def _split(url: str) -> SplitResult | None:
    """Split an address; None if the HTTP libraries may read its host differently."""
    with suppress(ValueError):  # its message would show part of a credential
        parts = urlsplit(url)
        return None if _AMBIGUOUS.search(parts.netloc) else parts
    return None


def _port(parts: SplitResult, name: str) -> int | None:
    try:
        return parts.port
    except ValueError:  # its message would show the port
        problem = f"{name} has a port that is not a number up to 65535"
    raise ValueError(problem)


def proxy_url(address: str, name: str) -> str:
    """Read a proxy URL; a missing scheme means http.

    The HTTP libraries interpret anything else differently: requests mistakes ``proxy`` in ``proxy:3128`` for a scheme,
    and aiohttp speaks HTTP to a SOCKS proxy.
    """
    url = address if "://" in address else f"http://{address}"
    with suppress(ValueError):  # its message would show part of the password
        parts = None if _AMBIGUOUS.search(url) else urlsplit(url)
        rest = parts and parts.path.removeprefix("/") + parts.query + parts.fragment
        if parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not rest:
            return url
    raise ValueError(f"{name} is not an http or https address")


LONGEST_VIEW = 2048


def view_path(path: Any) -> str | None:
    """Return the path of an execution's page if it stays below the base URL, else None."""
    if not isinstance(path, str) or not path.startswith("/") or len(path) > LONGEST_VIEW:
        return None
    elsewhere = path.startswith("//") or "\\" in path or " " in path or not path.isprintable()
    return None if elsewhere else path


def hosts(names: Any) -> tuple[str, ...]:
    """Read the Extra field ``callback_hosts``: hosts with or without a port, as a list or separated by commas."""
    listed = names.split(",") if isinstance(names, str) else names or []
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ValueError("Extra 'callback_hosts' must be a list of hosts")
    named = tuple(each.strip().lower() for each in listed if each.strip())
    if any("/" in each or "@" in each for each in named):
        raise ValueError("Extra 'callback_hosts' must contain hosts, with or without a port, not URLs")
    return named


class Place(NamedTuple):
    """Where to send a request: the origin, and the path with its query, which begins with a slash."""

    origin: str
    target: str

    @property
    def url(self) -> str:
        """The whole address."""
        return self.origin + self.target


def redirected(url: str, location: str) -> Place | None:
    """Return where a redirect of a request to ``url`` leads; None if it leaves its origin, or if parsers may disagree.

    The origin is that of ``url`` itself.
    """
    if not location or _AMBIGUOUS.search(location):  # checked first too: `urljoin` removes tabs and line breaks
        return None
    try:
        target, own = _plain(urljoin(url, location)), urlsplit(url)
    except ValueError:
        return None
    return _place(own, target) if target is not None and _origin(target) == _origin(own) else None


def allowed(url: str, own: str, others: tuple[str, ...]) -> Place | None:
    """Return where to send an answer; None unless the URL has the base URL's origin or is on another allowed host.

    A host without a port is allowed on the default port. If the base URL is https, the URL must be too.
    """
    parts, base = _plain(url), urlsplit(own)
    if parts is None or (base.scheme == "https" and parts.scheme != "https"):
        return None
    if _origin(parts) == _origin(base):
        return _place(base, parts)
    _, host, port = _origin(parts)
    is_other = f"{host}:{port}" in others or (host in others and port == DEFAULT_PORTS[parts.scheme])
    return _place(parts, parts) if is_other else None


def _place(origin: SplitResult, address: SplitResult) -> Place:
    # Not `urlunsplit`, which changes a path that begins with two slashes.
    target = (address.path or "/") + (f"?{address.query}" if address.query else "")
    return Place(f"{origin.scheme}://{origin.netloc}", target)


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or DEFAULT_PORTS[parts.scheme]


def _plain(url: str) -> SplitResult | None:
    if not _PLAIN_URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts
