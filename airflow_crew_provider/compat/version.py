"""Features that only the version number of Airflow reveals. Tried on 2.11.2 and 3.3.2."""

from __future__ import annotations

import airflow


def has_inbox() -> bool:
    """Whether the API server mounts FastAPI applications of plugins, as Airflow does since 3.0."""
    return not airflow.__version__.startswith("2.")
