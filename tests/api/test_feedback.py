"""What reads as an approval: one rule, held by both sides; a rejection never does."""

# ruff: noqa: RUF001 - letters that only look like ours are what is tested

from __future__ import annotations

import ast
import time
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import airflow_crew_provider
from airflow_crew_provider.api import answers
from airflow_crew_provider.api.answers import APPROVING_WORDS, MOST_MARKS, feedback_to_send, reads_like_approval
from airflow_crew_provider.exceptions import CrewInvalidInput
from crew_service.http.dialects.live import LiveDialect

pytestmark = pytest.mark.row("N25")

PROMISED = ["approved", "approve", "ok", "okay", "yes", "looks good", "looks good to me", "lgtm", "accept", "accepted"]
DRESSED = (
    *("OK?", "Looks good?", "Looks good!!", "yes :)", "lgtm 👍", "👍 LGTM", "*Approved*", "_ok_", "“Accepted”", "¡OK!"),
    *("ＯＫ", "ｙｅｓ！", "𝐚𝐩𝐩𝐫𝐨𝐯𝐞𝐝", "ⓞⓚ", "looks\N{NO-BREAK SPACE}good", "looks  \n good", "\N{ZERO WIDTH SPACE}ok"),
    *("LGTM\N{VARIATION SELECTOR-16}", "Okay…", "yes\x00", "accept\u202e", "(yes)", "ye\N{LATIN SMALL LETTER LONG S}"),
    *("!" * 40 + "ok", "👍" * 40 + "ok"),
    *(before + "\N{COMBINING ACUTE ACCENT}" * MOST_MARKS + "ok" for before in ("", "!")),
)
decoration = st.text(st.characters().filter(lambda c: not any(n.isalnum() for n in unicodedata.normalize("NFKC", c))))
cases = st.sampled_from((str.lower, str.upper, str.title, str.swapcase))
widths = st.sampled_from((str, lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)))


def approves_at_service(text: str) -> bool:
    """Return what the crew service makes of a text in its live dialect, the flag saying the contrary."""
    body = {"executionId": "e", "taskId": "t", "humanFeedback": text}
    crew: Any = SimpleNamespace(kind="crew")
    return bool(LiveDialect().decision(body, crew).is_approve)


@pytest.mark.parametrize("text", [*PROMISED, *DRESSED])
def test_an_approval_is_known_in_any_dress(text: str) -> None:
    assert reads_like_approval(text)
    assert approves_at_service(text)


@pytest.mark.parametrize(
    "text", ["", "?", "👍", "not ok", "yes yes", "approved, but shorter", "ok 2", "2 ok", "oks", "looks", "o k"]
)
def test_all_else_is_none(text: str) -> None:
    assert not reads_like_approval(text)
    assert not approves_at_service(text)


def test_the_words_are_those_that_are_promised() -> None:
    assert frozenset(PROMISED) == APPROVING_WORDS


@given(decoration, st.sampled_from(sorted(APPROVING_WORDS)), cases, widths, decoration)
def test_a_dressed_word_approves_alone_and_never_as_a_rejection(before, word, case, width, after) -> None:  # type: ignore[no-untyped-def]
    text = before + width(case(word)) + after
    assert reads_like_approval(text)
    sent = feedback_to_send(False, text)
    assert sent == f"Please revise: {text}"
    assert not approves_at_service(sent)


@given(st.text(min_size=1) | st.sampled_from(DRESSED))
@example("ok")
def test_no_rejection_is_taken_as_an_approval_by_the_service(text: str) -> None:
    try:
        sent = feedback_to_send(False, text)
    except CrewInvalidInput:
        assert not text.strip()
        return
    assert sent.endswith(text)
    assert not reads_like_approval(sent)
    assert not approves_at_service(sent)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_provider_and_service_agree_on_every_text(text: str) -> None:
    assert approves_at_service(text) is reads_like_approval(text)


def test_an_approval_without_a_text_is_one_to_the_service() -> None:
    assert approves_at_service(feedback_to_send(True, " \n"))


def test_a_megabyte_of_punctuation_is_judged_at_once() -> None:
    began = time.process_time()
    assert reads_like_approval("!" * 500_000 + "ok" + "?" * 500_000)
    assert not reads_like_approval("a" + "!" * 1_000_000 + "a")
    assert time.process_time() - began < 20


@pytest.mark.row("S11")
@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u0323\uff9e"])
def test_a_letter_heaped_with_marks_is_quickly_judged_no_approval(marks: str) -> None:
    """To normalize them takes time squared: for a megabyte hours, in which the service answers nobody."""
    assert not reads_like_approval("a" + marks * 200_000)
    assert not reads_like_approval("ok" + marks * 200_000)


def test_one_mark_more_than_any_language_has_is_no_approval() -> None:
    text = "\N{COMBINING ACUTE ACCENT}" * (MOST_MARKS + 1) + "ok"
    assert not reads_like_approval(text)
    assert not approves_at_service(text)


@pytest.mark.parametrize("mark", ["\u0301", "\u0f73"])
def test_marks_are_counted_in_a_row(mark: str) -> None:
    most = mark * MOST_MARKS
    assert reads_like_approval(f"{most}ok")
    assert reads_like_approval(f"{most}.{most}ok")
    assert not reads_like_approval(f"{most}{mark}ok")


def test_the_words_stand_in_one_place() -> None:
    package = Path(airflow_crew_provider.__file__).parent
    holders = {path for path in package.rglob("*.py") if _holds_words(path)}
    assert holders == {Path(answers.__file__)}


def _holds_words(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    return any(isinstance(node, ast.Constant) and node.value in ("lgtm", "looks good") for node in ast.walk(tree))
