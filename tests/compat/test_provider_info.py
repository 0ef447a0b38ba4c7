"""What Airflow reads about the package, against Airflow's own schema; and the form of its older versions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import airflow
import jsonschema
import pytest

from airflow_crew_provider.get_provider_info import connection_fields, get_provider_info
from airflow_crew_provider.hooks.crew import CrewHook

SCHEMA = Path(airflow.__path__[0]) / "provider_info.schema.json"


def test_the_provider_info_is_what_airflows_schema_asks_for() -> None:
    jsonschema.validate(get_provider_info(), json.loads(SCHEMA.read_text("utf-8")))


def test_the_schema_refuses_what_is_no_provider_info() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "Crew"}, json.loads(SCHEMA.read_text("utf-8")))


class Field:
    """A form field, as the API server of Airflow 3.0 and 3.1 puts in place of those of wtforms."""

    def __init__(self, label: str, **options: object) -> None:
        self.label, self.options = label, options


class Text(Field): ...


class Password(Field): ...


class Boolean(Field): ...


@pytest.fixture
def form_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries of the form, which only the web server of an older Airflow has."""
    wtforms, widgets = ModuleType("wtforms"), ModuleType("flask_appbuilder.fieldwidgets")
    vars(wtforms).update(StringField=Text, PasswordField=Password, BooleanField=Boolean)
    vars(widgets).update(BS3TextFieldWidget=object, BS3PasswordFieldWidget=object)
    for module in (wtforms, widgets, ModuleType("flask_appbuilder")):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_the_form_of_an_older_airflow_has_the_same_fields(form_libraries: None) -> None:
    fields = CrewHook.get_connection_form_widgets()
    assert list(fields) == list(connection_fields())
    assert {name: field.label for name, field in fields.items()} == {
        name: about["label"] for name, about in connection_fields().items()
    }
    assert isinstance(fields["timeout"], Text)
    assert isinstance(fields["idempotency_keys"], Boolean)
    assert isinstance(fields["flow_webhook_secret"], Password)
