"""The Crew tab in a real browser on a real Airflow: at work, reviewed, failed, mapped, refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect
from stand_in_crew import StandInCrew

from crew_service.engine.crew import Completed, Job, Report, TaskDone, TaskInfo, TaskOutput, TaskStarted
from crew_service.local import LocalService, running_service
from scripts.stack import AirflowStack, DagRun, free_port, wait_until
from tests.system.reviews.browser import signed_in

pytestmark = pytest.mark.since_airflow("3.1")
REVIEWED = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "write",
            "agent": "Writer",
            "human_input": True,
            "output": "# Draft {revision}\n\nOn {topic}.",
            "revised": "# Draft {revision}\n\nOn {topic}, after: {feedback}",
        }
    ],
}
# The colours of each text and of what is behind it, painted one over the other on a canvas as the page has them.
CONTRASTS = """() => {
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  const behindAll = document.body.appendChild(document.createElement("div"));
  behindAll.style.backgroundColor = "Canvas";
  const luminance = () => {
    const parts = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => each / 255);
    const [r, g, b] = parts.map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paint = (colour) => { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); };
  const texts = [...document.querySelectorAll("main *")].filter((each) => each.checkVisibility()
    && [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));
  return texts.map((each) => {
    paint(getComputedStyle(behindAll).backgroundColor);
    const around = [];
    for (let at = each; at; at = at.parentElement) around.unshift(getComputedStyle(at).backgroundColor);
    around.forEach(paint);
    const behind = luminance();
    paint(getComputedStyle(each).color);
    const [light, dark] = [luminance(), behind].sort().reverse();
    return [(light + 0.05) / (dark + 0.05), each.textContent.trim().slice(0, 60)];
  });
}"""
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
FEEDBACK = "Shorter, and name the <b>sources</b>. ![x](https://evil.example/pixel.png)"


def open_tab(page: Page, airflow: AirflowStack, run: DagRun, task_id: str) -> FrameLocator:
    """Go to the page of a task, and from there to its tab, as a person does."""
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/{task_id}")
    page.get_by_role("link", name="Crew", exact=True).click()
    tab = page.frame_locator("iframe[title=Crew]")
    expect(tab.locator("main")).to_be_visible()
    return tab


class ThreeTasks(StandInCrew):
    """A crew whose tasks end when the test says so."""

    required = ("topic",)
    outputs = {  # noqa: RUF012
        "research": ("Researcher", "Notes on tea."),
        "write": ("Writer", "A text on tea."),
        "publish": ("Editor", "Published: tea."),
    }
    tasks = tuple(TaskInfo(name, agent) for name, (agent, _) in outputs.items())

    def __init__(self) -> None:
        self.may_end = 0

    def run(self, job: Job, report: Report) -> Completed:
        for number, (name, (agent, text)) in enumerate(self.outputs.items(), 1):
            report(TaskStarted(name, agent))
            while self.may_end < number:
                job.cancelled.wait(0.1)
                job.cancelled.raise_if_set()
            report(TaskDone(TaskOutput(task_id=name, agent=agent, output=text, execution_time=0.1)))
        return Completed("Published: tea.")


@pytest.fixture
def three_tasks(airflow: AirflowStack) -> Iterator[tuple[ThreeTasks, LocalService]]:
    crew = ThreeTasks()
    with running_service(crew=crew) as service:
        airflow.api.add_connection("crew_three", conn_type="crew", host=service.url, password=service.token)
        yield crew, service


@pytest.fixture(scope="module")
def failed(airflow: AirflowStack) -> DagRun:
    """A run whose crew has failed."""
    run = airflow.api.trigger("tab_fails")
    run.wait_for("failed")
    return run


def test_the_running_tab_updates_without_reload_and_links_the_service(
    airflow: AirflowStack, three_tasks: tuple[ThreeTasks, LocalService]
) -> None:
    crew, service = three_tasks
    run = airflow.api.trigger("tab_three_tasks")
    run.wait_for_task("kickoff", {"deferred"})
    with signed_in(airflow) as page:
        tab = open_tab(page, airflow, run, "kickoff")
        loads: list[str] = []
        page.on("framenavigated", lambda frame: loads.append(frame.url))
        expect(state(tab)).to_have_text("Running")
        expect(tab.get_by_text("Researcher")).to_be_visible()
        tab.get_by_role("link", name="Everything in this run").focus()
        for done in (1, 2):
            crew.may_end = done
            expect(tab.get_by_role("progressbar")).to_have_attribute("aria-valuenow", str(done))
            expect(tab.get_by_role("status")).to_have_text(f"Running, {done} of 3 tasks done")
        expect(tab.get_by_role("link", name="Everything in this run")).to_be_focused()
        tab.get_by_text("Output").first.click()
        expect(tab.get_by_text("Notes on tea.")).to_be_visible()
        connection = {"conn_type": "crew", "password": service.token}
        airflow.api.add_connection("crew_three", host=f"http://127.0.0.1:{free_port()}", **connection)
        expect(tab.get_by_role("alert")).to_contain_text("The lookup failed.")
        expect(tab.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "2")
        airflow.api.add_connection("crew_three", host=service.url, **connection)
        expect(tab.get_by_role("alert")).to_have_count(0)
        crew.may_end = 3
        expect(state(tab)).to_have_text("Completed")
        expect(tab.get_by_text("Notes on tea.")).to_be_visible()  # what was opened stays open
        expect(tab.get_by_role("heading", name="Output")).to_be_visible()
        assert loads == []
        with page.context.expect_page() as opened:
            tab.get_by_role("link", name="Open in the service").click()
        there = opened.value
        there.get_by_label("Token").fill(service.token)
        there.get_by_role("button").click()
        there.get_by_role("link", name=run.run_id).click()
        # `wait_for_url` also waits for a load event, which may have been before it listens.
        its_page = f"{airflow.url}/dags/{run.dag_id}/runs/{quote(run.run_id, safe='')}"
        expect(there).to_have_url(re.compile(re.escape(its_page)))
        expect(there.get_by_text(run.run_id).first).to_be_visible()


def state(tab: FrameLocator | Page) -> Locator:
    """Return what shows the state of the execution."""
    return tab.locator("#state")


@pytest.fixture
def reviewed(airflow: AirflowStack) -> Iterator[None]:
    with running_service(scenario=REVIEWED) as service:
        airflow.api.add_connection("crew_read", conn_type="crew", host=service.url, password=service.token)
        yield


def question(run: DagRun, task_id: str) -> dict[str, Any]:
    """Wait until a task has asked and left its worker."""
    run.wait_for_task(task_id, {"awaiting_input", "deferred"})
    return wait_until(
        lambda: next((each for each in run.reviews() if each["task_instance"]["task_id"] == task_id), None),
        f"the question of {task_id}",
    )


@pytest.mark.long  # two people review twice, in a browser
@pytest.mark.usefixtures("reviewed")
def test_the_review_tab_shows_each_round_and_links_the_form(airflow: AirflowStack) -> None:
    run, edited = (airflow.api.trigger(name) for name in ("tab_approvals", "tab_edit"))
    run.answer(question(run, "article.round_1.review"), "revise", human_feedback=FEEDBACK)
    edited.answer(question(edited, "article.round_1.review"), "approve", human_feedback="", edited_draft="My own text.")
    asked = question(run, "article.round_2.review")
    airflow.wait_until_put_away(run, "article.round_2.review")
    run.answer(asked, "approve")
    airflow.wait_until_put_away(run, "article.round_2.review", 2)
    question(run, "article.round_2.review")
    with signed_in(airflow, "rita") as page:
        beyond: list[str] = []
        page.on("request", lambda request: beyond.append(request.url) if "evil.example" in request.url else None)
        tab = open_tab(page, airflow, run, "article.kickoff")
        expect(state(tab)).to_have_text("Waiting for a person")
        rounds = tab.get_by_role("article")
        expect(rounds).to_have_count(2)
        expect(rounds.first).to_contain_text("Revision")
        expect(rounds.first).to_contain_text(f"by {airflow.api.user}")
        expect(rounds.first).to_contain_text("<b>sources</b>")
        rounds.last.get_by_text("Changes since round 1").click()
        expect(rounds.last.locator("ins").first).to_contain_text("Draft 2")
        tab.get_by_role("link", name="Answer the question").click()
        page.get_by_role("button", name="approve").click()
        run.wait_for("success")
        tab = open_tab(page, airflow, run, "article.kickoff")
        expect(state(tab)).to_have_text("Completed")
        for name in (airflow.api.user, "rita"):
            expect(tab.get_by_text(f"Approved by {name}")).to_be_visible()
        assert beyond == []
        check_for_keyboard_and_screen_reader(page, airflow)
        edited.wait_for("success")
        tab = open_tab(page, airflow, edited, "article.kickoff")
        expect(tab.get_by_role("article")).to_contain_text("edited")
        expect(tab.get_by_text("My own text.").last).to_be_visible()


def check_for_keyboard_and_screen_reader(page: Page, airflow: AirflowStack) -> None:
    """Look at the open tab by itself: its outline, the order of the keys, a phone's width, the contrast."""
    page.goto(f"{airflow.url}/{page.locator('iframe[title=Crew]').get_attribute('src')}")
    expect(page.get_by_role("main")).to_have_count(1)
    expect(page.get_by_role("navigation", name="Links")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    parts = [page.get_by_role("region").nth(number) for number in range(page.get_by_role("region").count())]
    assert [part.get_by_role("heading", level=2).inner_text().lower() for part in parts] == [
        "tasks",
        "questions and decisions",
        "output",
        "inputs",
    ]
    for heading in ("Round 1", "Round 2"):
        expect(page.get_by_role("heading", name=heading, level=3, exact=True)).to_be_visible()
    assert '- progressbar "Tasks done"' in page.locator("main").aria_snapshot()
    desktop = page.viewport_size
    assert desktop
    page.set_viewport_size({"width": 390, "height": 844})
    seen = []
    for _ in range(5):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert seen == ["Open in the service", "Everything in this run", "Output", "Draft", "Changes since round 1"]
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert [each for each in page.evaluate(CONTRASTS) if each[0] < 4.5] == []
    page.set_viewport_size(desktop)


@pytest.mark.long  # one of its runs has twenty executions
def test_a_failed_crews_tab_says_why_whatever_its_address_names(airflow: AirflowStack, failed: DagRun) -> None:
    with signed_in(airflow) as page:
        tab = open_tab(page, airflow, failed, "kickoff")
        expect(state(tab)).to_have_text("Failed")
        expect(tab.get_by_role("region", name="What went wrong")).to_contain_text("no ink left")
        known = failed.xcom("kickoff", "crew_execution")["execution_id"]
        other = airflow.api.trigger("tab_mapped")
        other.wait_for("success")
        foreign = other.xcom("letter", "crew_execution", map_index=2)["execution_id"]
        page.goto(f"{airflow.url}/{address(failed)}?execution_id={foreign}&kickoff_id={foreign}&dag_id={other.dag_id}")
        expect(page.get_by_text(known)).to_be_visible()
        assert foreign not in page.content()

        page.goto(f"{airflow.url}/crew-view/dags/{other.dag_id}/runs/{other.run_id}")
        expect(page.get_by_role("listitem")).to_have_count(20)
        expect(page.get_by_role("listitem").nth(19)).to_contain_text("Customer 20")
        page.get_by_role("link", name="Customer 3 ").click()
        expect(state(page)).to_have_text("Completed")
        expect(page.get_by_text("A text on Customer 3.").last).to_be_visible()
        page.get_by_role("link", name="Everything in this run").click()
        expect(page.get_by_role("listitem")).to_have_count(20)


def address(run: DagRun) -> str:
    return f"crew-view/dags/{run.dag_id}/runs/{run.run_id}/tasks/kickoff/-1"


@pytest.mark.long  # without processes: test_view_access.py
@pytest.mark.row("A29")
# Without processes, test_view_access.py proves both.
@pytest.mark.parametrize("user", ["no-xcoms", "no-dag"])
def test_without_xcom_or_dag_access_every_address_is_refused(airflow: AirflowStack, failed: DagRun, user: str) -> None:
    known = failed.xcom("kickoff", "crew_execution")["execution_id"]
    with signed_in(airflow, user) as page:
        overview = address(failed).partition("/tasks/")[0]
        for path in (overview, address(failed), f"{address(failed)}/fragment"):
            answer = page.goto(f"{airflow.url}/{path}")
            assert answer
            assert answer.status == 403
            expect(page.get_by_role("heading", name="No access")).to_be_visible()
            assert known not in page.content()
        may_read = page.request.get(f"{airflow.url}/api/v2/dags/{failed.dag_id}").status
        assert may_read == (200 if user == "no-xcoms" else 403)
