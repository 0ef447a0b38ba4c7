"""Starts the Chromium of this machine with Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


class NoBrowser(Exception):
    """No Chromium is installed."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser for the block."""
    if not EXECUTABLE:
        raise NoBrowser("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=ARGUMENTS)
        yield browser
        browser.close()
