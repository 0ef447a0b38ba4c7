"""A person's browser on Airflow's UI: Debian's Chromium, driven by Playwright, signed in as a user of the stack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page

from scripts.stack import AirflowStack
from tests.browsers import browser_or_skip

VIEWPORT = {"width": 1280, "height": 900}
TIMEOUT_MS = 20_000


@contextmanager
def signed_in(airflow: AirflowStack, user: str | None = None) -> Iterator[Page]:
    """Open a page on Airflow's UI, signed in; skip the test where no browser is installed."""
    with browser_or_skip() as browser:
        page = browser.new_page(viewport=VIEWPORT, locale="en-US", timezone_id="UTC")
        page.set_default_timeout(TIMEOUT_MS)
        sign_in(page, airflow, user or airflow.api.user)
        yield page


def sign_in(page: Page, airflow: AirflowStack, user: str) -> None:
    page.goto(f"{airflow.url}/")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(airflow.passwords[user])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/auth/login" not in url)
