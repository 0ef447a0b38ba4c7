"""Takes the screenshots for the docs in a real Airflow: review forms, a log with an escalation, and the graph.

python -m scripts.screenshots [folder]      needs Chromium and the [dev] extra
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from airflow_crew_provider.compat.version import has_loops
from scripts.demo_stack import ROOT
from scripts.find_postgres import server_url
from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from tests.system.reviews.browser import signed_in

DRAFT = """## How to make {topic}

{lead}

| kind | water | minutes |
|---|---|---|
| green | 75 °C | 2 |
| black | 100 °C | 4 |

* Take fresh water, and **no more leaves** than a spoon for each cup.
* Keep the lid on.
"""
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research_task", "agent": "Researcher", "seconds": 0.1, "output": "Notes on {topic}."},
        {
            "id": "draft_task",
            "agent": "Writer",
            "seconds": 0.1,
            "human_input": True,
            "output": DRAFT.replace("{lead}", "Everybody knows how to make {topic}. Or so everybody thinks."),
            "revised": DRAFT.replace("{lead}", "Two numbers matter: how hot, and how long (*ISO 3103*)."),
        },
    ],
}
FEEDBACK = "Drop the opening line and name the source."
FORM = {"width": 1280, "height": 1400}
GRAPH = {"width": 1500, "height": 520}
LOG = {"width": 1280, "height": 520}


def second_round(run: DagRun, **fields: Any) -> dict[str, str]:
    """Ask for a revision, as a reviewer does, and wait for the new draft."""
    run.answer(run.wait_for_review(), "revise", human_feedback=FEEDBACK, **fields)
    run.wait_for_task("article.round_2.review", {"awaiting_input", "deferred"})
    return run.wait_for_review()["task_instance"]


def open_form(page: Page, airflow: AirflowStack, run: DagRun, task_id: str) -> None:
    page.set_viewport_size(FORM)
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/{task_id}/required_actions")


def picture_form(page: Page, airflow: AirflowStack, run: DagRun, task_id: str, file: Path) -> None:
    open_form(page, airflow, run, task_id)
    page.locator("textarea").fill("Good. One thing: say how much water.")
    page.screenshot(path=file)


def picture_difference(page: Page, airflow: AirflowStack, run: DagRun, task_id: str, file: Path) -> None:
    open_form(page, airflow, run, task_id)
    page.get_by_text("Changes since round 1").scroll_into_view_if_needed()
    page.screenshot(path=file)


def picture_edit(page: Page, airflow: AirflowStack, run: DagRun, task_id: str, file: Path) -> None:
    open_form(page, airflow, run, task_id)
    draft = page.locator("textarea").last
    draft.fill(draft.input_value().replace("a spoon for each cup", "two grams for each cup"))
    draft.scroll_into_view_if_needed()
    page.screenshot(path=file)


def picture_escalation(page: Page, airflow: AirflowStack, run: DagRun, task_id: str, file: Path) -> None:
    wait_until(lambda: "of the escalation" in run.log(task_id), "the escalation")
    page.set_viewport_size(LOG)
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/{task_id}")
    page.get_by_text("of the escalation").first.scroll_into_view_if_needed()
    page.screenshot(path=file)


def picture_graph(page: Page, airflow: AirflowStack, run: DagRun, file: Path) -> None:
    page.set_viewport_size(GRAPH)
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}")
    page.get_by_label("Show Graph").click()
    page.get_by_label("Expand all task groups").click()
    page.get_by_label("Collapse Details Panel").click()
    page.get_by_label("Fit View").click()
    page.mouse.move(GRAPH["width"] // 2, 5)
    page.wait_for_timeout(2000)  # for the graph, which slides into place
    page.screenshot(path=file)


def picture_loop(page: Page, airflow: AirflowStack, file: Path) -> None:
    """Take a screenshot of the graph during the second round in a loop; for Airflow 3.4."""
    run = airflow.api.trigger("loop_pictures")
    run.answer(run.wait_for_review(), "revise", human_feedback=FEEDBACK)
    wait_until(lambda: [each for each in run.reviews() if "(round 2" in each["subject"]], "the second round")
    picture_graph(page, airflow, run, file)


FEATURES = {"difference": picture_difference, "edit": picture_edit, "escalation": picture_escalation}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessGroup() as group:
        service = CrewService(CREW, group=group).start()
        airflow = AirflowStack(
            dags=[ROOT / "example_dags", ROOT / "scripts" / "picture_dags"],
            connections={"crew_default": service.connection},
            postgres=server_url(),  # on SQLite, a triggerer may wait half a minute for a lock and log an error
            group=group,
        ).start_all()
        run, edited = airflow.api.trigger("crew_review"), airflow.api.trigger("review_pictures")
        with signed_in(airflow) as page:
            task = second_round(edited)
            for name, picture in FEATURES.items():
                picture(page, airflow, edited, task["task_id"], folder / f"review-{name}.png")
            task = second_round(run)
            picture_form(page, airflow, run, task["task_id"], folder / "review-form.png")
            picture_graph(page, airflow, run, folder / "review-graph.png")
            if has_loops():
                picture_loop(page, airflow, folder / "review-loop.png")
    for file in sorted(folder.glob("review-*.png")):
        print(f"{file}  {file.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
