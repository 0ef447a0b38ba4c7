"""Seeds a fault for each row of the fault matrix, one after the other, and checks that a test of that row fails.

`tests/seeded_faults.toml` has a small change of the code for each row, which breaks what the row promises, and the test
that must notice it. `make faults ROWS="A37 S1"` tries these rows; without arguments, it tries all.
The code is changed in a copy of the tree.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tests" / "seeded_faults.toml"
AT_ONCE = 2
SECONDS = 900
PASSED, FAILED, TIMED_OUT = 0, 1, -1


@dataclass(frozen=True)
class SeededFault:
    """A change of one file: `old`, which is there exactly once, becomes `new`; `test` must fail then."""

    row: str
    file: str
    old: str
    new: str
    test: str

    def seeded(self, code: str) -> str:
        """Return the file's code with the fault."""
        if (times := code.count(self.old)) != 1:
            raise ValueError(f"{self.row}: the text to replace is in {self.file} {times} times, not once")
        return code.replace(self.old, self.new)


def seeded_faults() -> list[SeededFault]:
    return [SeededFault(**fault) for fault in tomllib.loads(LIST.read_text("utf-8"))["fault"]]


def main(rows: Sequence[str]) -> int:
    faults = [fault for fault in seeded_faults() if not rows or fault.row in rows]
    if unknown := set(rows) - {fault.row for fault in faults}:
        sys.exit(f"{LIST.name} has no fault for {', '.join(sorted(unknown))}")
    began = time.monotonic()
    copies: queue.Queue[Path] = queue.Queue()

    def try_one(fault: SeededFault) -> str | None:
        copy = copies.get()
        try:
            problem = problem_with(fault, copy)
        finally:
            copies.put(copy)
        print(f"{fault.row:5} {problem or 'detected'}: {fault.test}", flush=True)
        return problem

    with tempfile.TemporaryDirectory(prefix="seeded") as folder:
        for number in range(AT_ONCE):
            copies.put(_copy_of_the_tree(Path(folder, str(number))))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            problems = [each for each in pool.map(try_one, faults) if each]
    print(f"{len(faults)} faults, {len(faults) - len(problems)} detected, {time.monotonic() - began:.0f} s")
    return int(bool(problems))


def problem_with(fault: SeededFault, root: Path) -> str | None:
    """Return what is wrong if the test passes with the fault, cannot run, or fails without the fault."""
    path = root / fault.file
    code = path.read_text("utf-8")
    _write(path, fault.seeded(code))
    try:
        with_fault = _outcome(fault.test, root)
    finally:
        _write(path, code)
    if with_fault != FAILED:
        return "NOT DETECTED" if with_fault == PASSED else f"pytest ended with {with_fault}"
    return None if _outcome(fault.test, root) == PASSED else "FAILS WITHOUT THE FAULT"


def _write(path: Path, code: str) -> None:
    path.write_text(code, "utf-8")
    # Python takes compiled code for current if the file has the same size and was written within the same second.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def _outcome(test: str, root: Path) -> int:
    # Most faults end in a wait that is in vain.
    environment = {"TEST_PATIENCE": "0.25", **os.environ, "PYTHONPATH": f"{root}:{root / 'service'}"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
    try:
        return subprocess.call(command, cwd=root, env=environment, timeout=SECONDS, stdout=DEVNULL, stderr=DEVNULL)
    except subprocess.TimeoutExpired:
        return TIMED_OUT


def _copy_of_the_tree(root: Path) -> Path:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in names.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    return root


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
