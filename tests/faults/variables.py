"""Where tasks keep their records: Airflow's Variables, with the faults that they have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_crew_provider.compat import variables, version
from airflow_crew_provider.task import store


class Variables:
    """`Variable` of Airflow 3.0 to 3.2, which does not report the names to a task; kept by the test."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.unreadable = 0  # how many reads fail from now on; Airflow answers them as if nothing were there
        self.refused: str | None = None  # what no text may contain: to store one raises an error
        self.writable = True  # Airflow logs that it could not store a Variable, and goes on
        self.encrypted: set[str] = set()  # by a Fernet key that is gone; Airflow answers as if nothing were there

    def get(self, key: str, deserialize_json: bool = False) -> Any:
        self.unreadable -= 1
        if key not in self.kept or self.unreadable >= 0 or key in self.encrypted:
            raise KeyError(f"Variable {key} does not exist")
        return json.loads(self.kept[key]) if deserialize_json else self.kept[key]

    def set(self, key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        if self.refused and self.refused in value:
            raise OSError("the database is away")
        if self.writable:
            self.encrypted.discard(key)
            self.kept[key] = json.dumps(value) if serialize_json else value

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)


class NamedVariables(Variables):
    """`Variable` of other versions."""

    def keys(self, prefix: str | None = None) -> list[str]:
        return [key for key in self.kept if key.startswith(prefix or "")]


def stand_in_for_variables(monkeypatch: pytest.MonkeyPatch, kept: Variables | None = None) -> Variables:
    """Give tasks Variables without a database; whether they keep anything there depends on the Airflow installed."""
    kept = kept or NamedVariables()
    monkeypatch.setattr(variables, "Variable", kept)
    return kept


def keep_in_variables(monkeypatch: pytest.MonkeyPatch, kept: Variables | None = None) -> Variables:
    """Let tasks have nothing but Variables, as before Airflow 3.3."""
    monkeypatch.setattr(store, "NEVER_EXPIRE", None)
    return stand_in_for_variables(monkeypatch, kept)


def keep_beside_state_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks find the store of their context too, as on Airflow 3.3."""
    monkeypatch.setattr(store, "NEVER_EXPIRE", object())
    monkeypatch.setattr(version, "RELEASE", min(version.RELEASE, (3, 3)))
