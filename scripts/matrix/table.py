"""The versions of the matrix, and their results in docs/compatibility.md."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix: written by make test-matrix -->", "<!-- end of matrix -->"
VERSIONS = {"2.11": "2.11.2", "3.0": "3.0.6", "3.1": "3.1.8", "3.2": "3.2.2", "3.3": "3.3.2"}
NEWER = ("3.11", "3.12", "3.13")
PYTHONS = {"2.11": NEWER[:2], "3.0": NEWER[:2], "3.1": NEWER, "3.2": NEWER, "3.3": NEWER}  # as Airflow supports them
LOWEST = "the oldest of each dependency, Python 3.11"
# Newer ones fail there; PAGE says how.
HELD_BACK = {
    VERSIONS["3.0"]: ("cadwyn<5.5", "fastapi<0.118", "pyjwt<2.11", "universal-pathlib<0.3"),
    VERSIONS["3.2"]: ("cadwyn<7.2", "fastapi<0.137"),
    LOWEST: ("universal-pathlib<0.3",),
}
CELLS = [*(f"{VERSIONS[minor]}, Python {python}" for minor in VERSIONS for python in PYTHONS[minor]), LOWEST]
COLUMNS = ("tests", "dag", "service")
HEAD = "| Airflow | tests | one DAG on real processes | extra `service` beside it |\n|---|---|---|---|"


def record(cell: str, results: dict[str, str]) -> None:
    """Write the results of one cell; those of the others stay as they are."""
    page = PAGE.read_text("utf-8")
    PAGE.write_text(_with_table(page, {**read(page), cell: [results[column] for column in COLUMNS]}), "utf-8")


def read(page: str) -> dict[str, list[str]]:
    """Return the cells of the page that were run."""
    rows = re.findall(r"^\| (.+) \|$", page.partition(BEGIN)[2].partition(END)[0], re.MULTILINE)
    cells = {row.split(" | ")[0]: row.split(" | ")[1:] for row in rows}
    return {name: cells[name] for name in CELLS if name in cells and cells[name][0] != "not run"}


def why_not_installed(said: str) -> str:
    """Return the reason in an installer's output, short and without addresses, for a cell of the table.

    :param said: what the installer printed before it failed
    """
    reason = re.sub(r".*?^(?=error:)", "", said, count=1, flags=re.MULTILINE | re.DOTALL)
    words = re.sub(r"[^\s`]*/[^\s`]*", "...", reason.replace("|", " ").replace("cause:", " "))
    return textwrap.shorten(f"not installed: {words}", 400, placeholder=" ...")


def _with_table(page: str, cells: dict[str, list[str]]) -> str:
    rows = [" | ".join([name, *cells.get(name, ["not run"] * len(COLUMNS))]) for name in CELLS]
    before, _, rest = page.partition(BEGIN)
    lines = [before + BEGIN, "", HEAD, *(f"| {row} |" for row in rows), "", END + rest.partition(END)[2]]
    return "\n".join(lines)


def main() -> int:
    """Write the table anew, with the cells that were run."""
    page = PAGE.read_text("utf-8")
    PAGE.write_text(_with_table(page, read(page)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
