"""Webhook addresses, parsed on receipt as the sender parses them."""

from __future__ import annotations

from ipaddress import IPv6Address

from yarl import URL


def parsed(address: str) -> str:
    """Return the address in the form that the sender uses.

    :raises ValueError: the sender could not send there
    """
    url = URL(address)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("must begin with http:// or https:// and name a host")
    if ":" in url.host:
        IPv6Address(url.host)
    else:
        url.host.encode("idna")  # as a lookup of the name does
    if ":" in (url.user or ""):
        raise ValueError("must not have a colon in its user")
    f"{url.user}:{url.password}".encode("latin-1")  # as in the header
    return str(url)
