"""A draft as text: its shown form, its size, its edits, and how two drafts differ."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from airflow_crew_provider.models import Json
from airflow_crew_provider.questions.drafts import (
    JOINER,
    MOST_PASSAGES,
    SHOWN_CHARACTERS,
    SHOWN_DIFFERENCE,
    SHOWN_FEEDBACK,
    as_text,
    code,
    difference,
    draft_in,
    edit_problem,
    escaped,
    fenced,
    in_quotation,
    inert,
    is_edit,
    quoted,
    readable_size,
    text_of,
    with_text_of_edit,
)

NAMES = ("round 1", "round 2")


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1,024.0 KiB"),
        (1024**2, "1.0 MiB"),
        (1024**3, "1.0 GiB"),
        (5000 * 1024**3, "5,000.0 GiB"),
    ],
)
def test_a_size_is_shown_in_binary_units(count: int, shown: str) -> None:
    assert readable_size(count) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, ""),
        ("", ""),
        ("é", "é"),
        (0, "0"),
        ({"a": "é"}, '{"a": "é"}'),
        ([1, date(2026, 11, 20)], '[1, "2026-11-20"]'),
        ((1,), "[1]"),
        (date(2026, 11, 20), "2026-11-20"),
    ],
    ids=repr,
)
def test_whatever_a_dag_gives_is_shown_as_text(given: Any, shown: str) -> None:
    assert as_text(given) == shown


def test_a_draft_is_shown_as_text_or_indented_json() -> None:
    assert text_of({"a": ["é"]}) == '{\n  "a": [\n    "é"\n  ]\n}'
    assert text_of("a\x00b\ud800") == "a\N{REPLACEMENT CHARACTER}b?"


def test_code_is_cut_to_one_short_line() -> None:
    assert code("a  b\n`c`") == "`a b 'c'`"
    assert code("x" * 101) == f"`{'x' * 100}`"
    assert code("x" * 9, 5) == "`xxxxx`"
    assert code("![a]<b>") == f"`!{JOINER}[a]<{JOINER}b>`"


def test_plain_text_is_escaped_and_cut() -> None:
    assert escaped("a  [b](c)!") == r"a \[b\]\(c\)\!"
    assert escaped("x" * 101) == "x" * 100
    assert escaped("x" * 9, 5) == "xxxxx"
    assert escaped("1/2: a@b {c} `d` ~") == r"1\/2\: a\@b \{c\} \`d\` \~"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "> a\n> b"),
        ("x" * SHOWN_FEEDBACK, f"> {'x' * SHOWN_FEEDBACK}"),
        ("x" * (SHOWN_FEEDBACK + 1), f"> {'x' * SHOWN_FEEDBACK} …"),
    ],
    ids=["short", "just short enough", "long"],
)
def test_the_beginning_of_a_text_is_quoted(text: str, shown: str) -> None:
    assert quoted(text) == shown


def test_all_of_a_text_is_quoted_if_wanted() -> None:
    assert in_quotation("x" * (SHOWN_FEEDBACK + 1)) == "> " + "x" * (SHOWN_FEEDBACK + 1)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("a", "```text\na\n```"),
        ("a ` b", "```text\na ` b\n```"),
        ("``", "```text\n``\n```"),
        ("```", "````text\n```\n````"),
        ("`````x", "``````text\n`````x\n``````"),
    ],
)
def test_a_block_of_code_has_a_longer_fence(text: str, block: str) -> None:
    assert fenced(text) == block


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\nb\rc\nd", "a\nb\nc\nd"),
        ("a <b>", "a &lt;b>"),
        ("a ![b](c)", f"a !{JOINER}[b](c)"),
        ("a[^1]", r"a\[^1]"),
        ("`<b>` <b>", f"`<{JOINER}b>` &lt;b>"),
        ("`` ` <b> `` <c>", f"`` ` <{JOINER}b> `` &lt;c>"),
        (r"\`<b>`", r"\`&lt;b>`"),
        ("`a\n<b>`", f"`a\n<{JOINER}b>`"),
        ("`a\n\n<b>`", "`a\n\n&lt;b>`"),
        # A block of code at the margin, after an empty line, is left as it is.
        ("```\n<b>\n```\n<c>", "```\n<b>\n```\n&lt;c>"),
        ("~~~ html\n<b>\n```\n~~~~ \t\n<c>", "~~~ html\n<b>\n```\n~~~~ \t\n&lt;c>"),
        ("a\n\n```\n<b>", "a\n\n```\n<b>"),
        ("```\n<b>\n   ```\n<c>", "```\n<b>\n   ```\n&lt;c>"),
        ("```\n<b>\n    ```\n<c>", "```\n<b>\n    ```\n<c>"),
        ("````\n<b>\n```\n<c>", "````\n<b>\n```\n<c>"),
        ("```\n<b>\n``` x\n<c>", "```\n<b>\n``` x\n<c>"),
        # What only some parsers take for code is changed without a visible sign.
        ("a\n```\n<b>\n```", f"a\n```\n<{JOINER}b>\n```"),
        ("* a\n\n  ~~~\n  <b>\n  ~~~", f"* a\n\n  ~~~\n  <{JOINER}b>\n  ~~~"),
        ("a\n\n    <b>", f"a\n\n    <{JOINER}b>"),
        ("x ``` y\n\n```\n<b>\n```", f"x ``` y\n\n```\n<{JOINER}b>\n```"),
    ],
)
def test_a_draft_starts_no_html_image_or_footnote(text: str, shown: str) -> None:
    assert inert(text) == shown


# --- differences ---


def test_sentences_that_differ_are_shown_with_one_around() -> None:
    before, after = "One. Two! Three? Four.\n  Kept. As is.", "One. Two! 3? Four.\n  Kept. As is."
    assert difference(before, after, NAMES) == (
        "```diff\n--- round 1\n+++ round 2\n@@ -2,3 +2,3 @@\n Two!\n-Three?\n+3?\n Four.\n```"
    )


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a", "a", "*None: the text is the same.*"),
        ({"a": 1}, '{\n  "a": 1\n}', "*None: the text is the same.*"),
        ("A. B.", "A.  B.", "*Only spaces or line endings differ.*"),
        ("A.\nB.", "A.\r\nB.", "*Only spaces or line endings differ.*"),
    ],
)
def test_drafts_that_read_alike_are_told_apart(before: Any, after: Any, said: str) -> None:
    assert difference(before, after, NAMES) == said


@pytest.mark.parametrize("indent", [" ", "    ", "\t"])
def test_an_indented_line_is_one_passage(indent: str) -> None:
    assert f"-{indent}A. B.\n+{indent}A.  B." in difference(f"{indent}A. B.", f"{indent}A.  B.", NAMES)


PARTS = (
    f"*Only the first {MOST_PASSAGES:,} sentences and lines, within the first {SHOWN_CHARACTERS:,} characters, of each "
    "draft were compared.*"
)


@pytest.mark.parametrize("number", [MOST_PASSAGES, MOST_PASSAGES + 1])
def test_the_first_passages_are_compared(number: int) -> None:
    lines = "\n".join("x" * number)
    for before, after in ((lines + "\ny", lines), (lines, lines + "\ny")):
        shown = difference(before, after, NAMES)
        assert shown.endswith(PARTS)
        assert ("\n-y" in shown or "\n+y" in shown) is False
    one_less = "\n".join("x" * (MOST_PASSAGES - 1))
    assert PARTS not in difference(one_less + "\ny", one_less, NAMES)


@pytest.mark.parametrize(("more", "is_whole"), [("", True), ("x", False)])
def test_the_first_characters_are_compared(more: str, is_whole: bool) -> None:
    long = "x" * (SHOWN_CHARACTERS - 1)
    for drafts in ((f"{long}a{more}", "b"), ("b", f"{long}a{more}")):
        assert difference(*drafts, NAMES).endswith(PARTS) is not is_whole


def test_a_long_difference_says_how_much_is_shown() -> None:
    cut = "*Only the first 10,000 of {:,} characters of the difference are shown.*"
    around = len("--- round 1\n+++ round 2\n@@ -1 +1 @@\n-b\n+")
    whole = difference("b", "a" * (SHOWN_DIFFERENCE - around), NAMES)
    assert whole == f"```diff\n--- round 1\n+++ round 2\n@@ -1 +1 @@\n-b\n+{'a' * (SHOWN_DIFFERENCE - around)}\n```"
    longer = difference("b", "a" * (SHOWN_DIFFERENCE - around + 1), NAMES)
    assert longer == whole + "\n\n" + cut.format(SHOWN_DIFFERENCE + 1)


# --- edits ---


@pytest.mark.parametrize(
    ("params", "draft"),
    [
        (None, None),
        ({}, None),
        ({"edited_draft": "Text."}, "Text."),
        ({"edited_draft": {"value": "Text."}}, "Text."),
        ({"edited_draft": {}}, None),
    ],
    ids=repr,
)
def test_the_field_of_a_form_has_the_first_draft(params: Json | None, draft: Any) -> None:
    assert draft_in(params) == draft


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"edited_draft": "a\r\nb\rc"}, "a\nb\nc"),
        ({"edited_draft": None}, ""),
        ({"edited_draft": {"a": "é"}}, '{\n  "a": "é"\n}'),
        ({"edited_draft": 7}, 7),
        ({"human_feedback": "Ok"}, "Text."),
    ],
    ids=repr,
)
def test_an_edit_comes_as_a_text(given: Json, text: Any) -> None:
    answer = {"chosen_options": ["approve"], "params_input": given}
    assert with_text_of_edit(answer, "Text.") == {**answer, "params_input": {**given, "edited_draft": text}}


@pytest.mark.parametrize(
    ("answer", "draft"),
    [
        ({"params_input": {"edited_draft": None}}, None),
        ({"params_input": {}}, "Text."),
        ({"params_input": None}, "Text."),
        ({}, "Text."),
    ],
    ids=repr,
)
def test_an_answer_without_an_edit_stays_as_it_is(answer: Json, draft: str | None) -> None:
    assert with_text_of_edit(answer, draft) is answer


@pytest.mark.parametrize(
    ("draft", "left", "differs"),
    [
        ("Text.", " Text.\n", False),
        (" a\r\nb ", "a\nb", False),
        ("Text.", "Text!", True),
        ('{"a": 1}', '{ "a" : 1 }', False),
        ('{"a": 1}', '{"a": true}', True),
        ("Text.", '{"a": 1}', True),
        ('{"a": 1}', "Text.", True),
    ],
)
def test_an_edit_is_more_than_white_space(draft: str, left: str, differs: bool) -> None:
    assert is_edit(draft, left) is differs


@pytest.mark.parametrize(
    ("draft", "edited", "problem"),
    [
        ("Text.", "Mine.", None),
        ("Text.", " \n", "the edited draft is empty"),
        ('{"a": 1}', "Mine.", "the draft is a JSON object, but the edited one is not"),
        ('{"a": 1}', '{"a": 2}', None),
        ("Text.", '{"a": 2}', None),
    ],
)
def test_an_edit_must_be_what_the_draft_is(draft: str, edited: str, problem: str | None) -> None:
    assert edit_problem(draft, edited) == problem
