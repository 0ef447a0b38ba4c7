"""Addresses that webhooks go to, parsed at the door as the sender parses them."""

from __future__ import annotations

from ipaddress import IPv6Address

from yarl import URL


def parsed(address: str) -> str:
    """Return the address as it will be sent to.

    :raises ValueError: the sender could not send there
    """
    url = URL(address)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("must begin with http:// or https:// and name a host")
    if ":" in url.host:
        IPv6Address(url.host)
    else:
        url.host.encode("idna")  # as a look-up of the name does
    return str(url)
