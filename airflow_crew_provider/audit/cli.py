"""`airflow-crew-reviews`: the decisions of people on a DAG as JSON lines. Credentials come from the environment."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence

from airflow_crew_provider.audit.airflow_api import AirflowApi, AuditError
from airflow_crew_provider.audit.decisions import decisions

ENVIRONMENT = """The environment names the credential, since arguments can be read by others on the same machine:
AIRFLOW_API_TOKEN, or AIRFLOW_API_USER and AIRFLOW_API_PASSWORD. AIRFLOW_API_URL may stand for --airflow-url."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the decisions; 0 if they could be read, 1 with one sentence if not."""
    given = _parser().parse_args(arguments)
    try:
        for decision in decisions(_api(given.airflow_url, os.environ), given.dag_id, given.run_id):
            sys.stdout.write(json.dumps(decision, ensure_ascii=False) + "\n")
    except AuditError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="airflow-crew-reviews", description=__doc__, epilog=ENVIRONMENT)
    parser.add_argument("dag_id", help="whose decisions")
    parser.add_argument("run_id", nargs="?", help="of this run only")
    parser.add_argument("--airflow-url", help="of Airflow's web server (default: AIRFLOW_API_URL)")
    return parser


def _api(url: str | None, environment: Mapping[str, str]) -> AirflowApi:
    url = url or environment.get("AIRFLOW_API_URL")
    if not url:
        raise AuditError("Say where Airflow is: --airflow-url, or AIRFLOW_API_URL")
    if token := environment.get("AIRFLOW_API_TOKEN"):
        return AirflowApi(url, token)
    user, password = environment.get("AIRFLOW_API_USER"), environment.get("AIRFLOW_API_PASSWORD")
    if not (user and password):
        raise AuditError("Set AIRFLOW_API_TOKEN, or AIRFLOW_API_USER and AIRFLOW_API_PASSWORD")
    return AirflowApi.logged_in(url, user, password)


if __name__ == "__main__":
    sys.exit(main())
