"""What a crew prints, until it is stored: without terminal codes and known secrets, the newest MiB of it."""

from __future__ import annotations

import codecs
import re
import threading
from collections.abc import Callable, Iterable, Mapping

MOST = 1024 * 1024  # bytes that are kept of an execution
HIDDEN = "***"
SHORTEST_SECRET = 8  # characters; a shorter word stands in harmless texts too
SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)\Z", re.IGNORECASE)
# Of a terminal: operating system commands, other strings, control sequences, and short escapes.
ESCAPE = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|\[[0-?]*[ -/]*[@-~]|[ -/]*[0-OQ-WYZ\\`-~])"
)
UNFINISHED = re.compile(r"\r\Z|\x1b(?:\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|\[[0-?]*[ -/]*|[ -/]*)\Z")
LONGEST_ESCAPE = 4_096
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are named like a key, a token or a password."""
    return [value for name, value in environment.items() if SECRET_NAME.search(name)]


class Printed:
    """What the segments of one execution print in this process and nobody has stored yet."""

    def __init__(self, execution_id: str = "", wanted: Callable[[Printed], None] = lambda printed: None) -> None:
        self.execution_id = execution_id
        self.due_at = 0.0
        self.writing = threading.Lock()
        self._wanted = wanted
        self._lock = threading.Lock()
        self._secrets: list[str] = []
        self._raw = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # may be the beginning of a secret or of an escape sequence
        self._text = ""

    def hide(self, secrets: Iterable[str]) -> None:
        """Replace these from now on."""
        found = {value.strip() for value in (*secrets, *self._secrets) if len(value.strip()) >= SHORTEST_SECRET}
        self._secrets = sorted(found, key=len, reverse=True)

    def add(self, data: bytes) -> None:
        """Take what the crew has printed."""
        with self._lock:
            self._raw += data
            if len(self._raw) > MOST:
                # Nothing remains of a secret that is cut through.
                del self._raw[: len(self._raw) - MOST + max(map(len, self._secrets), default=0)]
        self._wanted(self)

    def take(self, *, is_end: bool = False) -> str:
        """Return what is to be stored; at the end also what may have been the beginning of something hidden."""
        with self._lock:
            raw, self._raw = bytes(self._raw), bytearray()
        found = self._hidden(self._rest + self._decoder.decode(raw, final=is_end))
        kept = 0 if is_end else self._unfinished(found)
        self._rest = found[len(found) - kept :]
        self._text = (self._text + _cleaned(found[: len(found) - kept]))[-MOST:]
        return self._text

    def stored(self) -> None:
        self._text = ""

    def masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _hidden(self, text: str) -> str:
        """Without escape sequences first: a secret is found behind colours too."""
        return self.masked(ESCAPE.sub("", text))

    def _unfinished(self, text: str) -> int:
        """Return how many characters at the end wait for those that follow."""
        escape = UNFINISHED.search(text, max(0, len(text) - LONGEST_ESCAPE))
        begun = [size for secret in self._secrets for size in range(1, len(secret)) if text.endswith(secret[:size])]
        return max([len(escape[0]) if escape else 0, *begun])


def _cleaned(text: str) -> str:
    return CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
