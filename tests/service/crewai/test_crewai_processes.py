"""Each segment has a process of its own, which ends when it should and takes nobody with it."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable

import pytest
from crew_client import eventually
from engine_stub import CREWS, EngineStub, alive

from crew_service.crewai.channel import Channel
from crew_service.crewai.process_pool import ProcessPool
from crew_service.crewai.world import world_of
from crew_service.engine import machine
from crew_service.engine.crew import Cancelled, Completed, CrewFailed, PendingReview
from scripts.stack.waiting import FACTOR

Player = Callable[..., EngineStub]


def unruly(play: Player, topic: str) -> EngineStub:
    crew = play("unruly", "unruly.py")
    crew.inputs["topic"] = topic
    return crew


def test_a_cancelled_segment_returns_at_once_and_ends_its_processes(play: Player) -> None:
    crew = unruly(play, "hang")
    threading.Thread(target=cancel_when_it_hangs, args=(crew,)).start()
    with pytest.raises(Cancelled, match="time is up"):
        crew.segment()
    eventually(lambda: not any(map(alive, pids(crew))), "the end of the cancelled crew")
    assert crew.finished() == ["start"]


def test_an_unwanted_report_ends_the_process(play: Player) -> None:
    crew = unruly(play, "wait")
    crew._keep = refuse  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        crew.segment()
    assert pids(crew) == []


def test_a_process_exits_by_itself_in_order_after_its_outcome(play: Player) -> None:
    crew = unruly(play, "well")
    crew.segment()
    eventually(lambda: crew.calls(of="exit") == ["in order"], "what was registered for the exit")
    eventually(lambda: not any(map(alive, pids(crew))), "the end of the process")


def test_crews_go_on_when_their_parent_process_is_killed(play: Player) -> None:
    assert unruly(play, "kill_the_parent").segment().output == "alone"
    assert unruly(play, "well").segment().output.startswith("done well")


def test_a_repeatedly_killed_parent_process_counts_as_machine_trouble() -> None:
    pool, over = ProcessPool(world_of(str(CREWS / "unruly.py:unruly"))), threading.Event()
    with pool.worker():
        pass

    def kill() -> None:
        while not over.wait(0.001):
            if pool._process and pool._process.poll() is None:
                pool._process.kill()

    assert pool._process
    pool._process.kill()
    pool._process.wait()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(OSError, match="was killed") as caught, pool.worker():
            pass
    finally:
        over.set()
        killer.join()
    assert machine.is_trouble(caught.value)
    with pool.worker() as worker:
        worker.end()


@pytest.mark.row("S16")
def test_a_finished_crews_threads_are_awaited_and_its_processes_ended(play: Player) -> None:
    crew = unruly(play, "leave_all_behind")
    assert isinstance(crew.segment(), Completed)
    assert crew.calls(of="thread") == ["in time"]
    eventually(lambda: not any(map(alive, pids(crew))), "the end of all that the crew left behind")
    assert len(pids(crew)) == 3


@pytest.mark.row("S16")
def test_hidden_processes_end_when_their_crew_is_killed_or_stopped(play: Player) -> None:
    crew = unruly(play, "hide_and_die")
    with pytest.raises(CrewFailed, match="killed by signal 9"):
        crew.segment()
    eventually(lambda: not any(map(alive, pids(crew))), "the end of what the killed crew hid")
    crew = unruly(play, "hide_and_hang")
    threading.Thread(target=cancel_when_it_hangs, args=(crew, len(pids(crew)) + 3)).start()
    with pytest.raises(Cancelled):
        crew.segment()
    eventually(lambda: not any(map(alive, pids(crew))), "the end of what the stopped crew hid")


@pytest.mark.long
@pytest.mark.row("S16")
def test_a_process_lingering_after_its_outcome_is_ended(play: Player) -> None:
    crew = unruly(play, "stop_at_the_end")
    assert isinstance(crew.segment(), Completed)
    eventually(lambda: not any(map(alive, pids(crew))), "the end of the process")


@pytest.mark.row("S38")
@pytest.mark.parametrize("lacks", ["files", "threads"])
def test_the_services_resource_shortage_is_not_the_crews_failure(
    play: Player, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    crew = unruly(play, "well")

    def refuse_file() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def refuse_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if lacks == "files":
        monkeypatch.setattr(socket, "socketpair", refuse_file)
    else:
        monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises((OSError, RuntimeError)) as raised:
            crew.segment()
        assert machine.is_trouble(raised.value)
    assert len(os.listdir("/proc/self/fd")) < before + 20
    monkeypatch.undo()
    assert isinstance(crew.segment(), Completed)


@pytest.mark.row("S38")
def test_a_crews_own_limits_are_its_own(play: Player) -> None:
    with pytest.raises(CrewFailed, match="Errno 24"):
        unruly(play, "use_all_files").segment()


CLOSE = ["close_descriptors", "close_all_descriptors", "replace_descriptors", "close_descriptors_and_wait"]


@pytest.mark.row("S28")
@pytest.mark.parametrize("deed", CLOSE)
def test_a_crew_that_closes_its_descriptors_ends_as_an_error(play: Player, deed: str) -> None:
    crew = unruly(play, deed)
    limit = threading.Timer(60 * FACTOR, crew.cancelled.set, ["it hangs"])
    limit.start()
    with pytest.raises(CrewFailed, match="closed the descriptor through which it reports to the service, before"):
        crew.segment()
    limit.cancel()
    assert crew.finished() == ["start"]
    eventually(lambda: not any(map(alive, pids(crew))), "the end of the process")


ENDS = ["replace_streams", "drop_streams", "rude_streams", "fork_and_exit", "fork_and_fail", "fork_and_go_on"]


@pytest.mark.long
@pytest.mark.row("S40")
@pytest.mark.parametrize("deed", [*ENDS, "fork_at_exit"])
def test_a_crews_answer_counts_despite_broken_streams_or_forked_copies(play: Player, deed: str) -> None:
    crew = unruly(play, deed)
    outcome = crew.segment()
    assert isinstance(outcome, Completed)
    assert outcome.output in ("replaced", "dropped", "rude", "forked")
    assert crew.finished() == ["start", "trouble"]
    eventually(lambda: not any(map(alive, pids(crew))), "the end of the process")


@pytest.mark.long
@pytest.mark.row("S40")
@pytest.mark.parametrize("deed", ["replace_streams", "fork_and_exit"])
def test_the_draft_of_such_a_crew_counts_too(play: Player, deed: str) -> None:
    crew = play("reviewed", "unruly.py")
    crew.inputs["topic"] = deed
    assert isinstance(crew.segment(), PendingReview)
    assert isinstance(crew.approve(), Completed)


@pytest.mark.row("S40")
def test_why_a_crew_failed_is_told_without_its_streams(play: Player) -> None:
    with pytest.raises(CrewFailed, match="ValueError: bad input"):
        unruly(play, "fail_without_streams").segment()


def test_crewai_itself_uses_no_network(play: Player) -> None:
    assert play("watched").segment().output == "tried []"


def test_half_a_message_of_a_killed_process_is_dropped() -> None:
    mine, theirs = socket.socketpair()
    theirs.sendall(b'{"type": "TaskD\n{"type": "died", "code": -9}\n[1]\n')
    theirs.close()
    channel = Channel(mine)
    assert channel.receive(1) == {"type": "died", "code": -9}
    assert channel.receive(1) is None


def cancel_when_it_hangs(crew: EngineStub, processes: int = 2) -> None:
    eventually(lambda: len(pids(crew)) == processes, "the process and its children")
    crew.cancelled.set("time is up")


def pids(crew: EngineStub) -> list[int]:
    return crew.calls(of="pid")


def refuse(progress: object) -> None:
    raise Cancelled("stopped")
