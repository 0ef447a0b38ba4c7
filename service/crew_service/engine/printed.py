"""Holds a crew's printed output until it is stored: the newest MiB, without terminal codes or known secrets."""

from __future__ import annotations

import codecs
import html
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

MOST = 1024 * 1024  # bytes kept per execution
HIDDEN = "***"
MARK = b"\1"  # marks a masked character
SHORTEST_SECRET = 8  # characters; shorter strings also occur in harmless text
SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)\Z", re.IGNORECASE)
# Terminal codes: operating system commands, other strings, control sequences, and short escapes.
SEQUENCE = r"(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|\[[0-?]*[ -/]*[@-~]|[ -/]*[0-OQ-WYZ\\`-~])"
ESCAPE = re.compile(rf"\x1b{SEQUENCE}")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Characters that may appear between a secret's characters or instead of one: in JSON, in a `repr` and on a screen. Each
# pattern begins with a single character set, which `re` finds quickly.
BACKSLASH = re.compile(r"\\\\*(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|[bfnrt])?")
UNSEEN = re.compile(
    rf"[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+(?:(?<=\x1b)(?:{SEQUENCE}|\[[0-?]*\Z))?"
)
FRAMES = ("\u2502", "\u2503", "|")  # at both ends of a panel's lines
BREAKS = re.compile(r"\n+")
FRAMED = re.compile(rf"\n[\n ]*[{''.join(FRAMES)}]? *")  # plus the frame before it, which `_without_frame` removes
UNFINISHED = re.compile(
    r"(?:\r|\x1b(?:\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|\[[0-?]*[ -/]*|[ -/]*)"
    r"|\\{1,8}(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?)?)\Z"
)
PERCENT = re.compile(r"%[0-9A-F]{2}")
IN_ADDRESSES = "!#$&'()*+,/:;=?@[]~"  # characters that HTTP clients do not percent-encode in a complete URL
CONTINUED = bytes(range(0x80, 0xC0))  # what follows the first byte of a character in UTF-8
LEAST_BROKEN = 2  # characters before a line break that count as the start of a secret; a single one is too common
LONGEST_HELD = 4_096  # characters held back until more output arrives


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables whose names suggest a key, token or password."""
    return [value for name, value in environment.items() if SECRET_NAME.search(name)]


def masked(text: str, secrets: Iterable[str]) -> str:
    printed = Printed()
    printed.hide(secrets)
    return printed.masked(text)


def shortened(text: str, most: int) -> str:
    """Truncate a text, which must already be masked, because a truncated secret would not be recognized."""
    return text if len(text) <= most else f"{text[:most]}..."


class Printed:
    """The printed output of an execution's segments in this process, before it is stored."""

    def __init__(self, execution_id: str = "", wanted: Callable[[Printed], None] = lambda printed: None) -> None:
        self.execution_id = execution_id
        self.due_at = 0.0
        self.writing = threading.Lock()
        self._wanted = wanted
        self._lock = threading.Lock()
        self._secrets: set[str] = set()
        self._characters: set[str] = set()  # of each secret, as returned by `_readings`
        self._margin = 0  # characters next to a cut that may be part of a secret
        self._raw = bytearray()
        self._is_cut = False
        self.follows_gap = False
        """Whether output between what is stored and the text that `take` returned was dropped."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # may be the beginning of a secret or of an escape sequence
        self._text = ""

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these secrets from now on."""
        values = [value.strip() for value in secrets if len(_cleaned(value.strip())) >= SHORTEST_SECRET]
        self._secrets = self._secrets | {_cleaned(form) for value in values for form in _forms(value)}
        characters = {known for value in self._secrets for known, _ in _readings(value)}
        self._characters = {known for known in characters if len(known) >= SHORTEST_SECRET}
        self._margin = 8 * max(map(len, self._secrets), default=0)  # one character can be escaped as six

    def add(self, data: bytes) -> None:
        """Add output that the crew has printed."""
        with self._lock:
            self._raw += data
            if len(self._raw) > MOST + self._margin:
                del self._raw[: len(self._raw) - MOST - self._margin]
                self._is_cut = True
        self._wanted(self)

    def take(self, *, is_end: bool = False) -> str:
        """Return the text to store; at the end, include text held back as the possible start of a secret."""
        with self._lock:
            raw, self._raw = bytes(self._raw), bytearray()
            is_cut, self._is_cut = self._is_cut, False
        if is_cut:
            raw = raw.lstrip(CONTINUED)
            self._decoder.reset()
            self._rest = self._text = ""
            self.follows_gap = True
        text, escape = _parted(self._rest + self._decoder.decode(raw, final=is_end))
        hidden = self._hidden(text)
        begun = self._begun(text, least=SHORTEST_SECRET if is_end else 1)
        if is_end:
            hidden[len(text) - begun :] = MARK * begun
            upto, self._rest, escape = len(text), "", _cleaned(escape)
        else:
            upto = _before_hidden(hidden, len(text) - begun)
            self._rest, escape = text[upto:] + escape, ""
        visible = _without(text[:upto], hidden) + escape
        self._text = (self._text + visible[self._margin if is_cut else 0 :])[-MOST:]
        return self._text

    def stored(self) -> None:
        self._text, self.follows_gap = "", False

    def masked(self, text: str, *, goes_on: bool = False) -> str:
        """Return text with the secrets masked; truncate it if it is very long or incomplete."""
        if len(text) > MOST:
            return self.masked(text[:MOST], goes_on=True)
        text = _cleaned(text)
        visible = _without(text, self._hidden(text))
        return visible[: max(0, len(visible) - self._margin)] if goes_on else visible

    def _hidden(self, text: str) -> bytearray:
        """Mark the characters that represent a secret, plain or escaped."""
        hidden = bytearray(len(text))
        for start, end in _places(self._secrets, text):
            hidden[start:end] = MARK * (end - start)
        for characters, places in _readings(text):
            for first, last in _places(self._characters, characters) if len(characters) < len(text) else ():
                start, end = places[first], _end(text, places[last - 1])
                hidden[start:end] = MARK * (end - start)
        return hidden

    def _begun(self, text: str, *, least: int) -> int:
        """Return how many trailing characters may begin a secret if they include at least `least` of its characters."""
        tail = text[-LONGEST_HELD:]
        begun = self._begun_in(tail.rpartition("\n")[2], "", least)
        # An unfinished line may break here.
        begun = max(begun, self._begun_in(tail, "\n", max(least, LEAST_BROKEN)))
        return max([begun, *_beginnings(self._secrets, text, least)])

    def _begun_in(self, text: str, follows: str, least: int) -> int:
        sizes = (
            len(text) - places[len(characters) - size]
            for characters, places in _readings(text + follows)
            for size in _beginnings(self._characters, characters, least)
        )
        return max(sizes, default=0)


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret in plain form, as HTML, and as percent-encoded in each part of a URL."""
    yield secret
    yield html.escape(secret)
    for safe in ("", "/", IN_ADDRESSES):
        quoted = quote(secret, safe, errors="replace")
        for form in (quoted, quoted.replace("%20", "+")):
            yield form
            yield PERCENT.sub(lambda code: code[0].lower(), form)


def _beginnings(secrets: Iterable[str], text: str, least: int) -> Iterator[int]:
    for secret in secrets:
        yield from (size for size in range(least, len(secret)) if text.endswith(secret[:size]))


def _places(secrets: Iterable[str], text: str) -> Iterator[tuple[int, int]]:
    """Find each occurrence of each secret; they may overlap."""
    for secret in secrets:
        start = text.find(secret)
        while start >= 0:
            yield start, start + len(secret)
            start = text.find(secret, start + 1)


def _readings(text: str) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield a text's characters, however many times it was escaped, with their positions; then those without frames."""
    characters, places = text, array("L", range(len(text)))
    for pattern in (BACKSLASH, UNSEEN):
        characters, places = _less(pattern, characters, places)
    joined = _less(BREAKS, characters, places)
    yield joined
    framed = _less(FRAMED, characters, places)
    if framed[0] != joined[0]:
        yield framed


def _less(pattern: re.Pattern[str], text: str, places: array[int]) -> tuple[str, array[int]]:
    """Return a text and its characters' positions, with each match of the pattern removed or, if an escape, decoded."""
    parts: list[str] = []
    remaining, end = array("L"), 0
    for match in pattern.finditer(text):
        character = _character(match) if pattern is BACKSLASH else ""
        before = text[end : match.start()]
        if pattern is FRAMED:
            before = _without_frame(before)
        parts += before, character
        remaining += places[end : end + len(before)] + places[match.start() : match.start() + len(character)]
        end = match.end()
    return "".join([*parts, text[end:]]), remaining + places[end:]


def _without_frame(line: str) -> str:
    """Strip blanks and a frame from the end of a line."""
    line = line.rstrip(" ")
    return line[:-1].rstrip(" ") if line.endswith(FRAMES) else line


def _character(escape: re.Match[str]) -> str:
    if escape[0].endswith("n"):
        return "\n"
    code = escape[1] or escape[2]
    return chr(int(code, 16)).strip("\\") if code else ""


def _end(text: str, place: int) -> int:
    """Return the end of the possibly escaped character at this position."""
    escape = BACKSLASH.match(text, place)
    return escape.end() if escape else place + 1


def _before_hidden(hidden: bytearray, place: int) -> int:
    """Return the position, moved to the start of any masked part that it would cut, unless that part is too long."""
    if place == len(hidden) or not hidden[place]:
        return place
    begin = hidden.rfind(0, 0, place) + 1
    return begin if place - begin < LONGEST_HELD else place


def _without(text: str, hidden: bytearray) -> str:
    parts: list[str] = []
    end = 0
    for match in re.finditer(MARK + b"+", hidden[: len(text)]):
        parts += text[end : match.start()], HIDDEN
        end = match.end()
    return "".join([*parts, text[end:]])


def _parted(text: str) -> tuple[str, str]:
    """Split off an unfinished escape sequence at the end of a text, and clean the rest."""
    text = ESCAPE.sub("", text)
    escape = UNFINISHED.search(text, max(0, len(text) - LONGEST_HELD))
    upto = escape.start() if escape else len(text)
    return _cleaned(text[:upto]), text[upto:]


def _cleaned(text: str) -> str:
    return CONTROLS.sub("", ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))
