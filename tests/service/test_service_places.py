"""Row S36: the pages, lists and searches of one owner cost the others nothing, and have a size."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from crew_client import Command, Serve
from fastapi import HTTPException
from test_service_connections import MIB, TOKEN, resident, watched

from crew_service.http import markdown, places
from crew_service.http.places import PLACES, THREADS_OF_ONE, Places

pytestmark = [pytest.mark.slow, pytest.mark.row("S36")]
TABLE = "|a" * 250 + "\n" + "|-" * 250 + "\n" + "|\n" * 250  # 1.5 KB, and 62,500 cells


def test_s36_an_owner_with_all_places_is_told_to_come_back_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PATIENCE", 0.1)
    go, at_work = threading.Event(), threading.Semaphore(THREADS_OF_ONE)

    def work() -> str:
        assert at_work.acquire(blocking=False), "more threads than an owner has"
        assert go.wait(10)
        at_work.release()
        return "made"

    async def all_of_them() -> tuple[list[str | BaseException], str]:
        here = Places()
        mine = asyncio.gather(*(here.run("ann", work) for _ in range(PLACES + 4)), return_exceptions=True)
        others = await here.run("ben", lambda: "made")
        await asyncio.sleep(0.3)
        go.set()
        made = await mine
        assert await here.run("ann", lambda: "made") == "made"
        assert not here._owners
        return made, others

    made, others = asyncio.run(all_of_them())
    assert others == "made"
    refused = [each for each in made if isinstance(each, HTTPException)]
    assert made.count("made") == PLACES
    assert [(each.status_code, "Retry-After" in each.headers) for each in refused] == [(429, True)] * 4


@pytest.mark.parametrize(
    "text",
    [TABLE, "|a" * 700 + "\n" + "|-" * 700 + "\n" + "|\n" * 90, "[" * 20_000, "*a **b " * 5_000, "> " * 10_000 + "a"],
    ids=["a table", "a wide table", "brackets", "stars", "quotes"],
)
def test_s36_markdown_that_costs_too_much_is_shown_as_text(text: str) -> None:
    assert len(markdown.render(text)) < 300_000


def test_s36_ordinary_markdown_is_rendered() -> None:
    table = "|name|figure|\n|-|-|\n" + "|one|1|\n" * 100
    text = "# Title\n\n" + "A *word* and [a link](https://example.com). " * 100 + "\n\n" + table
    assert markdown.render(text).count("<td>") == 200


def test_s36_forty_five_looks_at_one_costly_draft_hold_up_nobody(command: Callable[..., Command]) -> None:
    service = command("--token", TOKEN, "--user-token", "ann=ann-token-0123456789")
    client = service.client(TOKEN)
    ann = client.holding("ann-token-0123456789")
    kickoff_id = ann.kickoff(TABLE)
    ann.until(kickoff_id, "pending")
    before = resident(service.process.pid)
    with ThreadPoolExecutor(45) as pool, watched(client, "/livez") as took:
        looks = [pool.submit(ann.get, f"/view?id={kickoff_id}") for _ in range(45)]
        assert client.post("/kickoff", {"inputs": {"topic": "AI"}}).elapsed.total_seconds() < 1
        answers = [look.result() for look in looks]
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert max(len(answer.content) for answer in answers) < MIB
    assert max(took) < 1
    assert resident(service.process.pid) - before < 250 * MIB


def test_s36_a_page_of_many_large_texts_is_at_most_a_mebibyte(serve: Serve) -> None:
    large = "&'" * 40_000
    tasks = [{"id": f"task_{number}", "output": large} for number in range(30)]
    client = serve({"inputs": ["topic"], "tasks": [*tasks, {"id": "last", "output": large, "human_input": True}]})
    kickoff_id = client.kickoff(large)
    client.until(kickoff_id, "pending")
    answer = client.get(f"/view?id={kickoff_id}")
    assert answer.status_code == 200
    assert len(answer.content) < MIB
    assert "task_29" in answer.text
