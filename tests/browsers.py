"""A browser for tests, which are skipped where none is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser

from scripts.browser import NoBrowser, chromium


@contextmanager
def browser_or_skip() -> Iterator[Browser]:
    try:
        with chromium() as browser:
            yield browser
    except NoBrowser as missing:
        pytest.skip(str(missing))
