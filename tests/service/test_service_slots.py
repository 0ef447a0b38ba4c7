"""Row S36: the pages, lists and searches of one owner cost the others nothing, and have a size."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crew_client import GATED, Client, Command, Serve
from fastapi import HTTPException
from test_service_connections import MIB, TOKEN, resident, watched
from test_service_page import Browser

from crew_service.http import html, markdown, slots
from crew_service.http.slots import SLOTS, THREADS_OF_ONE, MadeOnce, Slots
from scripts.stack.waiting import FACTOR, PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.row("S36")]
ECHO = {"inputs": ["topic"], "tasks": [{"id": "draft_task", "human_input": True, "output": "{topic}"}]}
TABLE = "|a" * 250 + "\n" + "|-" * 250 + "\n" + "|\n" * 250  # 1.5 KB, and 62,500 cells


def echoing(command: Callable[..., Command], folder: Path) -> tuple[Command, Client, Client]:
    """Start a service for the organization and ann; return it with a client for each."""
    (folder / "echo.json").write_text(json.dumps(ECHO))
    service = command("--crew", "echo.json", "--token", TOKEN, "--user-token", "ann=ann-token-0123456789")
    client = service.client(TOKEN)
    return service, client, client.holding("ann-token-0123456789")


def test_only_an_owner_using_all_slots_is_told_to_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PATIENCE", 0.1)
    go, at_work = threading.Event(), threading.Semaphore(THREADS_OF_ONE)

    def work() -> str:
        assert at_work.acquire(blocking=False), "more threads than an owner has"
        assert go.wait(10)
        at_work.release()
        return "made"

    async def all_of_them() -> tuple[list[str | BaseException], str]:
        here = Slots()
        mine = [asyncio.ensure_future(here.run("ann", work)) for _ in range(SLOTS + 4)]
        others = await here.run("ben", lambda: "made")
        while sum(each.done() for each in mine) < 4:
            await asyncio.wait([each for each in mine if not each.done()], return_when=asyncio.FIRST_COMPLETED)
        go.set()
        made = await asyncio.gather(*mine, return_exceptions=True)
        assert await here.run("ann", lambda: "made") == "made"
        assert not here._owners
        return made, others

    made, others = asyncio.run(all_of_them())
    assert others == "made"
    refused = [each for each in made if isinstance(each, HTTPException)]
    assert made.count("made") == SLOTS
    assert [(each.status_code, "Retry-After" in each.headers) for each in refused] == [(429, True)] * 4


@pytest.mark.long
def test_sixty_large_polls_are_all_answered_without_delaying_other_requests(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    _, client, ann = echoing(command, tmp_path)
    ids = ",".join(ann.kickoff("x" * 12_000) for _ in range(200))

    def poll() -> int:
        mine = ann.holding(ann.token)
        return int(mine.get("/statuses", params={"ids": ids}).status_code)

    def kick_off() -> float:
        return float(client.post("/kickoff", {"inputs": {"topic": "AI"}}).elapsed.total_seconds())

    with ThreadPoolExecutor(60) as pool:
        polls = [pool.submit(poll) for _ in range(60)]
        took = []
        while not all(each.done() for each in polls):
            took.append(kick_off())
        assert {each.result() for each in polls} == {200}
    assert max(took) < FACTOR


@pytest.mark.parametrize(
    "text",
    [TABLE, "|a" * 700 + "\n" + "|-" * 700 + "\n" + "|\n" * 90, "[" * 20_000, "*a **b " * 5_000, "> " * 10_000 + "a"],
    ids=["a table", "a wide table", "brackets", "stars", "quotes"],
)
def test_markdown_that_costs_too_much_is_shown_as_text(text: str) -> None:
    assert len(markdown.render(text)) < 300_000


def test_ordinary_markdown_is_rendered() -> None:
    table = "|name|figure|\n|-|-|\n" + "|one|1|\n" * 100
    text = "# Title\n\n" + "A *word* and [a link](https://example.com). " * 100 + "\n\n" + table
    # A garbage collection of all that the tests have loaded costs as much CPU time as a text may; it comes once.
    assert 200 in [markdown.render(text).count("<td>") for _ in range(3)]


def test_forty_five_looks_at_one_costly_draft_hold_up_nobody(command: Callable[..., Command], tmp_path: Path) -> None:
    service, client, ann = echoing(command, tmp_path)
    kickoff_id = ann.kickoff(TABLE)
    ann.until(kickoff_id, "pending")
    before = resident(service.process.pid)
    with ThreadPoolExecutor(45) as pool, watched(client, "/livez") as took:
        looks = [pool.submit(ann.get, f"/view?id={kickoff_id}") for _ in range(45)]
        assert client.post("/kickoff", {"inputs": {"topic": "AI"}}).elapsed.total_seconds() < FACTOR
        answers = [look.result() for look in looks]
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert max(len(answer.content) for answer in answers) < MIB
    assert max(took) < FACTOR
    assert resident(service.process.pid) - before < 250 * MIB


@pytest.mark.long
def test_a_page_of_large_texts_stays_under_a_mebibyte(serve: Serve) -> None:
    large = "&'" * 40_000
    tasks = [{"id": f"task_{number}", "output": large} for number in range(30)]
    client = serve({"inputs": ["topic"], "tasks": [*tasks, {"id": "last", "output": large, "human_input": True}]})
    kickoff_id = client.kickoff(large)
    client.until(kickoff_id, "pending")
    answer = client.get(f"/view?id={kickoff_id}")
    assert answer.status_code == 200
    assert len(answer.content) < MIB
    assert "task_29" in answer.text


def cpu_seconds(process_id: int) -> float:
    """The CPU that a process has used."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_page_is_rendered_once_per_state_for_all_viewers(command: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "echo.json").write_text(json.dumps(ECHO))
    service = command("--crew", "echo.json", "--token", TOKEN)
    client = service.client(TOKEN)
    another, one = client.kickoff(TABLE), client.kickoff(TABLE)

    def cost_of(looks: int, kickoff_id: str) -> float:
        client.until(kickoff_id, "pending")
        before = cpu_seconds(service.process.pid)
        for _ in range(looks):
            assert client.get(f"/view?id={kickoff_id}").status_code == 200
        return cpu_seconds(service.process.pid) - before

    cost_of(1, another)  # which reads the templates too
    first = cost_of(1, one)
    assert first > markdown.SECONDS / 2, "it costs nothing to make"
    assert cost_of(20, one) < 10 * first


def test_shared_pages_are_current_and_contain_nothing_viewer_specific(serve: Serve) -> None:
    client = serve(GATED, user_tokens=[("ann", "ann-token-0123456789")])
    kickoff_id = client.holding("ann-token-0123456789").kickoff()
    client.until(kickoff_id, "pending")
    viewers = [Browser(client), Browser(client), Browser(client, "ann-token-0123456789")]

    def view(viewer: Browser, more: str = "") -> str:
        return viewer.session.get(f"{client.url}/view?id={kickoff_id}{more}", timeout=PATIENCE).text

    pages = [view(viewer, more) for viewer in viewers for more in ("&notice=revised", "")]
    keys = [set(re.findall('name="form_key" value="([^"]*)"', page)) for page in pages]
    assert [len(each) for each in keys] == [1] * 6
    assert [keys[0], keys[2], keys[4]] == [keys[1], keys[3], keys[5]]
    assert len(set.union(*keys)) == 3
    assert ["signed in as ann" in page for page in pages] == [False] * 4 + [True] * 2
    assert ["Sent back" in page for page in pages] == [True, False] * 3
    assert not any(html.BLANK in page for page in pages)
    assert len({re.search('nonce="([^"]*)"', page)[1] for page in pages}) == 6  # type: ignore[index]
    viewers[2].decide("approve")
    client.until(kickoff_id, "completed")
    assert [">completed<" in view(viewer) for viewer in viewers] == [True] * 3


def test_a_shared_page_is_made_once_and_failures_are_forgotten() -> None:
    made, go, pages = [], threading.Event(), MadeOnce()

    def make() -> bytes:
        made.append(threading.get_ident())
        assert go.wait(10)
        return b"page"

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(pages.get, "key", make) for _ in range(4)]
        go.set()
        assert [each.result() for each in asked] == [b"page"] * 4
    assert len(made) == 1
    with pytest.raises(ZeroDivisionError):
        pages.get("other", lambda: b"%d" % (1 // 0))
    assert pages.get("other", lambda: b"made") == b"made"


def test_the_pages_that_are_kept_have_a_size() -> None:
    pages = MadeOnce(10_000)
    for key in range(10):
        pages.get(key, lambda: b"x" * 4_000)
    assert [pages.get(key, lambda: b"again") for key in (9, 0)] == [b"x" * 4_000, b"again"]


def test_a_page_of_costly_texts_takes_under_200_milliseconds() -> None:
    room = html.Room(400_000, html.budget())
    began = time.thread_time()
    for _ in range(20):
        room.markdown("[" * 20_000)
        room.markdown("*a **b " * 5_000)
        room.compared("a\nb\n" * 60, "b\na\n" * 60)
    assert time.thread_time() - began < 0.2
    assert room.markdown("# Title") == "<pre># Title</pre>"
