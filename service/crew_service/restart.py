"""Restarts the command without its secrets in the environment or on the command line.

Crews run as the same user, and could read both from any of its processes. The secrets are passed through a file
descriptor that is read and closed before any crew is loaded. The process keeps its id, so a supervisor does not
notice the restart.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator

PREFIX = "CREW_SERVICE_"  # variables with tokens, secrets and the database; no crew may see them
PASSED = "_CREW_PASSED"  # the number of the descriptor
SERVING = ("serve", "work")  # commands that load crews
SECRET = (
    *("--token", "--user-token", "--crew-token", "--db"),
    *("--webhook-secret", "--flow-webhook", "--flow-webhook-secret"),
)


def arguments() -> list[str]:
    """Return the command's arguments, after restarting it if it serves crews and has secrets."""
    if (passed := os.environ.pop(PASSED, None)) is not None:
        with open(int(passed), encoding="ascii") as file:
            content = json.load(file)
        os.environ.update(content["environment"])
        return list(content["arguments"])
    words = sys.argv[1:]
    hidden = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    visible = list(_shown(words))
    if words[:1] and words[0] in SERVING and (hidden or visible != words):
        _start_again(words, visible, hidden)
    return words


def _start_again(words: list[str], visible: list[str], hidden: dict[str, str]) -> None:
    descriptor = _nameless_file()
    os.set_inheritable(descriptor, True)
    with open(descriptor, "w", encoding="ascii", closefd=False) as file:
        json.dump({"arguments": words, "environment": hidden}, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    left = {name: value for name, value in os.environ.items() if name not in hidden}
    interpreter = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]  # the interpreter's own options, and the script
    os.execve(sys.executable, [sys.executable, *interpreter, *visible], {**left, PASSED: str(descriptor)})  # noqa: S606


def _nameless_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("crew-service")
    return os.dup(tempfile.TemporaryFile().fileno())


def _shown(command: list[str]) -> Iterator[str]:
    """Remove options that contain a secret, including under the abbreviated names that argparse accepts."""
    words = iter(command)
    for word in words:
        name, has_value, _ = word.partition("=")
        if not (name.startswith("--") and name != "--crew" and any(each.startswith(name) for each in SECRET)):
            yield word
        elif not has_value:
            next(words, None)
