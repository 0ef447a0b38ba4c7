"""Prints the score of the last mutation run, and each surviving mutant without a documented reason."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "scripts" / "mutants.md"
RESULTS = ROOT / "mutants"
SURVIVED, WITHOUT_TESTS, NOT_TRIED = 0, 33, None
GOAL = 0.9


def results(folder: Path = RESULTS) -> dict[str, int | None]:
    """Return the tests' exit code for each mutant."""
    found: dict[str, int | None] = {}
    for meta in sorted(folder.rglob("*.meta")):
        found |= json.loads(meta.read_text())["exit_code_by_key"]
    return found


def survivors(found: dict[str, int | None]) -> list[str]:
    return [name for name, code in found.items() if code in (SURVIVED, WITHOUT_TESTS)]


def function_of(mutant: str) -> str:
    """Return the function that was mutated, e.g. ``wait.watch.Watch.pause``."""
    name = mutant.removeprefix("airflow_crew_provider.").removeprefix("service.").split("__mutmut_")[0]
    return re.sub(r"\.x_?ǁ?", ".", name).replace("ǁ", ".")


def main() -> int:
    found = results()
    left = Counter(map(function_of, survivors(found)))
    tried = sum(code is not NOT_TRIED for code in found.values())
    if not tried:
        sys.exit("No mutants were tested; run `make mutants`")
    share = 1 - left.total() / tried
    print(f"{tried} mutants, {tried - left.total()} killed: {share:.1%}; {len(found) - tried} not tested")
    excused = PAGE.read_text()
    new = {name: count for name, count in left.items() if f"`{name}`" not in excused}
    for name, count in sorted(new.items()):
        print(f"  {name}: {count} without a reason in scripts/mutants.md (to see them: mutmut browse)")
    return int(share < GOAL or bool(new))


if __name__ == "__main__":
    sys.exit(main())
