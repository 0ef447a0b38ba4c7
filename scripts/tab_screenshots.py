"""Takes screenshots in a real Airflow: the Crew tab (running, in review, completed, on a phone), a run, and two logs.

python -m scripts.tab_screenshots [folder]      needs Chromium and the [dev] extra
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Page

from scripts.demo_stack import ROOT
from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup
from tests.system.reviews.browser import signed_in

NOTES = "* Fresh water, just off the boil for black tea, 75 °C for green.\n* A spoon of leaves for each cup.\n"
DRAFT = """## How to make {topic}

{lead}

| kind | water | minutes |
|---|---|---|
| green | 75 °C | 2 |
| black | 100 °C | 4 |

Take fresh water, and **no more leaves** than a spoon for each cup.
"""
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research", "agent": "Researcher", "seconds": 2.0, "output": NOTES},
        {
            "id": "write",
            "agent": "Writer",
            "seconds": 25.0,
            "human_input": "review",
            "output": DRAFT.replace("{lead}", "Everybody knows how to make {topic}. Or so everybody thinks."),
            "revised": DRAFT.replace("{lead}", "Two numbers matter: how hot, and how long (*ISO 3103*)."),
        },
        {"id": "publish", "agent": "Editor", "seconds": 1.0, "output": "## Published\n\nHow to make {topic}."},
    ],
}
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LIMITED = {
    "inputs": ["topic"],
    "tasks": [{"id": "write", "agent": "Writer", "tokens": 1200, "output": "How to make {topic}."}],
}
LETTERS = ROOT / "example_dags" / "crews" / "customer_letters.json"
TURNED_ON = {"AIRFLOW__CREW__TASK_TAB": "True", "AIRFLOW__CREW__RUN_TAB": "True"}


def open_tab(page: Page, airflow: AirflowStack, run: DagRun, task_id: str) -> None:
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/{task_id}/plugin/crew")


def wait_for(page: Page, text: str) -> None:
    page.frame_locator("iframe").get_by_text(text).first.wait_for()


def pictures(page: Page, airflow: AirflowStack, run: DagRun, folder: Path) -> None:
    page.set_viewport_size(DESKTOP)
    open_tab(page, airflow, run, "article.kickoff")
    wait_for(page, "1 of 3")
    page.screenshot(path=folder / "tab-running.png")
    run.answer(run.wait_for_review(), "revise", human_feedback="Drop the opening line and name the source.")
    run.wait_for_task("article.round_2.review", {"awaiting_input", "deferred"})
    run.wait_for_review()
    open_tab(page, airflow, run, "article.round_2.review")
    wait_for(page, "Revision")
    page.frame_locator("iframe").get_by_text("Changes since round 1").click()
    page.frame_locator("iframe").get_by_text("Questions and decisions").scroll_into_view_if_needed()
    page.screenshot(path=folder / "tab-review.png")
    address = page.locator("iframe").first.get_attribute("src") or ""
    run.answer(run.wait_for_review(), "approve")
    run.wait_for("success")
    open_tab(page, airflow, run, "article.round_2.wait")
    page.frame_locator("iframe").get_by_role("heading", name="Published").wait_for()
    page.screenshot(path=folder / "tab-completed.png")
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/article.round_2.wait")
    page.get_by_text("Execution", exact=False).last.wait_for()
    page.keyboard.press("w")  # wraps the lines
    page.set_viewport_size({**DESKTOP, "height": 640})
    page.screenshot(path=folder / "task-log.png")
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    page.goto(f"{airflow.url}/{address}")
    page.get_by_role("heading", name="Published").wait_for()
    page.screenshot(path=folder / "tab-phone.png")


def picture_refusal(page: Page, airflow: AirflowStack, file: Path) -> None:
    """Take the log of a kickoff after the day's budget has been used up."""
    airflow.api.trigger("daily_article").wait_for("success")
    run = airflow.api.trigger("daily_article")
    run.wait_for("failed")
    page.set_viewport_size({**DESKTOP, "height": 640})
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/write")
    page.get_by_text("budget", exact=False).last.wait_for()  # its lines are wrapped since the other log
    page.screenshot(path=file)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessGroup() as group:
        service = CrewService(CREW, group=group).start()
        letters = CrewService(str(LETTERS), name="crew-service-letters", group=group).start()
        options = ["--budget", "*=1000tokens/day"]
        limited = CrewService(LIMITED, name="crew-service-limited", options=options, group=group).start()
        connections = {"crew_default": service, "crew_letters": letters, "crew_limited": limited}
        airflow = AirflowStack(
            dags=[ROOT / "example_dags", ROOT / "scripts" / "picture_dags"],
            connections={name: each.connection for name, each in connections.items()},
            env=TURNED_ON,
            group=group,
        ).start_all()
        airflow.api.json("POST", "pools", json={"name": "crews", "slots": 5, "include_deferred": True})
        run, mapped = airflow.api.trigger("crew_review"), airflow.api.trigger("crew_per_customer")
        with signed_in(airflow) as page:
            pictures(page, airflow, run, folder)
            page.set_viewport_size(DESKTOP)
            page.goto(f"{airflow.url}/dags/{mapped.dag_id}/runs/{mapped.run_id}/plugin/crews")
            page.frame_locator("iframe").locator(".runs").wait_for()
            page.screenshot(path=folder / "tab-run.png")
            picture_refusal(page, airflow, folder / "task-refused.png")
    for file in sorted(folder.glob("ta*-*.png")):
        print(f"{file}  {file.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
