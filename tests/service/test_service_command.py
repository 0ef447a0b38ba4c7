"""The command: starting, refusing to start, and a person at the terminal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from crew_client import GATED, Client, Command, Serve
from sampling import sampled

from crew_service.cli import _parser, main
from crew_service.options import crews_of
from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.waits


def test_a_generated_token_is_printed_once_alone_and_works(command: Callable[..., Command]) -> None:
    service = command(fresh=True)
    assert service.process.stdout is not None
    token = service.process.stdout.readline().strip()
    assert len(token) >= 16
    assert token.isalnum(), "a hyphen at its beginning would make it an option of the command that it is copied to"
    inputs = {"inputs": ["topic", "review"], "required": ["topic"], "continues": True, "files": []}
    assert Client(service.url, token).get("/inputs").json() == inputs
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(PATIENCE) == 0
    assert service.process.stdout.read() == ""
    assert token not in service.log.read_text()


@pytest.mark.row("S39")
def test_a_services_environment_and_command_line_hold_no_secret(
    command: Callable[..., Command],
) -> None:
    environment = {"CREW_SERVICE_TOKEN": "secret-of-all", "CREW_SERVICE_WEBHOOK_SECRET": "secret-of-hooks"}
    options = ["--user-token", "ann=secret-of-ann", "--user-token=bob=secret-of-bob", "--flow-webhook-sec", "secret-f"]
    service = command(*options, "--workers", "3", environment={**environment, "A_MODEL_KEY": "kept"}, fresh=True)
    place = Path(f"/proc/{service.process.pid}")
    told = (place / "environ").read_text() + (place / "cmdline").read_text()
    assert "secret-" not in told
    assert "CREW_SERVICE_" not in told
    assert "A_MODEL_KEY=kept" in told
    assert told.endswith("\0".join(["serve", "--port", "0", "--workers", "3", ""]))
    assert not [file for file in (place / "fd").iterdir() if "memfd" in str(file.readlink())]
    for token in ("secret-of-all", "secret-of-ann", "secret-of-bob"):
        assert service.client(token).get("/inputs").ok
    assert service.stop() == 0


def test_a_token_of_the_environment_is_taken_and_not_printed(command: Callable[..., Command]) -> None:
    service = command(
        "--user-token", "ann=ann-token", environment={"CREW_SERVICE_TOKEN": "from-the-environment\n"}, fresh=True
    )
    for token in ("from-the-environment", "ann-token"):
        assert Client(service.url, token).get("/inputs").status_code == 200
    assert service.stop() == 0
    assert service.process.stdout is not None
    assert service.process.stdout.read() == ""


def test_a_target_needs_no_option_before_it(command: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "crew.json").write_text(json.dumps({**GATED, "inputs": ["cake"]}))
    service = command("crew.json", "--token", "a-bakers-token")
    assert Client(service.url, "a-bakers-token").get("/inputs").json()["inputs"] == ["cake"]
    assert service.stop() == 0


def test_every_log_line_is_json_and_names_the_execution(command: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "crew.json").write_text(json.dumps(GATED))
    service = command("--crew", "crew.json", "--token", "a-token")
    client = service.client("a-token")
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    service.stop()
    lines = [json.loads(line) for line in service.log.read_text().splitlines()[1:]]
    assert [line["message"] for line in lines if line.get("execution_id") == kickoff_id] == [
        "kicked off by organization",
        "running",
        "waiting",
    ]


@pytest.mark.parametrize(
    ("target", "content"),
    [
        ("nothing", None),
        ("absent.json", None),
        ("bad.json", "{"),
        ("deep.json", "[" * 100_000),
        ("wrong.json", '{"tasks": []}'),
        ("twice.json", '{"tasks": [{"id": "a"}, {"id": "a"}]}'),
        ("unknown.json", '{"tasks": [{"id": "a", "colour": 1}]}'),
        ("no.such.module:crew", None),
        ("absent.py:crew", None),
    ],
)
def test_one_sentence_naming_a_bad_target_ends_the_start(
    target: str, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(target).write_text(content)
    assert main(["serve", "--port", "0", "--crew", target]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    (sentence,) = printed.err.splitlines()
    assert repr(target) in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--port", "99999"), "argument --port: must be from 0 to 65535"),
        (("--port", "-1"), "argument --port: must be from 0 to 65535"),
        (("--db", ":memory:"), "The database ':memory:' is in memory and would not persist; specify a file."),
        (("--db", "sqlite://"), "The database 'sqlite://' is in memory and would not persist; specify a file."),
        (("--db", "mysql+nothing://h/x"), "'mysql+nothing://h/x'"),
        (("--db", "oracle+cx_oracle://h/x"), "its driver cx_Oracle is not installed"),
    ],
)
def test_an_unusable_option_ends_the_start_in_one_sentence(
    options: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    ran = Command.refused(tmp_path, *options)
    assert ran.returncode == 2
    assert sentence in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("package", sampled(["fastapi", "sqlalchemy", "uvicorn", "jinja2", "prometheus_client"], 3))
def test_without_its_extra_the_command_says_what_to_install(package: str) -> None:
    without = f"import sys; sys.modules[{package!r}] = None; from crew_service.__main__ import main"
    ran = subprocess.run(
        [sys.executable, "-c", f"{without}; sys.exit(main())"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"The crew service needs {package!r}: pip install airflow-crew-service.\n"


def test_an_unusable_port_or_database_is_reported_in_one_sentence(
    command: Callable[..., Command], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, expected in (
            (["--port", port, "--db", "other.db"], f"Cannot listen on 127.0.0.1:{port}"),
            (["--port", "0"], "'crew-service.db' is in use by another crew service"),
            (["--port", "0", "--db", "absent/x.db"], "'absent/x.db' cannot be used"),
            (["--port", "0", "--db", "other.db", "--token", "a b"], "The token of --token must be printable ASCII"),
        ):
            assert main(["serve", *options]) == 2
            (sentence,) = capsys.readouterr().err.splitlines()
            assert expected in sentence


def test_a_person_at_the_terminal_lists_shows_and_decides(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = serve(db=tmp_path / "shared.db")
    db = ["--db", str(tmp_path / "shared.db")]
    kickoff_id = client.kickoff("\x1b[2Jthe screen")
    client.until(kickoff_id, "pending")
    assert main(["list", *db]) == 0
    listed = capsys.readouterr().out
    assert kickoff_id in listed
    assert "draft_task is waiting for a person" in listed

    assert main(["status", *db, kickoff_id]) == 0
    shown = capsys.readouterr().out
    assert "the screen" in shown
    assert "\x1b" not in shown

    assert main(["resume", *db, kickoff_id, "--outcome", "publish"]) == 1
    assert f"Nothing was changed. Decide: airflow-crew-service resume {kickoff_id} --approve" in capsys.readouterr().err
    assert main(["resume", *db, kickoff_id, "--revise", "shorter"]) == 0
    assert f"poll {kickoff_id}" in capsys.readouterr().out
    record = client.until(kickoff_id, "pending")
    while "Draft 2" not in record["task_output"]:
        record = client.until(kickoff_id, "pending")
    assert main(["resume", *db, kickoff_id, "--approve"]) == 0
    client.until(kickoff_id, "completed")
    capsys.readouterr()

    assert main(["resume", *db, kickoff_id, "--approve"]) == 1
    assert "Nothing was changed" in capsys.readouterr().err
    assert main(["status", *db, "no-such-id"]) == 1
    assert "no execution 'no-such-id'" in capsys.readouterr().err


def test_a_terminal_decision_in_live_dialect_names_the_new_id(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = serve(db=tmp_path / "shared.db", dialect="live")
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "NOT FOUND")
    main(["resume", "--db", str(tmp_path / "shared.db"), kickoff_id, "--approve"])
    new_id = capsys.readouterr().out.strip().removeprefix("Resumed; poll ").removesuffix(".")
    assert new_id != kickoff_id
    client.until(new_id, "SUCCESS")


def test_metrics_count_requests_executions_and_pool_workers(serve: Serve) -> None:
    client = serve(workers=3)
    client.until(client.kickoff(), "pending")
    text = client.get("/metrics").text
    assert 'crew_service_executions{state="waiting"} 1.0' in text
    assert 'crew_service_request_seconds_count{code="200",path="/status/{kickoff_id}"}' in text
    assert "crew_service_workers 3.0" in text
    assert requests.get(f"{client.url}/metrics", timeout=PATIENCE).status_code == 401


def test_the_service_needs_neither_airflow_nor_crewai(tmp_path: Path) -> None:
    code = "import sys, crew_service.cli; print({'airflow', 'crewai'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_every_command_takes_the_database_of_the_environment(
    folder_with_db: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder_with_db)
    monkeypatch.setenv("CREW_SERVICE_DB", "given.db")
    assert main(["list"]) == 0
    assert "waiting" in capsys.readouterr().out
    assert main(["webhooks", "list"]) == 0
    assert main(["work"]) == 2
    assert "given.db" in capsys.readouterr().err, "it is served already"
    assert [path.name for path in folder_with_db.glob("*.db")] == ["given.db"]
    assert "CREW_SERVICE_DB" in help_of("serve", capsys)
    assert "given.db" not in help_of("serve", capsys), "a URL may hold a password"


def test_a_service_takes_the_database_of_the_environment(command: Callable[..., Command], tmp_path: Path) -> None:
    client = command(environment={"CREW_SERVICE_DB": "given.db", "CREW_SERVICE_TOKEN": "a-token"}).client("a-token")
    assert client.get("/executions").json() == {"executions": []}
    assert [path.name for path in tmp_path.glob("*.db")] == ["given.db"]


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    return capsys.readouterr().out


@pytest.fixture
def folder_with_db(serve: Serve, tmp_path: Path) -> Path:
    """A folder whose only database holds one waiting execution."""
    client = serve(db=tmp_path / "given.db")
    client.until(client.kickoff(), "pending")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("serve", "--host", ""), "--host: must not be empty"),
        (("serve", "--max-seconds", "inf"), "--max-seconds/--time-limit: must be a number greater than 0"),
        (("serve", "--keep-days", "inf"), "--keep-days: must be a number greater than 0"),
        (("serve", "--flow-webhook", "receiver"), "--flow-webhook: must begin with http:// or https://"),
        (("serve", "--flow-webhook", "http://a%3Ab:c@a/"), "--flow-webhook: must begin with http:// or https://"),
        (("serve", "--base-url", "http://"), "--base-url: must begin with http:// or https://"),
        (("list", "--limit", "-1"), "--limit: must be a number greater than 0"),
        (("resume", "an-id", "--revise", ""), "--revise: must not be empty"),
        (("resume", "an-id", "--outcome", ""), "--outcome: must not be empty"),
        (("resume", "an-id", "--answer", " "), "--answer: must not be empty"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*words])
    assert left.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://rita:s3cr@t/y@127.0.0.1:1/y",
        "postgresql://rita@127.0.0.1:1/y?password=s3cr&connect_timeout=1",
        "postgresql://rita:s3cr@127.0.0.1:port/y",
        "nothing://rita:s3cr@127.0.0.1/y",
    ],
)
@pytest.mark.parametrize("command", ["list", "serve"])
def test_an_unusable_database_url_is_reported_without_its_password(
    capsys: pytest.CaptureFixture[str], command: str, url: str
) -> None:
    assert main([command, "--db", url, *(("--port", "0") if command == "serve" else ())]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"The database '{url[:10]}")
    assert sentence.endswith(".")
    assert "s3cr" not in sentence


@pytest.mark.parametrize(
    ("options", "variables", "named"),
    [
        (["--token", "a b-of-ann"], {}, "The token of --token"),
        ([], {"CREW_SERVICE_TOKEN": "ü-of-ann"}, "The token in CREW_SERVICE_TOKEN"),
        (["--user-token", "ann=a b-of-ann"], {}, "The token of 'ann' in --user-token"),
        ([], {"CREW_SERVICE_USER_TOKENS": "ann=a b-of-ann"}, "The token of 'ann' in CREW_SERVICE_USER_TOKENS"),
        (["--crew", "a=demo", "--crew-token", "a=a b-of-ann"], {}, "The token of --crew-token a"),
    ],
    ids=["token", "variable", "user", "users of the variable", "crew"],
)
def test_an_unsendable_token_is_named_but_not_shown(
    options: list[str], variables: dict[str, str], named: str, tmp_path: Path
) -> None:
    refused = Command.refused(tmp_path, *options, environment=variables)
    assert refused.returncode == 2
    assert f"{named} must be printable ASCII" in refused.stderr
    assert "of-ann" not in refused.stderr


def test_a_tilde_in_a_target_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "crew.json").write_text(json.dumps(GATED))
    arguments = _parser().parse_args(["serve", "--crew", "gated=~/crew.json"])
    assert list(crews_of(arguments)) == ["gated"]


def test_an_untested_uvicorn_is_refused_unless_connections_may_be_unbounded(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "uvicorn-99.0.dist-info").mkdir()
    (tmp_path / "uvicorn-99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: uvicorn\nVersion: 99.0\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "CREW_SERVICE_TOKEN": "a-token-for-tests-only"}
    refused = Command.refused(tmp_path, environment=environment)
    assert refused.returncode == 2
    (sentence,) = refused.stderr.splitlines()
    assert sentence.startswith("uvicorn 99.0 is installed, but connections are limited only with uvicorn")
    assert sentence.endswith("; install that, or add --unbounded-connections.")
    service = command("--unbounded-connections", environment=environment)
    assert service.client("a-token-for-tests-only").get("/inputs").ok
