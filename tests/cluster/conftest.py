"""The cluster test starts everything itself and takes minutes: it runs where its size is set (`make cluster-test`)."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("CREW_CLUSTER_SIZE") else ["test_cluster.py"]
