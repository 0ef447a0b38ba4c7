"""The versions in the test matrix, and their results in docs/compatibility.md."""

from __future__ import annotations

import re
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import Version

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix: written by make test-matrix -->", "<!-- end of matrix -->"
VERSIONS = {"2.11": "2.11.2", "3.0": "3.0.6", "3.1": "3.1.8", "3.2": "3.2.2", "3.3": "3.3.2", "3.4": "3.4.0b2"}
NEWER = ("3.11", "3.12", "3.13")
# The versions that Airflow supports.
PYTHONS = {"2.11": NEWER[:2], "3.0": NEWER[:2], "3.1": NEWER, "3.2": NEWER, "3.3": NEWER, "3.4": NEWER}
LOWEST = "the oldest dependencies"
CELLS = [*(f"{minor}, Python {python}" for minor in VERSIONS for python in PYTHONS[minor]), f"{LOWEST}, Python 3.11"]
# Without constraints, an installer chooses newer versions, with which something fails.
HELD_BACK = {
    "3.0": ("cadwyn<5.5", "fastapi<0.118", "pyjwt<2.11", "universal-pathlib<0.3"),
    "3.2": ("cadwyn<7.2", "fastapi<0.137"),
    LOWEST: ("universal-pathlib<0.3",),
}
FAILS = {
    "3.0": "login, task processes and object storage fail",
    "3.2": "the API server does not start: `TITerminalStatePayload needs a discriminator field`",
    LOWEST: "the object storage of Airflow 2.11.0 fails",
}
DIFFERS = {
    "2.11": "no reviews, no inbox",
    "3.0": "no reviews",
    "3.1": "a review waits in the triggerer",
    "3.2": "a review waits in the triggerer",
    "3.3": "a review waits without a triggerer",
    "3.4": "as 3.3; retrying or clearing a review opens a new form, and between two tries nobody can answer",
    LOWEST: "as 2.11",
}
COLUMNS = ("tests", "dag", "processes", "service", "tried")
HEAD = (
    "| Airflow | tests | one DAG in real processes | inbox, reviews, and who reads texts, in real processes "
    "| packages with the `service` extra | tested on | what differs |\n|---|---|---|---|---|---|---|"
)


def chosen(release: str | None) -> dict[str, str]:
    """Return the releases to test by minor version: those in the table, or only the requested one."""
    if not release:
        return VERSIONS
    if _minor(release) not in VERSIONS:
        raise ValueError(f"AIRFLOW={release}: supported versions are {', '.join(VERSIONS)}, each with any patch number")
    return {_minor(release): release}


def pins(release: str) -> tuple[str, ...]:
    """Return the packages to install for a release; installers accept pre-releases only of packages that are named."""
    parts = ("", "-core", "-task-sdk") if Version(release).is_prerelease else ("",)
    versions = {"-task-sdk": re.sub(r"^3", "1", release)}
    exact = (f"apache-airflow{part}=={versions.get(part, release)}" for part in parts)
    return (*exact, *HELD_BACK.get(_minor(release), ()))


def record(cell: str, results: dict[str, str]) -> None:
    """Write the results of one cell with today's date; the others remain unchanged.

    :param cell: release and Python, such as "3.4.0, Python 3.12"; it replaces the cell of an earlier patch release
    """
    page = PAGE.read_text("utf-8")
    row = [cell, *({**results, "tried": f"{datetime.now(UTC):%Y-%m-%d}"}[column] for column in COLUMNS)]
    PAGE.write_text(_with_table(page, {**read(page), _place(cell): row}), "utf-8")


def read(page: str) -> dict[str, list[str]]:
    """Return the rows of the page that have results, by their places in the table."""
    lines = re.findall(r"^\| (\S.*) \|$", page.partition(BEGIN)[2].partition(END)[0], re.MULTILINE)
    rows = [line.split(" | ")[: len(COLUMNS) + 1] for line in lines]
    return {_place(row[0]): row for row in rows if _place(row[0]) in CELLS and row[1] != "not run"}


def why_not_installed(said: str) -> str:
    """Return the reason from an installer's output for a cell of the table: short, and without URLs or paths.

    :param said: what the installer printed before it failed
    """
    reason = re.sub(r".*?^(?=error:)", "", said, count=1, flags=re.MULTILINE | re.DOTALL)
    words = re.sub(r"[^\s`]*/[^\s`]*", "...", reason.replace("|", " ").replace("cause:", " "))
    return textwrap.shorten(f"not installed: {words}", 400, placeholder=" ...")


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _place(cell: str) -> str:
    release, _, python = cell.partition(", ")
    return f"{release if release == LOWEST else _minor(release)}, {python}"


def _with_table(page: str, rows: dict[str, list[str]]) -> str:
    lines = [f"| {' | '.join([*rows.get(place, _not_run(place)), _differs(place)])} |" for place in CELLS]
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, "", HEAD, *lines, "", END + rest.partition(END)[2]])


def _not_run(place: str) -> list[str]:
    version, _, python = place.partition(", ")
    return [f"{VERSIONS.get(version, version)}, {python}", *["not run"] * len(COLUMNS)]


def _differs(place: str) -> str:
    """Return the last column, which is empty except in the first row of a version."""
    version = place.partition(", ")[0]
    if place != next(each for each in CELLS if each.startswith(f"{version}, ")):
        return ""
    held = ", ".join(f"`{pin}`" for pin in HELD_BACK.get(version, ()))
    return DIFFERS[version] + (f"; held back: {held}, because with newer versions, {FAILS[version]}" if held else "")


def main() -> int:
    """Rewrite the table with the cells that have results."""
    page = PAGE.read_text("utf-8")
    PAGE.write_text(_with_table(page, read(page)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
