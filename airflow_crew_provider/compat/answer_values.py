"""The fields of an answer that Airflow stores, but cannot bring to the task or keep in an XCom."""

from __future__ import annotations

from airflow_crew_provider.models import Json

try:
    from airflow.sdk.serde import deserialize, serialize
except ImportError:  # before Airflow 3.2
    from airflow.serialization.serde import deserialize, serialize  # type: ignore[no-redef]


def unreadable(params_input: Json | None) -> str | None:
    """Return which fields of an answer cannot be read back, as a sentence; None if all can.

    A program may send any JSON, also names that Airflow's serialization keeps for itself.
    """
    lost = [name for name, value in (params_input or {}).items() if not _comes_back({name: value})]
    return f"Airflow cannot read back its {', '.join(lost[:10])}" if lost else None


def _comes_back(field: Json) -> bool:
    try:
        return bool(deserialize(serialize(field)) == field)
    except Exception:  # the value decides what is raised
        return False
