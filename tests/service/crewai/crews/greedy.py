"""A crew whose tool uses what its input says: memory, processes, temporary files. It notes its processes in `NOTES`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool

NOTES = Path(os.environ.get("NOTES", "."))
MIB = 1024 * 1024
HOLD = "held = b'x' * (700 * 2**20); import time; time.sleep(600)"
HIDDEN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {HOLD!r}], start_new_session=True)"
DOUBLING = """
import os, time
for _ in range(7):
    if os.fork() == 0:
        os.setsid()
time.sleep(600)
"""


def note(**more: Any) -> None:
    with (NOTES / "notes").open("a") as notes:
        notes.write(json.dumps({"pid": os.getpid(), "folder": os.environ["TMPDIR"], **more}) + "\n")


def wait() -> str:
    """Wait until the test says so."""
    while not (NOTES / "go").exists():
        time.sleep(0.05)
    return "waited"


def memory() -> str:
    held = b"x" * (700 * MIB)
    return wait() + str(len(held))


def memory_of_a_hidden_grandchild() -> str:
    subprocess.run([sys.executable, "-c", HIDDEN], check=True)
    return wait()


def processes() -> str:
    for _ in range(40):
        subprocess.Popen(["sleep", "600"])
    return wait()


def processes_that_multiply() -> str:
    subprocess.Popen([sys.executable, "-c", DOUBLING])
    return wait()


def just_below() -> str:
    """Use nearly all for more than three measurements."""
    held = b"x" * (200 * MIB)
    sleeping = [subprocess.Popen(["sleep", "3.5"]) for _ in range(8)]
    return f"held {len(held)}, {[each.wait() for each in sleeping]}"


def files() -> str:
    """Leave files, from here and from a child."""
    handle, name = tempfile.mkstemp()
    os.close(handle)
    child = subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True)
    note(names=[name, child.stdout.strip()], cwd=os.getcwd())
    return "left files"


def files_of_a_thread() -> str:
    """Use a temporary file after the answer."""

    def late() -> None:
        time.sleep(1)
        with tempfile.NamedTemporaryFile() as file:
            (NOTES / "late").write_text(file.name)

    files()
    threading.Thread(target=late).start()
    return "left a thread"


def files_and_failure() -> str:
    files()
    sys.exit("no more")


def files_and_a_kill() -> str:
    files()
    if (NOTES / "kill").exists():
        (NOTES / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return "not killed"


def files_and_a_wait() -> str:
    files()
    return wait()


def a_large_result() -> str:
    """Return what CrewAI stores in a file, because the model's context is small."""
    return "a row\n" * 200_000


def files_and_memory() -> str:
    files()
    return memory()


DEEDS: dict[str, Callable[[], str]] = {
    deed.__name__: deed
    for deed in (
        *(wait, memory, memory_of_a_hidden_grandchild, processes, processes_that_multiply, just_below),
        *(files, files_of_a_thread, files_and_failure, files_and_a_kill, files_and_a_wait, files_and_memory),
        a_large_result,
    )
}


@tool
def use(what: str) -> str:
    """Use something."""
    note()
    return f"did: {DEEDS[what]()}"


class Greedy(BaseLLM):
    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        asked, _, did = str(messages).partition("Observation: did: ")
        if not did:
            what = asked.split("Use: ")[1].split(" .")[0]
            return f'Thought: use\nAction: use\nAction Input: {{"what": "{what}"}}'
        return f"Thought: done\nFinal Answer: {did[:20]}"


class Small(Greedy):
    """Calls tools by its provider's means, has a small context, and waits after a result."""

    def supports_function_calling(self) -> bool:
        return True

    def get_context_window_size(self) -> int:
        return 8_000

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        if messages[-1]["role"] == "tool":
            return wait()
        function = {"name": "use", "arguments": json.dumps({"what": "a_large_result"})}
        return [{"id": "one", "type": "function", "function": function}]


def small() -> Crew:
    served = crew()
    served.agents[0].llm = Small(model="small")
    return served


def crew() -> Crew:
    user = Agent(role="User", goal="g", backstory="b", tools=[use], llm=Greedy(model="greedy"), max_retry_limit=0)
    task = Task(name="use", description="Use: {what} .", expected_output="text", agent=user)
    return Crew(agents=[user], tasks=[task])
