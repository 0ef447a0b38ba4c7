"""The page in a real browser, in the windows of a desktop and a phone: it updates itself and loses nothing typed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from crew_client import GATED, SLOW, Client, Command, Serve
from playwright.sync_api import Browser, Page, expect

from tests.browsers import browser_or_skip, new_page

pytestmark = pytest.mark.slow
WINDOWS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browser_or_skip() as browser:
        yield browser


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    page = new_page(browser, viewport=WINDOWS[getattr(request, "param", "desktop")])
    yield page
    page.close()


in_each_window = pytest.mark.parametrize("page", sorted(WINDOWS), indirect=True)


def sign_in(page: Page, client: Client, path: str = "/") -> None:
    page.goto(client.url + path)
    page.fill("input[name=token]", client.token)
    page.get_by_role("button", name="Sign in").click()
    page.goto(client.url + path)


@in_each_window
def test_the_page_updates_itself_and_keeps_what_is_typed(serve: Serve, page: Page) -> None:
    client = serve(GATED)
    first = client.kickoff("first")
    client.until(first, "pending")
    sign_in(page, client)
    page.locator(f"#draft-{first}-draft_task-1 > summary").click()
    page.locator(f"#draft-{first}-draft_task-1 textarea").fill("Half a sentence")
    page.reload()
    expect(page.locator(f"#draft-{first}-draft_task-1 textarea")).to_have_value("Half a sentence")
    expect(page.locator(f"#draft-{first}-draft_task-1 textarea")).to_be_visible()
    second = client.kickoff("second")
    expect(page.locator(f"#draft-{second}-draft_task-1")).to_be_visible()
    expect(page.locator(f"#rows a[href$='{second}']")).to_be_visible()
    expect(page.locator(f"#draft-{first}-draft_task-1 textarea")).to_have_value("Half a sentence")
    client.resume(first)
    expect(page.locator(f"#draft-{first}-draft_task-1 .gone")).to_be_visible()
    expect(page.locator(f"#draft-{first}-draft_task-1 textarea")).to_have_value("Half a sentence")
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, "the page scrolls sideways"


def test_a_session_that_ends_loses_no_typed_feedback(serve: Serve, page: Page) -> None:
    client = serve(GATED)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    sign_in(page, client)
    page.locator("#drafts summary").click()
    page.locator("textarea").fill("Shorter, please")
    page.context.clear_cookies()
    expect(page.locator("#ended")).to_be_visible()
    page.get_by_role("button", name="Revise").click()
    expect(page.locator("textarea")).to_have_value("Shorter, please")
    page.fill("input[name=token]", client.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("textarea")).to_have_value("Shorter, please")
    page.get_by_role("button", name="Revise").click()
    expect(page.locator(".draft")).to_contain_text("Draft 2 on AI, after: Shorter, please")


def test_the_stop_button_stops_what_runs(serve: Serve, page: Page) -> None:
    client = serve(SLOW)
    kickoff_id = client.kickoff()
    sign_in(page, client, f"/view?id={kickoff_id}")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Execution stopped.")
    expect(page.locator("#state .state")).to_have_text("stopped")
    assert page.get_by_role("button", name="Stop").count() == 0
    assert client.status(kickoff_id)["error"] == "Stopped on request"


TABLE = f"| a | b |\n|---|---|\n| {'wide' * 40} | {'x' * 200} |\n"
WIDE = "[...document.querySelectorAll('.card')].filter((card) => card.scrollWidth > card.clientWidth).length"


@in_each_window
def test_long_words_stay_within_their_cards(serve: Serve, page: Page) -> None:
    names = ["a_long_name_of_a_task_" * 4, "and_one_that_fails_" * 4]
    client = serve({"tasks": [{"id": names[0], "output": TABLE}, {"id": names[1], "error": "no-luck" * 60}]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "error")
    sign_in(page, client, f"/view?id={kickoff_id}")
    page.locator("#task-0 summary").click()
    expect(page.locator("#task-0 pre")).to_be_visible()
    assert page.evaluate(WIDE) == 0


@in_each_window
def test_the_wide_table_of_a_draft_stays_within_its_card(serve: Serve, page: Page) -> None:
    client = serve({"tasks": [{"id": "draft_task", "output": TABLE, "human_input": True}]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    sign_in(page, client, f"/view?id={kickoff_id}")
    expect(page.locator(".draft table")).to_be_visible()
    assert page.evaluate(WIDE) == 0


def test_times_stay_in_the_readers_time_zone_after_updates(serve: Serve, browser: Browser) -> None:
    client = serve(GATED)
    with contextlib.closing(browser.new_context(timezone_id="Asia/Kolkata", locale="en-GB")) as context:
        page = context.new_page()
        client.kickoff()
        sign_in(page, client)
        for number in (1, 2):
            expect(page.locator("#rows tbody tr")).to_have_count(number)
            shown = page.locator("#rows time").first
            moment = datetime.fromisoformat(shown.get_attribute("datetime") or "")
            expect(shown).to_contain_text((moment + timedelta(hours=5, minutes=30)).strftime("%H:%M:%S"))
            expect(shown).to_have_attribute("title", re.compile("UTC$"))
            client.kickoff()


@in_each_window
def test_where_airflow_asks_the_buttons_are_a_click_away(serve: Serve, page: Page) -> None:
    client = serve(GATED)
    review = {"task_id": "review", "approvals": 2, "named_people": True}
    kickoff_id = client.kickoff(meta={"airflow": {"dag_id": "etl", "run_id": "r", "review": review}})
    client.until(kickoff_id, "pending")
    sign_in(page, client, f"/view?id={kickoff_id}")
    expect(page.get_by_text("Airflow asks for this decision")).to_be_visible()
    expect(page.get_by_role("button", name="Approve")).to_be_hidden()
    page.get_by_text("Decide here anyway").click()
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("the crew continues")).to_be_visible()
    client.until(kickoff_id, "completed")


def test_a_front_page_signs_in_at_each_crew(command: Callable[..., Command], page: Page) -> None:
    service = command("--crew", "one=demo", "--crew", "two=demo", "--token", "one-token-for-both-of-them")
    page.goto(service.url.partition("/crews")[0])
    page.fill("input[name=token]", "one-token-for-both-of-them")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="two").click()
    expect(page.get_by_role("heading", name="two")).to_be_visible()
    page.get_by_role("link", name="All crews").click()
    page.get_by_role("link", name="one").click()
    expect(page.get_by_role("heading", name="one")).to_be_visible()
    page.go_back()
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("input[name=token]")).to_be_visible()


def test_nothing_in_a_draft_loads_or_runs(serve: Serve, page: Page) -> None:
    nasty = (
        "![x](http://127.0.0.1:9/picture.png) <script>document.title = 'run'</script>"
        "<img src=http://127.0.0.1:9/x onerror=\"document.title='run'\"> [here](javascript:alert(1)) [a](http://b.example)"
    )
    client = serve({"tasks": [{"id": "draft_task", "human_input": True, "output": nasty}]})
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    sign_in(page, client, f"/view?id={kickoff_id}")
    expect(page.locator(".draft")).to_contain_text("onerror")
    assert page.title() == "Crew"
    assert page.locator(".draft img, .draft script, .draft a[href^=javascript]").count() == 0
    expect(page.locator(".draft")).to_contain_text("(http://b.example)")
    assert all(url.startswith(client.url) for url in asked)


@pytest.mark.long
@pytest.mark.row("S17")
def test_the_page_stays_small_whatever_the_outputs_are(serve: Serve) -> None:
    large = {"tasks": [{"id": f"t{n}", "output": "x" * 10_000_000} for n in range(3)]}
    client = serve(large)
    ids = [client.kickoff() for _ in range(3)]
    for kickoff_id in ids:
        client.until(kickoff_id, "completed")
    headers = {"Accept": "text/html"}
    assert len(client.get("/", headers=headers).content) < 100_000
    shown = client.get(f"/view?id={ids[0]}", headers=headers)
    assert shown.status_code == 200
    assert len(shown.content) < 500_000
    assert len(client.get(f"/text?id={ids[0]}&part=output").content) == 10_000_000
    assert len(client.get(f"/text?id={ids[0]}&part=1").content) == 10_000_000


def test_steps_appear_during_a_task_and_unfolded_ones_stay_open(serve: Serve, page: Page) -> None:
    said = "<img src=x onerror=document.title=1> \u202e" + "x" * 3_000
    steps = [{"tool": "look_up", "arguments": {"said": said}, "result": said}, {"tool": "send_mail"}]
    client = serve({"tasks": [{"id": "send", "agent": "Secretary", "seconds": 8, "steps": steps, "output": "sent"}]})
    kickoff_id = client.kickoff()
    sign_in(page, client, f"/view?id={kickoff_id}")
    page.locator("#step-1 > summary").click()
    expect(page.locator("#step-1 pre").first).to_contain_text("<img src=x onerror=document.title=1> \\u202ex")
    expect(page.locator("#step-2")).to_be_attached()
    expect(page.locator("#step-1")).to_have_attribute("open", "")
    expect(page.locator("#step-1 > summary")).to_be_focused()
    expect(page.locator("#task-0")).not_to_contain_text("in progress")
    expect(page.locator("#step-1 pre").last).to_be_visible()
    assert page.title() != "1"
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, "the page scrolls sideways"
