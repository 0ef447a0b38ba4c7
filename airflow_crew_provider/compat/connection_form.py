"""The fields of the connection form where Airflow does not read them from the provider info, that is before 3.2.

Airflow 3.2 and newer never ask for them.
"""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.models import Json


def widgets(fields: Json) -> dict[str, Any]:
    """Return a form field for each description of the provider info.

    Numbers are text fields: they may be left empty, and the connection reads numbers that are texts.
    """
    # Only the web server has these, and only older ones.
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
