"""The plugin through which Airflow 3's API server serves the inbox. Airflow 2 loads it and does not use it.

Every Airflow process loads plugins, so nothing heavy is imported before the first webhook arrives.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

from airflow_crew_provider.compat.refusal_notice import explain_refusals

URL_PREFIX = "/crew-inbox"


class Inbox:
    """An ASGI application that builds the real one when it is first called."""

    _app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on."""
        if self._app is None:
            from airflow_crew_provider.inbox.app import app

            self._app = app
        await self._app(scope, receive, send)


def with_cleaning(app: Any) -> Any:
    """Start to remove what the inbox has stored too long, in a process that serves Airflow's API; change nothing else.

    Airflow calls it once in each API server, as it does with a middleware.
    """
    from airflow_crew_provider.inbox import cleaning

    cleaning.start()
    return app


class CrewInboxPlugin(AirflowPlugin):
    """Receives the webhooks of the crew service, and lets a review say why it did not take an answer."""

    name = "crew_inbox"
    fastapi_apps = [{"app": Inbox(), "url_prefix": URL_PREFIX, "name": "Crew inbox"}]  # noqa: RUF012 - as declared
    fastapi_root_middlewares = [{"middleware": with_cleaning, "name": "Crew inbox"}]  # noqa: RUF012 - as declared

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Let reviews say why an answer was not taken, in a process that keeps their questions."""
        explain_refusals()
