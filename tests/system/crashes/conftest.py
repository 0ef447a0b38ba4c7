"""A held crew in each dialect, shared by the tests here; each test has topics of its own.

The chaos runs draw their faults and take minutes: they run by `make chaos`, not among the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from held import Deployment, held_deployment

collect_ignore = [] if os.environ.get("CREW_CHAOS_SIZE") else ["test_chaos.py", "test_chaos_of_steps.py"]


@pytest.fixture(scope="session")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Deployment]]:
    folder = tmp_path_factory.mktemp("held")
    with held_deployment("spec", folder / "spec.db") as spec, held_deployment("live", folder / "live.db") as live:
        yield {"spec": spec, "live": live}
