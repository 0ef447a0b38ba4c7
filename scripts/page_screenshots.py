"""Takes screenshots of the crew service's page: the list, a revised draft, and the usage.

python -m scripts.page_screenshots [folder]      needs Chromium and the [dev] extra
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import requests
from playwright.sync_api import Page

from crew_service.budgets import Budget
from crew_service.local import LocalService, running_service
from crew_service.prices import Price, Prices
from scripts.browser import chromium
from scripts.demo_stack import ROOT

DRAFT = "## How to make {topic}\n\nTake *fresh* water and no more leaves than **a spoon for each cup**.\n"
TABLE = "\n| kind | water | minutes |\n|---|---|---|\n| green | 75 °C | 2 |\n| black | 100 °C | 4 |\n"
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "agent": "Researcher", "output": "Notes on {topic}"},
        {
            "id": "draft_task",
            "agent": "Writer",
            "human_input": "review",
            "output": DRAFT + TABLE,
            "revised": DRAFT.replace("no more", "slightly fewer") + TABLE + "\nKeep the lid on.\n",
        },
        {"id": "publish_task", "agent": "Editor", "output": "Published: how to make {topic}."},
    ],
}


SPENDING = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "agent": "Researcher", "tokens": 12400, "model": "gpt-4o-mini", "output": "Notes"},
        {"id": "draft_task", "agent": "Writer", "tokens": 3100, "model": "gpt-4o", "output": DRAFT},
    ],
}
PRICES = Prices({"gpt-4o": Price(2.5, 1.25, 10.0), "gpt-4o-mini": Price(0.15, 0.075, 0.6)})


def main(folder: Path) -> None:
    with running_service(scenario=CREW, title="Field guide") as service, chromium() as browser:
        revised = stories(service)
        desktop = browser.new_page(viewport={"width": 1100, "height": 900})
        picture(desktop, service, "", folder / "service-page.png")
        picture(desktop, service, f"view?id={revised}", folder / "service-draft.png", opened=True)
    budgets = tuple(map(Budget.read, ("*=2USD/day", "organization=40000tokens/hour", "alice=0.5USD/month")))
    options: dict[str, Any] = {"budgets": budgets, "prices": PRICES, "user_tokens": [("alice", "alices-token")]}
    with running_service(scenario=SPENDING, title="Field guide", **options) as service, chromium() as browser:
        for token in (service.token, "alices-token", service.token):
            spender = replace(service, token=token)
            wait_for(spender, start(spender, "coffee", review=False), "completed")
        small = browser.new_page(viewport={"width": 1100, "height": 700})
        picture(small, service, "budgets?by=owner,model", folder / "service-usage.png")


def stories(service: LocalService) -> str:
    """Kick off some executions; return the id of the one whose draft was revised."""
    for topic, review in (("coffee", False), ("cocoa", False), ("tea", True)):
        kickoff_id = start(service, topic, review)
        wait_for(service, kickoff_id, "pending" if review else "completed")
    body = {"execution_id": kickoff_id, "task_id": "draft_task", "human_feedback": "Fewer leaves.", "is_approve": False}
    call(service, "POST", "/resume", body)
    wait_for(service, kickoff_id, "pending")
    return kickoff_id


def start(service: LocalService, topic: str, review: bool) -> str:
    inputs = {"topic": topic, "review": review}
    run = {
        "dag_id": "field_guide",
        "run_id": "scheduled__2026-11-20T06:00:00+00:00",
        "base_url": "http://localhost:8080",
    }
    meta = {"desk": "food", "airflow": run}
    return str(call(service, "POST", "/kickoff", {"inputs": inputs, "meta": meta})["kickoff_id"])


def wait_for(service: LocalService, kickoff_id: str, word: str) -> None:
    deadline = time.monotonic() + 30
    while call(service, "GET", f"/status/{kickoff_id}")["status"] != word:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{kickoff_id} did not reach the status {word}")
        time.sleep(0.05)


def call(service: LocalService, method: str, path: str, body: object = None) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {service.token}"}
    answer = requests.request(method, service.url + path, json=body, headers=headers, timeout=30)
    answer.raise_for_status()
    return dict(answer.json())


def picture(page: Page, service: LocalService, path: str, file: Path, *, opened: bool = False) -> None:
    page.goto(f"{service.url}/{path}")
    if page.locator("input[name=token]").count():
        page.fill("input[name=token]", service.token)
        page.click("button.main")
        page.goto(f"{service.url}/{path}")
    if opened:
        page.locator("details[id^=changes] summary").click()
    page.screenshot(path=file, full_page=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
