"""What tests of the tasks share."""

from __future__ import annotations

import pytest
from warning_log import WarningLog


@pytest.fixture
def log() -> WarningLog:
    return WarningLog()
