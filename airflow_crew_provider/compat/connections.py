"""Connections: lookup without blocking the event loop, and the form if Airflow does not create it itself.

Airflow has had an awaitable lookup since 3.1, but before 3.3.2 it fails in a busy triggerer; the compat provider works
around that. In `dag.test()` on 3.3.2, it finds no connection in the database, because the supervisor used there cannot
be awaited. From Airflow 3.2 on, the form comes from the provider info.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.supervisor import is_awaitable
from airflow_crew_provider.models import Json


async def aget_connection(conn_id: str) -> Any:
    """Return a connection; raise whatever Airflow raises."""
    from airflow.providers.common.compat.connection import get_async_connection
    from airflow.providers.common.compat.sdk import BaseHook

    look_up = get_async_connection if is_awaitable() else sync_to_async(BaseHook.get_connection)
    return await look_up(conn_id)


def widgets(fields: Json) -> dict[str, Any]:
    """Return a form field for each description in the provider info.

    Numbers use text fields, which may be left empty; the connection also accepts numbers as text.
    """
    # Only older web servers have these packages.
    from flask_appbuilder.fieldwidgets import BS3PasswordFieldWidget, BS3TextFieldWidget
    from wtforms import BooleanField, PasswordField, StringField

    def field(about: Json) -> Any:
        label, description, schema = about["label"], about["description"], about["schema"]
        if "boolean" in schema["type"]:
            return BooleanField(label, description=description, default=schema.get("default", False))
        if schema.get("format") == "password":
            return PasswordField(label, description=description, widget=BS3PasswordFieldWidget())
        return StringField(label, description=description, widget=BS3TextFieldWidget())

    return {name: field(about) for name, about in fields.items()}
