"""Operating the service: tokens that stand on no command line, logs in two forms, and commands for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from crew_client import PLAIN, SLOW, Command, Serve, eventually
from databases import new_sqlite, put

from crew_service import __version__
from crew_service.cli import main
from crew_service.storage.database import Database
from crew_service.storage.states import State
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-the-organization"


def test_user_tokens_come_from_a_file_and_the_environment(command: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "users").write_text("# of the newsroom\n # guests\nann=anns-token-01234\n\nbob = bobs-token-56789\n")
    service = command(
        *("--token", TOKEN, "--user-tokens-file", "users", "--user-token", "cid=cids-token-01234"),
        environment={"CREW_SERVICE_USER_TOKENS": "dan=dans-token-01234\neva=evas-token-01234"},
    )
    tokens = [f"{name}s-token-01234" for name in ("ann", "cid", "dan", "eva")]
    for token in (*tokens, "bobs-token-56789"):
        assert service.client(token).get("/inputs").status_code == 200
    assert service.client("of the newsroom").get("/inputs").status_code == 401


@pytest.mark.parametrize("content", [None, "ann", "ann=", "=secret-of-nobody", "\xff"])
def test_an_unusable_token_file_ends_the_start_showing_no_token(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "users").write_bytes(content.encode("latin-1"))
    ran = Command.refused(tmp_path, "--user-tokens-file", "users")
    assert (ran.returncode, ran.stdout) == (2, "")
    (sentence,) = ran.stderr.splitlines()
    assert "users" in sentence
    assert "secret-of-nobody" not in sentence


def test_the_log_can_be_text_and_quieter(command: Callable[..., Command]) -> None:
    service = command("--token", TOKEN, "--log-format", "text")
    kickoff_id = service.client(TOKEN).kickoff()
    eventually(lambda: f"kicked off by organization execution_id={kickoff_id}" in service.log.read_text(), "the line")
    refused = Command.refused(service.log.parent, "--log-level", "warning", "--port", "x")
    assert refused.returncode == 2


def test_the_version_is_printed() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "crew_service", "--version"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ran.returncode, ran.stdout) == (0, f"airflow-crew-service {__version__}\n")


def test_a_kickoff_at_the_terminal_is_run_by_the_service(serve: Serve, terminal: Callable[..., str]) -> None:
    client = serve(PLAIN)
    answer = json.loads(terminal("kickoff", "topic=AI", "--inputs", '{"n": 3}', "--json"))
    client.until(answer["kickoff_id"], "completed")
    record = json.loads(terminal("status", answer["kickoff_id"], "--json"))
    assert (record["state"], record["output"], record["inputs"]) == ("completed", "All on AI", {"topic": "AI", "n": 3})
    assert [row["id"] for row in json.loads(terminal("list", "--json"))] == [record["id"]]


def test_a_terminal_kickoff_warns_of_a_crew_name_never_run(serve: Serve, terminal: Callable[..., str]) -> None:
    client = serve(PLAIN)
    client.until(client.kickoff(), "completed")
    assert "Warning" not in terminal("kickoff", "topic=AI")
    for _ in range(2):  # what is queued under it does not make it known
        said = terminal("kickoff", "--name", "brieff", "topic=AI")
        kickoff_id = said.split("poll ")[1].split(".")[0]
        assert "no crew named 'brieff' has run on this database" in said
        assert f"`airflow-crew-service stop {kickoff_id}`" in said
    terminal("stop", kickoff_id)
    assert "Warning" in terminal("kickoff", "--name", "brieff", "--json")


def test_a_stop_at_the_terminal_ends_what_the_service_runs(serve: Serve, terminal: Callable[..., str]) -> None:
    client = serve(SLOW)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "running")
    assert "Stopped." in terminal("stop", kickoff_id)
    assert client.status(kickoff_id)["error"] == "Stopped on request"
    assert "Nothing was changed" in terminal("stop", kickoff_id, code=1)
    assert "There is no execution" in terminal("stop", "unknown", code=1)


@pytest.mark.parametrize("words", [("kickoff", "topic"), ("kickoff", "--inputs", "[]"), ("kickoff", "--inputs", "{")])
def test_a_kickoff_that_cannot_be_read_is_refused(serve: Serve, terminal: Callable[..., str], words: list[str]) -> None:
    serve(PLAIN)
    with pytest.raises(SystemExit):
        terminal(*words)


def test_it_is_ready_while_it_runs(serve: Serve) -> None:
    client = serve(PLAIN)
    for path in ("/healthz", "/livez", "/readyz"):
        assert client.get(path).json() == {"status": "ok"}


def test_executions_of_a_crew_that_is_gone_are_reported_once(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = new_sqlite(tmp_path / "service.db")
    database = Database(str(path))
    for number, state in enumerate((State.WAITING, State.QUEUED, State.COMPLETED)):
        put(database, f"report-{number}", state=state, crew="report")
    put(database, "brief-1", state=State.FAILED, crew="brief")
    put(database, "mine", state=State.WAITING)
    database.close()
    client = serve(db=path)
    client.until(client.kickoff(), "pending")
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("2 executions are queued or wait for a person, but belong to the crew report, which this")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["kickoff", "--inputs", '{"topic": NaN}'], "NaN is not valid JSON."),
        (["kickoff", "--inputs", '{"topic": 1e999}'], "The number 1e999 is out of range."),
        (["kickoff", "--inputs", '{"topic": "\\ud800"}'], "has an unpaired surrogate."),
        (["kickoff", "--inputs", '{"topic": 1, "topic": 2}'], "occurs twice in one object."),
        (["kickoff", "--inputs", "[" * 200_000], "nested more than 64 levels deep."),
        (["kickoff", "--inputs", "[]"], "must be a JSON object."),
        (["kickoff", "topic=\udcff"], "must be valid UTF-8"),
        (["kickoff", "--name", "\udcff"], "must be valid UTF-8"),
        (["status", "\udcff"], "must be valid UTF-8"),
        (["resume", "x", "--revise", "\udcff"], "must be valid UTF-8"),
    ],
    ids=map(str, range(10)),
)
def test_the_terminal_refuses_what_a_request_may_not_contain(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--db", str(tmp_path / "x.db")])
    assert reason in capsys.readouterr().err
