"""Parses webhook addresses on receipt, exactly as the sender does."""

from __future__ import annotations

from ipaddress import IPv6Address

from yarl import URL


def parsed(address: str) -> str:
    """Return the address in the form in which the sender uses it.

    :raises ValueError: if the sender could not use it
    """
    url = URL(address)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("must begin with http:// or https:// and contain a host")
    if ":" in url.host:
        IPv6Address(url.host)
    else:
        url.host.encode("idna")  # as DNS resolution does
    if ":" in (url.user or ""):
        raise ValueError("must not have a colon in the user name")
    f"{url.user}:{url.password}".encode("latin-1")  # as in the header for basic authentication
    return str(url)
