"""The provider's description for Airflow: pure data, read without importing anything else."""

from __future__ import annotations

from typing import Any

_HIDDEN = ["login"]
_LABELS = {"host": "Base URL", "password": "Bearer token"}
_PLACEHOLDERS = {
    "host": "https://my-crew.example.com",
    "password": "the crew's detail page in the console, Status tab",
    "extra": '{"timeout": 30, "kickoff_timeout": 180, "idempotency_keys": false}',
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in Airflow's provider-info schema."""
    return {
        "package-name": "airflow-crew-provider",
        "name": "Crew",
        "description": "Run crews of AI agents: start, wait without a worker slot, review drafts, resume.",
        "integrations": [
            {"integration-name": "Crew", "external-doc-url": "https://docs.crewai.com/", "tags": ["service"]}
        ],
        "hooks": [{"integration-name": "Crew", "python-modules": ["airflow_crew_provider.hooks.crew"]}],
        "operators": [
            {
                "integration-name": "Crew",
                "python-modules": [
                    "airflow_crew_provider.operators.crew",
                    "airflow_crew_provider.operators.review",
                    "airflow_crew_provider.operators.run",
                    "airflow_crew_provider.operators.usage_approval",
                ],
            }
        ],
        "sensors": [{"integration-name": "Crew", "python-modules": ["airflow_crew_provider.sensors.crew"]}],
        "triggers": [{"integration-name": "Crew", "python-modules": ["airflow_crew_provider.triggers.crew"]}],
        "task-decorators": [{"class-name": "airflow_crew_provider.decorators.crew.crew_task", "name": "crew"}],
        "extra-links": ["airflow_crew_provider.links.crew.CrewExecutionLink"],
        "notifications": ["airflow_crew_provider.notifications.crew.CrewReviewNotifier"],
        "connection-types": [_connection_type()],
        "config": {"crew": {"description": "The pages that show crews in Airflow.", "options": _settings()}},
    }


def _settings() -> dict[str, Any]:
    """Return the ``[crew]`` settings; one without a default here has a default that depends on the Airflow version."""
    return {
        "task_tab": {
            "description": "Whether tasks have the Crew tab. Airflow 3.4 shows it only on this provider's tasks. "
            "Airflow 3.1 to 3.3 would show it on every task, so it is off there unless this is True.",
            "version_added": "0.2.0",
            "type": "boolean",
            "example": "True",
            "default": None,
        },
        "run_tab": {
            "description": "Whether DAG runs have the Crews tab, which lists a run's executions.",
            "version_added": "0.2.0",
            "type": "boolean",
            "example": "True",
            "default": "False",
        },
    }


def legacy_field_behaviour() -> dict[str, Any]:
    """Return the connection form in the format of a hook's ``get_ui_field_behaviour``."""
    return {"hidden_fields": _HIDDEN, "relabeling": _LABELS, "placeholders": _PLACEHOLDERS}


def connection_fields() -> dict[str, Any]:
    """Return the Extra fields of the connection form."""
    return {
        "timeout": _field("Timeout (s)", "number", "For connecting, for reading, and for a whole poll", 30),
        "kickoff_timeout": _field("Kickoff timeout (s)", "number", "Kickoff and resume: allow for a cold start", 180),
        "verify": _field("Verify TLS", "string", "true, false, or the path of a CA file", "true"),
        "proxy": _field("Proxy", "string", "Proxy URL; defaults to the environment's proxy"),
        "idempotency_keys": _field(
            "Honours idempotency keys", "boolean", "The service honours the Idempotency-Key header", False
        ),
        "console_url": _field("Console URL", "string", "For links; {kickoff_id} and {execution_id} are filled in"),
        "browser_url": _field("Browser URL", "string", "Base URL for links in browsers, if it differs from Host"),
        "inbox_url": _field("Inbox URL", "string", "URL at which the service reaches this Airflow's inbox"),
        "kind": _field("Kind", "string", "crew or flow; leave it empty if unknown"),
        "flow_webhook_secret": _secret("Flow webhook secret", "Secret the console signs Flow webhooks with"),
        "crew_webhook_secret": _secret("Crew webhook secret", "Secret that authenticates this crew's webhooks"),
        "callback_hosts": _field(
            "Callback hosts", "string", "Further hosts allowed to receive Flow answers, comma-separated"
        ),
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "crew",
        "hook-class-name": "airflow_crew_provider.hooks.crew.CrewHook",
        "hook-name": "Crew",
        "ui-field-behaviour": {
            "hidden-fields": _HIDDEN,
            "relabeling": _LABELS,
            "placeholders": _PLACEHOLDERS,
        },
        "conn-fields": connection_fields(),
    }


def _secret(label: str, description: str) -> dict[str, Any]:
    field = _field(label, "string", description)
    field["schema"]["format"] = "password"
    return field


def _field(label: str, kind: str, description: str, default: Any = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": [kind, "null"]}
    if default is not None:
        schema["default"] = default
    return {"label": label, "description": description, "schema": schema}
