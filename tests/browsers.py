"""A browser for tests, which are skipped where none is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from scripts.browser import NoBrowser, chromium
from scripts.stack.waiting import PATIENCE

expect.set_options(timeout=PATIENCE * 1000)


@contextmanager
def browser_or_skip() -> Iterator[Browser]:
    try:
        with chromium() as browser:
            yield browser
    except NoBrowser as missing:
        pytest.skip(str(missing))


def new_page(browser: Browser, **options: Any) -> Page:
    """Open a page that waits as patiently as all tests do."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE * 1000)
    return page
