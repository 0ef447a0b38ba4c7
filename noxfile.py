"""`make test-matrix`: run tests and one DAG on each supported Airflow, and once with the oldest dependencies.

Each cell has its own environment. `nox --list` lists them, `nox --tags 2.11` runs those of one version, and
`make test-matrix AIRFLOW=3.4.0` runs those of that release instead of the one in the table. Python versions that are
not installed are not downloaded, and their cells are skipped. The results are written to docs/compatibility.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

import nox

from scripts.matrix.table import HELD_BACK, LOWEST, PYTHONS, VERSIONS, chosen, pins, record, why_not_installed

nox.options.default_venv_backend = "uv"
nox.options.stop_on_first_error = False
RELEASES = chosen(os.environ.get("AIRFLOW"))
if len(RELEASES) == 1:
    nox.options.sessions = ["airflow"]

TOOLS = (
    "asyncpg",
    "hypothesis",
    "mypy",
    "playwright",
    "psycopg",
    "psycopg2-binary",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "pyyaml",
    "standardwebhooks",
    "statsd",
    "time-machine",
)
DEV = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["dev"]
TEST_TOOLS = [each for each in DEV if re.match(r"[\w-]+", each)[0] in TOOLS]
ROOMS = ("api", "client", "compat", "flows", "kickoff", "kit", "resume", "task", "wait")
CLASSES = ("decorators", "hooks", "links", "operators", "sensors", "triggers")
FOLDERS = {"2.11": (*ROOMS, *CLASSES), "3.0": (*ROOMS, *CLASSES, "inbox")}
ALL_FOLDERS = (*FOLDERS["3.0"], "review", "run", "view")
READERS = "tests/system/test_readers.py"
REVIEWS = "tests/system/reviews"  # they need Airflow 3.1, as does the tab
ON_PROCESSES = (
    READERS,
    "tests/system/test_inbox.py",
    *(f"{REVIEWS}/test_{name}.py" for name in ("reviews", "tab", "loop")),
)
UPGRADED_FROM = {"3.4": "3.3"}  # Airflow 3.4 moved XComs and forms to other tables
UPGRADE = "tests/system/test_upgrade.py"
CELLS = [
    nox.param(python, minor, id=f"{minor}-py{python}", tags=[minor]) for minor in RELEASES for python in PYTHONS[minor]
]

os.environ["UV_PYTHON_DOWNLOADS"] = "never"


@nox.session
@nox.parametrize("python, minor", CELLS)
def airflow(session: nox.Session, minor: str) -> None:
    """Run the tests and the DAG on one Airflow, and install the service alongside it."""
    cell, exact = f"{RELEASES[minor]}, Python {session.python}", pins(RELEASES[minor])
    _install(session, cell, *exact, "--editable", ".")
    beside = _service_beside_airflow(session)
    _install(session, cell, *exact, "--editable", ".[service]", "--editable", "./service", *TEST_TOOLS)
    before = UPGRADED_FROM.get(minor)
    _try(session, cell, FOLDERS.get(minor, ALL_FOLDERS), beside, before and _environment_before(session, before))


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """Run the tests with the oldest dependencies that the package and Airflow 2.11.0 allow."""
    cell, oldest = f"{LOWEST}, Python {session.python}", ("--resolution", "lowest-direct", *HELD_BACK[LOWEST])
    _install(session, cell, *oldest, "--editable", ".[service]", "--editable", "./service", *TEST_TOOLS)
    _try(session, cell, FOLDERS["2.11"], "not tried")


def _environment_before(session: nox.Session, minor: str) -> str:
    """Create an environment with the Airflow version from which a database is upgraded; return its command."""
    folder = Path(session.create_tmp()).resolve() / f"airflow-{minor}"
    session.run("uv", "venv", "--quiet", "--clear", "--python", str(session.python), str(folder), external=True)
    tools = [each for each in TEST_TOOLS if each.startswith(("asyncpg", "psycopg2"))]
    packages = (*pins(VERSIONS[minor]), *tools, "--editable", ".")
    session.run("uv", "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *packages, external=True)
    return str(folder / "bin" / "airflow")


def _install(session: nox.Session, cell: str, *what: str) -> None:
    """Install the packages that the cell needs; if that fails, record the reason in the cell."""
    with tempfile.TemporaryFile("w+") as said:
        try:
            session.install(*what, silent=False, stdout=said, stderr=subprocess.STDOUT)
        except nox.command.CommandFailed:
            said.seek(0)
            reason = why_not_installed(said.read())
            record(cell, {"tests": reason, "dag": "not run", "processes": "not run", "service": "not tried"})
            session.error(reason)


def _try(session: nox.Session, cell: str, folders: tuple[str, ...], beside: str, before: str | None = None) -> None:
    """Run the tests and the DAG, record the results, and fail if anything failed.

    :param before: the command of the Airflow version that the upgrade test starts from; None to skip this test
    """
    selected = ("-m", "not system and not long", *(f"tests/{folder}" for folder in folders))
    on_processes = ON_PROCESSES if folders == ALL_FOLDERS else (READERS,)
    processes = _tests(session, *on_processes, *([UPGRADE] if before else []), before=before)
    results = {"tests": _tests(session, *selected), "dag": _dag(session), "processes": processes, "service": beside}
    record(cell, results)
    if re.search(r"failed|error|did not|changes", " ".join(results.values())):
        session.error(str(results))


def _service_beside_airflow(session: nox.Session) -> str:
    """Return which installed packages the service would change, according to a dry run; new packages do not count."""
    said = session.run("uv", "pip", "install", "--dry-run", "--editable", "./service", silent=True, external=True)
    removed = re.findall(r"^ - (\S+)", said or "", re.MULTILINE)
    changed = [each for each in removed if not each.startswith("airflow-crew-")]
    return f"changes {', '.join(changed)}" if changed else "unchanged"


def _tests(session: nox.Session, *selected: str, before: str | None = None) -> str:
    """Run the tests and return the counts from pytest's last line."""
    command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup"]
    said = _said(session, *command, *selected, before=before)
    last = re.findall(r"^.*(?:passed|failed|error).* in \d.*$", said, re.MULTILINE)[-1:]
    return ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|errors?)", "".join(last))) or "did not start"


def _dag(session: nox.Session) -> str:
    said = _said(session, "python", "-m", "scripts.matrix.one_dag")
    return "success" if "The DAG run ended: success" in said else "failed"


def _said(session: nox.Session, *command: str, before: str | None = None) -> str:
    """Run a command, whatever its exit code, and return its output."""
    # Tests of features that an older Airflow does not have are skipped.
    environment = {"CREW_TESTS_NO_SKIP": None, "CREW_TESTS_AIRFLOW_BEFORE": before}
    said = session.run(*command, env=environment, silent=True, success_codes=range(256)) or ""
    session.log(said[-3000:])
    return said
