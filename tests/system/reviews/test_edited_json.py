"""A person at a browser edits a draft that is JSON, in Airflow's own form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from scripts.stack import AirflowStack, CrewService, ProcessGroup, wait_until
from tests.system.reviews.browser import open_review, signed_in

SUBJECT = "Review draft_task (round 1 of 2)"


@pytest.fixture
def stack(airflow: AirflowStack, group: ProcessGroup, tmp_path: Path, draft: str) -> AirflowStack:
    task = {"id": "draft_task", "agent": "Writer", "human_input": True, "output": draft}
    (tmp_path / "json_editor.json").write_text(json.dumps({"inputs": ["topic"], "tasks": [task]}))
    crew = CrewService(str(tmp_path / "json_editor.json"), name=tmp_path.name, group=group).start()
    airflow.api.add_connection("crew_json_editor", **crew.connection)
    return airflow


def field(page: Page) -> Locator:
    return page.locator("#element_edited_draft")


@pytest.mark.long
@pytest.mark.parametrize(
    ("draft", "output"),
    [
        ('{"title": "Tea", "words": 10}', {"title": "Coffee", "words": 10}),
        ('{"title": "Tea", "moles": 6.02e23}', '{"title": "Coffee", "moles": 6.02e23}'),
    ],
    ids=["an object", "a number that Airflow cannot hand on"],
)
def test_a_person_empties_the_field_and_then_edits_the_draft(stack: AirflowStack, draft: str, output: Any) -> None:
    run = stack.api.trigger("review_edit_json")
    run.wait_for_task("crew.round_1.review", {"awaiting_input", "deferred"})
    with signed_in(stack) as page:
        open_review(page, stack, run, SUBJECT)
        shown = field(page).input_value()
        assert shown.startswith("```json\n{")
        assert json.loads(shown[8:-4]) == json.loads(draft)
        field(page).fill("")
        stack.wait_until_put_away(run, "crew.round_1.review")
        page.get_by_role("button", name="approve").click()
        wait_until(lambda: any("the edited draft is empty" in each["body"] for each in run.reviews()), "the notice")
        run.wait_for_task("crew.round_1.review", {"awaiting_input", "deferred"})

        open_review(page, stack, run, SUBJECT)
        expect(page.get_by_text("was not accepted because the edited draft is empty")).to_be_visible()
        assert field(page).input_value() == shown
        field(page).fill(shown.replace("Tea", "Coffee"))
        stack.wait_until_put_away(run, "crew.round_1.review", 2)
        page.get_by_role("button", name="approve").click()
        run.wait_for("success")
    result = run.xcom("crew.result")["output"]
    if isinstance(output, str):
        result, output = json.loads(result), json.loads(output)
    assert result == output
