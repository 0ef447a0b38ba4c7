"""Real crews behind the real service, which is killed and whose crews misbehave."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from engine_stub import CREWS, alive

from airflow_crew_provider.models import output_sha256
from crew_service.crewai.fork_server import late_imports

Start = Callable[..., Command]
TOKEN = "a-token-for-tests-only"
MODEL_KEY = "sk-a-key-of-a-model"
PATHS = list(filter(None, [os.environ.get("PYTHONPATH")]))


class Service:
    """The service of one crew or several, which can be killed and started again on its database."""

    def __init__(self, start: Start, *crews: str, fresh: bool = False) -> None:
        self._start = start
        self._fresh = fresh
        self._crews = [part for crew in crews for part in ("--crew", crew)]
        self.begin()

    def begin(self) -> None:
        names = {"CREW_SERVICE_USER_TOKENS": "ann=a-token-of-ann", "CREW_SERVICE_WEBHOOK_SECRET": "a-secret"}
        keys = {"CREW_SERVICE_TOKEN": TOKEN, "CREW_SERVICE_DB": "crew-service.db", **names}
        environment = {**keys, "PYTHONPATH": os.pathsep.join([str(CREWS), *PATHS]), "OF_A_MODEL_API_KEY": MODEL_KEY}
        environment["PYTHONIOENCODING"] = "ascii"  # as on a machine without a UTF-8 locale
        options = ("--workers", "9", "--user-token", "bob=a-token-of-bob")
        self.command = self._start(*self._crews, *options, environment=environment, fresh=self._fresh)

    def restart(self) -> None:
        self.command.kill()
        self.begin()


class Served:
    """One of its crews; with a name where there are several."""

    def __init__(self, service: Service, name: str = "") -> None:
        self.service, self._name = service, name

    @property
    def command(self) -> Command:
        return self.service.command

    @property
    def client(self) -> Client:
        return self.command.client(TOKEN, self._name)

    def kickoff(self, **inputs: str) -> str:
        return str(self._posted("/kickoff", {"inputs": inputs})["kickoff_id"])

    def resume(self, execution_id: str, task_id: str, feedback: str, *, approve: bool) -> None:
        decision = {"task_id": task_id, "human_feedback": feedback, "is_approve": approve}
        self._posted("/resume", {"execution_id": execution_id, **decision})

    def cancel(self, execution_id: str) -> None:
        self._posted(f"/stop/{execution_id}")

    def status(self, execution_id: str) -> dict[str, Any]:
        return self.client.status(execution_id)

    def reached(self, execution_id: str, *states: str) -> dict[str, Any]:
        """Wait for one of the states and give the status."""
        eventually(lambda: self.status(execution_id)["status"] in states, f"{execution_id} reading {states}")
        return self.status(execution_id)

    def printed(self, execution_id: str) -> str:
        answer = self.client.get(f"/executions/{execution_id}/logs")
        assert answer.ok, answer.text
        return answer.text

    def log(self) -> str:
        return self.command.log.read_text()

    def _posted(self, path: str, body: Any = None) -> dict[str, Any]:
        answer = self.client.post(path, body)
        assert answer.ok, answer.text
        return dict(answer.json())


@pytest.fixture
def served(command: Start) -> Callable[[str], Served]:
    return lambda target: Served(Service(command, target))


def entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_waiting_task_with_a_model_refuses_non_object_edits(served: Callable[[str], Served], tmp_path: Path) -> None:
    service = served("samples:wordy_models")
    execution = service.kickoff(topic="ducks", log=str(tmp_path / "log"))
    draft = service.reached(execution, "pending")["task_output"]
    assert draft.startswith("Here you are")
    decision = {"execution_id": execution, "task_id": "place", "human_feedback": "Approved.", "is_approve": True}

    def edited(text: str) -> Any:
        edit = {"text": text, "output_sha256": output_sha256(draft)}
        return service.client.post("/resume", {**decision, "edited_output": edit})

    refused = edited("There you are.")
    assert (refused.status_code, "must be a JSON object" in refused.json()["detail"]) == (400, True), refused.text
    assert service.status(execution)["status"] == "pending"
    assert edited('```json\n{"x": 3, "why": "mine"}\n```').ok
    service.reached(execution, "completed")


@pytest.mark.row("S1", "S16")
def test_crews_survive_kill_9_anywhere_and_nothing_outlives_the_service(command: Start, tmp_path: Path) -> None:
    service = Service(command, "gates=samples:two_gates", "unruly=unruly:unruly")
    stories = (
        two_gates(Served(service, "gates"), tmp_path / "gates"),
        at_work(Served(service, "unruly"), tmp_path / "work"),
        hidden_processes(Served(service, "unruly"), tmp_path / "hidden"),
    )
    for _ in zip_longest(*stories):  # each goes on until it wants the service to be killed
        service.restart()


def two_gates(service: Served, log: Path) -> Iterator[None]:
    """At each gate."""
    execution = service.kickoff(topic="ducks", log=str(log))
    for feedback, approve, waits_for in [
        ("shorter", False, ("outline", "outline v1")),
        ("Approved.", True, ("outline", "outline v2 (shorter)")),
        ("Approved.", True, ("draft", "draft v1")),
    ]:
        service.reached(execution, "pending")
        yield
        status = service.status(execution)
        assert (status["status"], status["task_id"], status["task_output"]) == ("pending", *waits_for)
        service.resume(execution, waits_for[0], feedback, approve=approve)
    result = service.reached(execution, "completed", "error")["result"]
    assert result["output"] == "final v1"
    assert [task["output"] for task in result["tasks"]] == ["outline v2 (shorter)", "draft v1", "final v1"]
    calls = entries(log)
    assert [entry["call"] for entry in calls] == ["outline", "outline", "draft", "final"], "no model call is repeated"
    assert "outline v2 (shorter)" in calls[-1]["turns"][-1]["content"]


def at_work(service: Served, log: Path) -> Iterator[None]:
    """A crew at work dies with the service, and goes on from its last finished task."""
    execution = service.kickoff(topic="wait", log=str(log))
    eventually(lambda: any("pid" in entry for entry in entries(log)), "the second task")
    eventually(lambda: "waiting\n" in service.printed(execution), "what the crew printed")
    pid = entries(log)[-1]["pid"]
    yield
    eventually(lambda: not alive(pid), "the end of the crew")
    log.with_suffix(".go").touch()
    result = service.reached(execution, "completed", "error")["result"]
    assert [task["output"] for task in result["tasks"]] == ["start v1", "waited"]
    assert [entry.get("call", entry.get("topic")) for entry in entries(log)] == ["start", "wait", "wait"]
    assert service.printed(execution).count("waiting\n") == 2, "of both processes"


def hidden_processes(service: Served, log: Path) -> Iterator[None]:
    """What a crew started and hid ends with the service."""
    execution = service.kickoff(topic="hide_and_hang", log=str(log))

    def pids() -> list[int]:
        return [entry["pid"] for entry in entries(log) if "pid" in entry]

    eventually(lambda: len(pids()) == 3, "the crew, its child and what it hid")
    before = pids()
    yield
    eventually(lambda: not any(map(alive, before)), "the end of the crew and of all that it started")
    service.cancel(execution)


@pytest.mark.long
@pytest.mark.row("S7", "S39")
def test_a_misbehaving_crew_ends_as_an_error_harming_no_other(command: Start, tmp_path: Path) -> None:
    service = Served(Service(command, "unruly:unruly", fresh=True))  # one of its crews looks into /proc
    topics = ["hang", "fail", "leave", "leave_politely", "die", "flood", "ask_the_terminal", "well", "spy"]
    running = {topic: service.kickoff(topic=topic, log=str(tmp_path / topic)) for topic in topics}
    ended = {topic: service.reached(running[topic], "completed", "error") for topic in topics[1:]}
    errors = {topic: status["error"] for topic, status in ended.items() if "error" in status}
    assert errors.pop("fail") == "ValueError: bad input"
    assert errors.pop("leave") == "The crew's process exited with code 7 before the crew was done."
    killed = "The crew's process was killed by signal 9 before the crew was done."
    assert errors.pop("die") == f"{killed} It was restarted 3 times without making progress."
    died = service.command.log.read_text().count(f"{killed} Restarting it.")
    assert died == 3
    assert errors.pop("leave_politely") == "SystemExit: good bye"
    no_terminal = "The crew has no terminal for input(): use human_input in a task, or self.ask() in a Flow"
    assert errors.pop("ask_the_terminal") == f"EOFError: EOF when reading a line. {no_terminal}"
    assert errors == {}
    assert ended["flood"]["result"]["output"] == "dry again"
    assert ended["well"]["result"]["output"] == "done well, knowing []", "crews see none of the service's keys"
    assert ended["spy"]["result"]["output"] == f"{service.command.process.pid} tells []", "nor in /proc"
    printed = {topic: service.printed(running[topic]) for topic in topics[1:]}
    assert "the last drop\n" in printed["flood"]
    assert 2**20 - 64 <= len(printed["flood"]) <= 2**20
    assert "about to die\n" in printed["die"]
    assert "ValueError: bad input" in printed["fail"]
    assert "well \N{HOT BEVERAGE}, with ***\n" in printed["well"]
    assert "\x1b" not in "".join(printed.values())
    for hidden in (TOKEN, MODEL_KEY, "xxxx", "about to die", "╭"):
        assert hidden not in service.log()
    with Path(f"/proc/{service.command.process.pid}/status").open() as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 400 * 1024, "kB: the flood is not held in memory"

    assert service.status(running["hang"])["status"] == "running"
    service.cancel(running["hang"])
    pids = [entry["pid"] for entry in entries(tmp_path / "hang") if "pid" in entry]
    assert len(pids) == 2, "the crew's process and its child"
    eventually(lambda: not any(map(alive, pids)), "the end of the stopped crew")
    assert service.status(running["hang"])["status"] == "error"


@pytest.mark.long
@pytest.mark.row("S41")
def test_a_crews_keys_are_masked_in_its_errors_and_logs(command: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text((CREWS / "unruly.py").read_text())
    service = Served(Service(command, "own.py:unruly"))
    execution = service.kickoff(topic="fail_with_the_key", log=str(tmp_path / "log"))
    assert service.reached(execution, "error")["error"] == 'ValueError: {"error": "no such key: ***"}'
    assert 'ValueError: {"error": "no such key: ***"}' in service.printed(execution)
    (tmp_path / "own.py").write_text(FAILS_WITH_KEYS)
    execution = service.kickoff(topic="well", log=str(tmp_path / "log"))
    assert service.reached(execution, "error")["error"] == "RuntimeError: *** and *** (own.py, line 5)"
    assert service.printed(execution) == "*** is known\n"
    keys = {"OF_A_MODEL_API_KEY": MODEL_KEY}
    refused = service.command.refused(tmp_path, "--crew", "own.py:unruly", environment=keys)
    assert "cannot be loaded: RuntimeError: *** and ***" in refused.stderr
    for hidden in ("of-a-model", "of-a-crew"):
        assert hidden not in service.log() + refused.stderr


FAILS_WITH_KEYS = """
import os
print("\\0".join(os.environ["OF_A_MODEL_API_KEY"]), "is known")
os.environ["OWN_API_KEY"] = "sk-a-key-" + "of-a-crew"
raise RuntimeError(f"{os.environ['OF_A_MODEL_API_KEY']} and {os.environ['OWN_API_KEY']}")
"""


def test_the_service_log_says_why_a_crew_no_longer_loads(command: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text((CREWS / "unruly.py").read_text())
    service = Served(Service(command, "own.py:unruly"))
    execution = service.kickoff(topic="well", log=str(tmp_path / "log"))
    service.reached(execution, "completed")
    assert "the crew cannot be loaded" not in service.log()
    (tmp_path / "own.py").write_text("print('in a module')\nraise RuntimeError('out of order')\n")
    execution = service.kickoff(topic="well", log=str(tmp_path / "log"))
    assert service.reached(execution, "error")["error"] == "RuntimeError: out of order (own.py, line 2)"
    assert "the crew cannot be loaded: Traceback" in service.log()
    assert service.printed(execution) == "in a module\n"


EARLY = """
import sys
import threading

early = {"lancedb", "openai.resources"} & sys.modules.keys()

from crewai.flow.flow import Flow, start


class Early(Flow):
    @start()
    def begin(self):
        from lancedb.background_loop import LOOP

        return f"{sorted(early)} {LOOP.thread in threading.enumerate()}"
"""


def test_the_database_of_a_memory_is_imported_before_a_fork(command: Start, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    options = ("--crew", "early:Early")
    environment = {"CREW_SERVICE_TOKEN": TOKEN, "PYTHONPATH": os.pathsep.join([str(tmp_path), *PATHS])}
    served = command(*options, environment=environment, fresh=True)
    client = served.client(TOKEN)
    client.until(client.kickoff(), "completed")
    ended = client.until(client.kickoff(), "completed")
    early = sorted({"lancedb", "openai.resources"}.intersection(late_imports()))
    assert ended["result"]["output"] == f"{early} True"
    assert "fork" not in served.log.read_text().replace("fork_server", "")
