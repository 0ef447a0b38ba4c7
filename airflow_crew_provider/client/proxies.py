"""A deployment's proxy, which is the same for blocking and for async requests."""

from __future__ import annotations

from requests.exceptions import InvalidProxyURL
from requests.utils import get_environ_proxies, select_proxy

from airflow_crew_provider.api.addresses import proxy_url
from airflow_crew_provider.client.deployment import Deployment


def proxy_of(deployment: Deployment) -> str | None:
    """Return the URL of the connection's proxy, or else that of the environment's proxy."""
    url = deployment.base_url
    proxy = deployment.proxy or select_proxy(url, get_environ_proxies(url))
    try:
        return proxy_url(proxy, "the environment's proxy") if proxy else None
    except ValueError as error:
        problem = str(error)
    raise InvalidProxyURL(problem)
