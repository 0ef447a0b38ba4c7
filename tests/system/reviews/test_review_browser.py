"""A person at a browser: sees the waiting review, reads the draft, revises, reads the new one, approves."""

from __future__ import annotations

from playwright.sync_api import expect

from scripts.stack import AirflowStack
from tests.system.reviews.browser import open_review, signed_in

FEEDBACK = "Shorter, and name the <b>sources</b>."


def test_a_person_revises_and_approves_in_the_browser(airflow: AirflowStack) -> None:
    run = airflow.api.trigger("crew_review")
    run.wait_for_review()
    with signed_in(airflow) as page:
        beyond: list[str] = []
        page.on("request", lambda request: beyond.append(request.url) if "evil.example" in request.url else None)
        open_review(page, airflow, run, "Review write (round 1 of 3)")
        expect(page.get_by_text("Draft 1 on tea.", exact=True)).to_be_visible()
        page.locator("textarea").fill(FEEDBACK + " ![x](https://evil.example/pixel.png)")
        page.get_by_role("button", name="revise").click()

        run.wait_for_task("article.round_2.review", {"awaiting_input", "deferred"})
        run.wait_for_review()
        open_review(page, airflow, run, "Review write (round 2 of 3)")
        expect(page.get_by_text("Draft 2 on tea, after:").last).to_contain_text("<b>sources</b>")
        expect(page.get_by_text("Requested in round 1")).to_be_visible()
        expect(page.get_by_text("Draft 1 on tea.", exact=True)).to_have_count(0)
        assert beyond == []
        page.get_by_role("button", name="approve").click()
        run.wait_for("success")
    output = run.xcom("article.result")["output"]
    assert output.startswith(f"Draft 2 on tea, after: {FEEDBACK}")
    assert run.xcom("publish") == output
