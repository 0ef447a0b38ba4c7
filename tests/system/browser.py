"""A person's browser on Airflow's UI: Debian's Chromium, driven by Playwright, signed in as a user of the stack."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

from scripts.stack import AirflowStack

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
VIEWPORT = {"width": 1280, "height": 900}
TIMEOUT_MS = 20_000


@contextmanager
def signed_in(airflow: AirflowStack, user: str | None = None) -> Iterator[Page]:
    """Open a page on Airflow's UI, signed in; skip the test where no browser is installed."""
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport=VIEWPORT, locale="en-US", timezone_id="UTC")
        page.set_default_timeout(TIMEOUT_MS)
        sign_in(page, airflow, user or airflow.api.user)
        yield page
        browser.close()


def sign_in(page: Page, airflow: AirflowStack, user: str) -> None:
    page.goto(f"{airflow.url}/")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(airflow.passwords[user])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/auth/login" not in url)
