"""Status requests that arrive together share a read of a database server, and get what each alone would get."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from crew_client import Serve
from databases import put
from sqlalchemy import Text, cast, event, func, select
from sqlalchemy.engine import Engine

from crew_service.engine.executions import Executions
from crew_service.engine.principals import Principal
from crew_service.http import shared_reads
from crew_service.http.dialects import DIALECTS
from crew_service.http.shared_reads import MOST_KEYS, READS, SharedReads
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database
from crew_service.storage.engines import SMALL
from crew_service.storage.states import State
from crew_service.storage.tables import executions

BUSY = [f"busy-{number}" for number in range(READS)]


class Reader:
    """Answers the reads of `BUSY` only once it may, and counts what was read together."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.began, self.ended = threading.Semaphore(0), threading.Semaphore(0)
        self.read: list[list[str]] = []

    def __call__(self, keys: list[str]) -> dict[str, str]:
        self.read.append(keys)
        self.began.release()
        if keys[0] in BUSY:
            assert self.may_answer.wait(10)
            self.ended.release()
        if "broken" in keys:
            raise OSError("the database is gone")
        return {key: f"row of {key}" for key in keys if key != "unknown"}


async def all_busy(reads: SharedReads[str], database: Reader) -> list[asyncio.Task]:
    """Begin as many reads as there may be at once; return their requests."""
    busy = []
    for each in BUSY:
        busy.append(asyncio.create_task(reads.get(each)))
        assert await asyncio.to_thread(database.began.acquire, timeout=10)
    return busy


def while_busy(database: Reader, then: Callable[[SharedReads[str]], list[asyncio.Task]]) -> list[object]:
    """Return what requests get that arrive while all reads are busy."""

    async def run() -> list[object]:
        reads = SharedReads(database)
        busy = await all_busy(reads, database)
        tasks = then(reads)
        await asyncio.sleep(0)  # each has asked
        assert len(database.read) == READS
        database.may_answer.set()
        assert await asyncio.gather(*busy) == [f"row of {each}" for each in BUSY]
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    return asyncio.run(run())


def test_requests_arriving_while_reads_are_busy_share_the_next_read() -> None:
    database = Reader()
    keys = ["a", "unknown", "b", "a"]
    got = while_busy(database, lambda reads: [asyncio.create_task(reads.get(each)) for each in keys])
    assert got == ["row of a", None, "row of b", "row of a"]
    assert database.read[READS:] == [["a", "unknown", "b"]]


def test_a_read_has_a_limited_number_of_keys() -> None:
    database = Reader()
    keys = [str(number) for number in range(MOST_KEYS + 1)]
    got = while_busy(database, lambda reads: [asyncio.create_task(reads.get(each)) for each in keys])
    assert got == [f"row of {each}" for each in keys]
    assert sorted(map(len, database.read[READS:])) == [1, MOST_KEYS]


def test_a_failed_read_fails_only_the_requests_sharing_it() -> None:
    database = Reader()

    def ask(reads: SharedReads[str]) -> list[asyncio.Task]:
        async def once_more() -> str | None:
            with pytest.raises(OSError, match="the database is gone"):
                await reads.get("a")
            return await reads.get("a")

        return [asyncio.create_task(reads.get("broken")), asyncio.create_task(once_more())]

    failed, again = while_busy(database, ask)
    assert isinstance(failed, OSError)
    assert again == "row of a"


def test_cancelling_a_request_leaves_others_for_its_key_unaffected() -> None:
    database = Reader()

    def ask(reads: SharedReads[str]) -> list[asyncio.Task]:
        gone, stays = asyncio.create_task(reads.get("a")), asyncio.create_task(reads.get("a"))
        asyncio.get_running_loop().call_soon(gone.cancel)
        return [gone, stays]

    gone, stays = while_busy(database, ask)
    assert isinstance(gone, asyncio.CancelledError)
    assert stays == "row of a"


def test_a_failed_read_logs_nothing_after_its_requests_were_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    database = Reader()

    async def run() -> None:
        reads = SharedReads(database)
        requests = [asyncio.create_task(reads.get(each)) for each in (BUSY[0], "broken")]
        assert await asyncio.to_thread(database.began.acquire, timeout=10)
        for each in requests:
            each.cancel()
        await asyncio.wait(requests)
        database.may_answer.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=10)

    asyncio.run(run())
    gc.collect()
    assert database.read == [[BUSY[0], "broken"]]
    assert caplog.records == []


@pytest.mark.parametrize("iterations", range(8))
def test_a_request_that_arrives_as_all_reads_end_is_read(iterations: int) -> None:
    database = Reader()

    async def run() -> str | None:
        reads, loop = SharedReads(database), asyncio.get_running_loop()
        busy = await all_busy(reads, database)
        arrived = loop.create_future()

        def end_all_at_once() -> None:
            database.may_answer.set()
            assert database.ended.acquire(timeout=10)
            assert database.ended.acquire(timeout=10)
            arrive(iterations)

        def arrive(later: int) -> None:
            if later:
                loop.call_soon(arrive, later - 1)
            else:
                arrived.set_result(asyncio.create_task(reads.get("late")))

        loop.call_soon(end_all_at_once)
        await asyncio.gather(*busy)
        return await asyncio.wait_for(await arrived, 10)

    assert READS == 2
    assert asyncio.run(run()) == "row of late"


def test_a_hanging_read_fails_its_requests_but_not_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "PATIENCE", 0.2)
    database = Reader()

    async def run() -> tuple[list[object], str | None]:
        reads = SharedReads(database)
        hanging = await all_busy(reads, database)
        waiting = [asyncio.create_task(reads.get(str(number))) for number in range(MOST_KEYS + 1)]
        await asyncio.sleep(0.1)  # it then has less than its own patience
        waiting.append(asyncio.create_task(reads.get("joins")))
        failed = await asyncio.wait_for(asyncio.gather(*hanging, *waiting, return_exceptions=True), 10)
        database.may_answer.set()
        assert await asyncio.to_thread(database.ended.acquire, timeout=10)
        return failed, await asyncio.wait_for(reads.get("late"), 10)

    failed, late = asyncio.run(run())
    assert {type(each) for each in failed} == {DatabaseUnavailable}
    assert late == "row of late"
    assert database.read[READS:] == [["late"]], "what nobody waits for any more was read"


@pytest.mark.parametrize("ends", [asyncio.Task.cancel, None], ids=["cancelled", "out of patience"])
def test_a_read_ended_before_it_begins_fails_no_later_request(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[asyncio.Task], object] | None
) -> None:
    database = Reader()

    async def run() -> str | None:
        reads = SharedReads(database)
        hanging = await all_busy(reads, database)
        if ends is None:
            monkeypatch.setattr(shared_reads, "PATIENCE", 0.05)
        before = asyncio.all_tasks()
        waiting = asyncio.create_task(reads.get("early"))
        await asyncio.sleep(0)
        [read] = asyncio.all_tasks() - before - {waiting}
        if ends:
            ends(read)
        await asyncio.wait({read, waiting}, timeout=10)
        monkeypatch.setattr(shared_reads, "PATIENCE", 10)
        late = asyncio.create_task(reads.get("late"))
        await asyncio.sleep(0)
        database.may_answer.set()
        await asyncio.gather(*hanging)
        return await asyncio.wait_for(late, 10)

    assert asyncio.run(run()) == "row of late"


def test_on_postgresql_concurrent_requests_each_get_their_own_status(serve: Serve, postgresql: str) -> None:
    crew = {"inputs": ["topic"], "tasks": [{"id": "only_task", "output": "{topic}"}]}
    client = serve(crew, db=postgresql, user_tokens=[("ann", "ann-token"), ("bob", "bob-token")])
    ann, bob = client.holding("ann-token"), client.holding("bob-token")
    topics = ["small", "x" * 200_000]  # the second is read on its own
    ids = {topic: ann.kickoff(topic=topic) for topic in topics}
    for each in ids.values():
        ann.until(each, "completed")
    unknown = str(uuid4())
    with ThreadPoolExecutor(16) as pool:
        small, large, missing, hidden = (
            [pool.submit(caller.get, f"/status/{each}") for _ in range(20)]
            for caller, each in ((ann, ids["small"]), (ann, ids[topics[1]]), (ann, unknown), (bob, ids["small"]))
        )
    assert {each.result().json()["result"]["output"] for each in small} == {"small"}
    assert {each.result().json()["result"]["output"] for each in large} == {topics[1]}
    assert {each.result().status_code for each in missing + hidden} == {404}
    together = ann.get("/statuses", params={"ids": ",".join([ids["small"], ids[topics[1]], unknown])}).json()[
        "statuses"
    ]
    assert together[ids["small"]]["body"] == small[0].result().json()
    assert together[ids[topics[1]]] is None
    assert together[unknown]["code"] == 404


def stored_in(database: Database, state: State = State.RUNNING, **values: object) -> str:
    execution_id = str(uuid4())
    put(database, execution_id, state=state, **values)
    return execution_id


@pytest.fixture
def stored(postgresql: str) -> Iterator[Database]:
    database = Database(postgresql)
    yield database
    database.close()


def test_on_postgresql_small_statuses_are_read_without_neighboring_large_outputs(stored: Database) -> None:
    """PostgreSQL soon plans a repeated statement without its parameters, and orders conditions by its own estimate."""
    small = [stored_in(stored) for _ in range(16)]
    for _ in range(30):
        stored_in(stored, State.COMPLETED, tasks=[], output=random.randbytes(300_000).hex())
    reads = Executions(stored, columns=DIALECTS["live"].columns)

    def took(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def read_all() -> None:
        with stored.reading() as connection:
            connection.execute(select(func.sum(func.length(cast(executions.c.output, Text))))).scalar_one()

    everything = min(took(read_all) for _ in range(5))
    for _ in range(15):
        assert set(reads.small_status_rows(small)) == set(small)
    assert min(took(lambda: reads.small_status_rows(small)) for _ in range(5)) < everything / 4


def test_on_postgresql_text_length_decides_whether_a_status_is_small(stored: Database) -> None:
    reads = Executions(stored, columns=("output", "error"))
    longest = SMALL - len('""')
    fits, compressed, too_long, empty = (
        stored_in(stored, output=each)
        for each in ("x" * longest, "x" * (longest + 1), random.randbytes(SMALL).hex(), None)
    )
    assert set(reads.small_status_rows([fits, compressed, too_long, empty])) == {fits, empty}


def test_on_postgresql_a_damaged_status_does_not_fail_other_statuses(stored: Database) -> None:
    reads = Executions(stored, columns=("output", "error"))
    sound, damaged = stored_in(stored), stored_in(stored)

    @event.listens_for(Engine, "do_execute")
    def fail(cursor: Any, statement: str, parameters: Any, context: Any) -> None:
        if statement.startswith("SELECT") and damaged in str(parameters):
            driver = context.dialect.dbapi
            raise driver.InternalError("missing chunk number 0 for toast value 16402 in pg_toast_16399")

    try:
        assert reads.small_status_rows([sound, damaged]) == {}  # so that each is read on its own
        assert set(reads.small_status_rows([sound])) == {sound}
        with pytest.raises(DatabaseUnavailable):
            reads.status_row(Principal(None), damaged)
    finally:
        event.remove(Engine, "do_execute", fail)
