"""A crew that does what its topic says, however bad; the input `log` is where it leaves its process id."""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crewai import Agent, Crew, Task
from scribe import LOG, Scribe, write

MEGABYTES = 100


class Unruly(Scribe):
    def call(self, messages: Any, *args: Any, from_task: Any = None, **kwargs: Any) -> str:
        text = str(messages)
        found = LOG.search(text)
        assert found
        if from_task.name == "trouble":
            topic = text.split("Do: ")[1].split(" .")[0]
            write(found.group(1), {"pid": os.getpid(), "topic": topic})
            return topic if topic in FORKS else DEEDS[topic](Path(found.group(1)))
        return super().call(messages, *args, from_task=from_task, **kwargs)


def well(log: Path) -> str:
    atexit.register(lambda: write(str(log), {"exit": "in order"}))
    print(f"well \N{HOT BEVERAGE}, with {os.environ.get('OF_A_MODEL_API_KEY')}")  # noqa: T201
    return f"done well, knowing {[name for name in os.environ if name.startswith('CREW_SERVICE_')]}"


def spy(log: Path) -> str:
    """Look for variables and arguments of the service in the processes above this one."""
    found, pid = "", os.getpid()
    while pid > 1:
        for name in ("environ", "cmdline"):
            found += Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        if "crew_service\0serve" in found:
            break
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return f"{pid} tells {sorted(word for word in found.split(chr(0)) if 'CREW_SERVICE_' in word or 'a-token' in word)}"


def fail(log: Path) -> str:
    raise ValueError("bad input")


def use_all_files(log: Path) -> str:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), most))
    return str([log.open() for _ in range(100)])


def fail_with_the_key(log: Path) -> str:
    key = "\0".join(os.environ["OF_A_MODEL_API_KEY"])
    raise ValueError(json.dumps({"error": f"no such key: {key}"}))


def stop_at_the_end(log: Path) -> str:
    atexit.register(os.kill, os.getpid(), signal.SIGSTOP)
    return "done"


def leave(log: Path) -> str:
    os._exit(7)


def leave_politely(log: Path) -> str:
    sys.exit("good bye")


def die(log: Path) -> str:
    print("about to die")  # noqa: T201
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def hang(log: Path) -> str:
    child = subprocess.Popen(["sleep", "3600"])
    write(str(log), {"pid": child.pid, "topic": "a child of hang"})
    while True:
        pass


def flood(log: Path) -> str:
    for _ in range(MEGABYTES * 16):
        os.write(1, (b"x" * 1023 + b"\n") * 64)
    print("the last drop")  # noqa: T201
    return "dry again"


def ask_the_terminal(log: Path) -> str:
    return input()


def kill_the_parent(log: Path) -> str:
    os.kill(os.getppid(), signal.SIGKILL)
    return "alone"


def wait(log: Path) -> str:
    print("waiting")  # noqa: T201
    while not log.with_suffix(".go").exists():
        time.sleep(0.05)
    return "waited"


def close_descriptors(log: Path) -> str:
    os.closerange(3, 4096)
    return "closed"


def close_all_descriptors(log: Path) -> str:
    os.closerange(0, 4096)
    return "closed"


def replace_descriptors(log: Path) -> str:
    """Close all, and open others under the same numbers."""
    before = max(int(name) for name in os.listdir("/proc/self/fd"))
    os.closerange(3, 4096)
    for _ in range(before):
        os.pipe()
    return "replaced"


def close_descriptors_and_wait(log: Path) -> str:
    os.closerange(3, 4096)
    time.sleep(3600)
    return "waited"


HIDDEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.close(1)
        while True:
            pass
"""


def hide(log: Path) -> None:
    """Start a busy process in a session of its own, whose parent is gone."""
    started = subprocess.run([sys.executable, "-c", HIDDEN], stdout=subprocess.PIPE, text=True, check=True)
    write(str(log), {"pid": int(started.stdout), "topic": "a hidden process"})


def leave_all_behind(log: Path) -> str:
    hide(log)
    child = subprocess.Popen(["sleep", "3600"])
    write(str(log), {"pid": child.pid, "topic": "a child"})

    def late() -> None:
        time.sleep(1.5)
        write(str(log), {"thread": "in time"})

    threading.Thread(target=late).start()
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return "left"


def hide_and_hang(log: Path) -> str:
    hide(log)
    return hang(log)


def hide_and_die(log: Path) -> str:
    hide(log)
    return die(log)


class Mute:
    """In the place of a stream; it cannot be flushed."""

    def write(self, text: str) -> int:
        return len(text)


class Rude(Mute):
    def flush(self) -> None:
        sys.exit("not now")


def replace_streams(log: Path) -> str:
    print("said before", end="")  # noqa: T201
    sys.stdout = sys.stderr = Mute()  # type: ignore[assignment]
    return "replaced"


def drop_streams(log: Path) -> str:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return "dropped"


def rude_streams(log: Path) -> str:
    sys.stdout = sys.stderr = Rude()  # type: ignore[assignment]
    return "rude"


def fail_without_streams(log: Path) -> str:
    sys.stdout = sys.stderr = Mute()  # type: ignore[assignment]
    raise ValueError("bad input")


def fork_and_exit() -> None:
    """Leave a copy of the process in the middle of the task, as many do."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)


def fork_and_fail() -> None:
    child = os.fork()
    if child == 0:
        raise ValueError("only in the copy")
    os.waitpid(child, 0)


def fork_and_go_on() -> None:
    """Forget to end the copy, which then does what the crew does."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)


FORKS = {deed.__name__: deed for deed in (fork_and_exit, fork_and_fail, fork_and_go_on)}


def guard(output):  # type: ignore[no-untyped-def]
    """Fork in the thread that runs the crew, and not in one of a pool, where an exit ends nothing."""
    if output.raw in FORKS:
        FORKS[output.raw]()
        return True, "forked"
    return True, output.raw


def fork_at_exit(log: Path) -> str:
    def leave() -> None:
        if os.fork() == 0:
            sys.exit(0)

    threading.Thread(target=lambda: (time.sleep(0.3), leave())).start()
    atexit.register(leave)
    return "forked"


DEEDS: dict[str, Callable[[Path], str]] = {
    deed.__name__: deed
    for deed in (
        *(
            well,
            spy,
            fail,
            use_all_files,
            leave,
            leave_politely,
            die,
            hang,
            flood,
            ask_the_terminal,
            kill_the_parent,
            wait,
        ),
        *(leave_all_behind, hide_and_hang, hide_and_die, stop_at_the_end),
        *(close_descriptors, close_all_descriptors, replace_descriptors, close_descriptors_and_wait),
        *(replace_streams, drop_streams, rude_streams, fail_without_streams),
        *(fork_at_exit, fail_with_the_key),
    )
}


def unruly(*, is_reviewed: bool = False) -> Crew:
    of = Agent(role="Hooligan", goal="g", backstory="b", llm=Unruly(model="unruly"), max_retry_limit=0)
    tasks = [
        Task(name=name, description="Do: {topic} . Log: {log} .", expected_output="text", agent=of, **more)
        for name, more in (("start", {}), ("trouble", {"human_input": is_reviewed, "guardrail": guard}))
    ]
    return Crew(agents=[of], tasks=tasks)


def reviewed() -> Crew:
    return unruly(is_reviewed=True)
