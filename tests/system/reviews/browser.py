"""A person's browser on Airflow's UI: Debian's Chromium, driven by Playwright, signed in as a user of the stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect

from scripts.stack import AirflowStack, DagRun
from tests.browsers import browser_or_skip, new_page

VIEWPORT = {"width": 1280, "height": 900}


@contextmanager
def signed_in(airflow: AirflowStack, user: str | None = None) -> Iterator[Page]:
    """Open a page on Airflow's UI, signed in; skip the test where no browser is installed."""
    with browser_or_skip() as browser:
        page = new_page(browser, viewport=VIEWPORT, locale="en-US", timezone_id="UTC")
        sign_in(page, airflow, user or airflow.api.user)
        yield page


def sign_in(page: Page, airflow: AirflowStack, user: str) -> None:
    page.goto(f"{airflow.url}/")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(airflow.passwords[user])
    page.get_by_role("button", name="Sign in").click()
    expect(page).not_to_have_url(re.compile("/auth/login"))


def open_review(page: Page, airflow: AirflowStack, run: DagRun, subject: str) -> None:
    """Go from Airflow's home to the question, as a person does."""
    page.goto(f"{airflow.url}/")
    page.get_by_text("Required Actions").first.click(no_wait_after=True)
    page.get_by_role("link", name="View all required actions").click()
    row = page.get_by_role("row").filter(has_text=run.run_id).filter(has_text=subject)
    row.get_by_role("link", name=subject).click()
    expect(page.locator("textarea").first).to_be_visible()
