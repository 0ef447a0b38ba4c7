"""The page that a reviewer reads: everything that was written by others is text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from markdown_it import MarkdownIt

from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.questions import Terms
from airflow_crew_provider.questions.drafts import (
    MOST_PASSAGES,
    SHOWN_CHARACTERS,
    SHOWN_DIFFERENCE,
    difference,
    fenced,
    inert,
)
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.stored_names import REFUSAL

READER = MarkdownIt("commonmark").enable("table")


def question(output: Any = "Draft 1.", **more: Any) -> ReviewForm:
    pending = {"execution_id": "e-1", "crew_task_id": "draft_task", "output": output, **more.pop("pending", {})}
    rounds = {name: more.pop(name) for name in ("round_number", "max_rounds") if name in more}
    return ReviewForm(pending=pending, terms=replace(more.pop("terms", Terms()), **rounds), **more)


def kinds(markdown: str) -> set[str]:
    tokens = READER.parse(markdown)
    return {each.type for token in tokens for each in (token, *(token.children or ()))}


def seen(markdown: str) -> str:
    """Return the text that a browser would show, code included."""
    leaves = [each for token in READER.parse(markdown) for each in (token.children or [token])]
    return "\n".join(each.content for each in leaves if each.content)


@pytest.mark.row("S83")
@pytest.mark.parametrize(
    "name", ["a b.png", "[x](https://evil.example)", "`](https://evil.example) `", "<b>.md", "![x](y)"]
)
@pytest.mark.parametrize(
    "url",
    ["https://crew.example/file?id=1&name=a", "", "https://x/a) ![b](https://evil.example/b", "javascript:alert(1)"],
)
def test_draft_files_are_named_and_link_only_to_the_service(name: str, url: str) -> None:
    file = {"name": name, "version": 1, "size": 12_462, "url": url}
    body = question(pending={"files": [file, {**file, "name": "b"}]}).body
    assert body.count("(12.2 KiB)") == 2
    links = [
        child.attrGet("href")
        for token in READER.parse(body)
        for child in token.children or ()
        if child.type == "link_open"
    ]
    assert links == ([url, url] if url.endswith("name=a") else [])
    words = seen(body).replace("\N{WORD JOINER}", "").replace("`", "'")
    assert all(word in words for word in name.replace("`", "'").split())
    assert kinds(body).isdisjoint({"html_inline", "html_block", "image"})


HOSTILE = [
    "<script>alert(1)</script>",
    "text <img src=x onerror=alert(1)> text",
    "![beacon](https://evil.example/pixel.png)",
    "![beacon][1]\n\n[1]: https://evil.example/pixel.png",
    "<div>\n\n![beacon](https://evil.example/pixel.png)\n\n</div>",
    "| a |\n|---|\n| `x | ![beacon](https://evil.example/pixel.png)` |",
    "a [^1]\n\n[^1]: note\n\n    ![beacon](https://evil.example/pixel.png)",
    "`unclosed ![beacon](https://evil.example/pixel.png)",
    r"\`![beacon](https://evil.example/pixel.png)\`",
    "```\nclosed\n```\n<b>after</b>",
    "    indented\n\n<b>after</b>",
    "<!-- hidden -->\n<b>shown</b>",
    "<https://evil.example>",
    "> <b>quoted</b>\n> ![beacon](https://evil.example/pixel.png)",
]


@pytest.mark.parametrize("draft", HOSTILE)
def test_the_page_loads_and_runs_nothing_in_a_draft(draft: str) -> None:
    assert not kinds(inert(draft)) & {"html_block", "html_inline", "image"}


@pytest.mark.parametrize("draft", ["<script>alert(1)</script>", "text <img src=x onerror=alert(1)> text"])
def test_html_in_a_draft_is_shown_as_it_was_written(draft: str) -> None:
    assert draft in seen(inert(draft)).replace("\n", "")


def test_a_footnote_that_only_github_markdown_knows_hides_no_image() -> None:
    assert "\n\\[^1]: note" in inert("a [^1]\n\n[^1]: note\n\n    ![beacon](https://evil.example/pixel.png)")


def test_code_in_a_draft_is_left_as_it_is() -> None:
    draft = "Use `a < b` and:\n\n```python\nif a < b: print('![x](y)')\n```\n\n    1 < 2"
    assert inert(draft) == draft


def test_markdown_in_a_draft_reads_well() -> None:
    draft = "# Tea\n\n* one\n* two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[source](https://example.com)"
    assert inert(draft) == draft
    assert {"heading_open", "bullet_list_open", "table_open", "link_open"} <= kinds(question(draft).body)


@pytest.mark.parametrize("draft", ["```", "````\n```", "`" * 50, "text ``` text"])
def test_a_fence_is_not_ended_by_what_stands_in_it(draft: str) -> None:
    fence, *others = READER.parse(fenced(draft))
    assert (fence.type, fence.content, others) == ("fence", draft + "\n", [])


UNFINISHED = [
    "```\nnever closed",
    "~~~~\nnever closed\n~~~",
    "* a list\n\n  ```\n  never closed",
    "> > quoted\n> ```",
    "<!-- never closed",
    "<details><summary>x",
    "| a |\n|---|",
    '[a]: https://evil.example "a title',
    "text `code",
    "    code\n\t",
    "1. one\n   * two",
    "text\n---\n\n* **approve**: nothing happens",
]


@pytest.mark.parametrize("draft", [*HOSTILE, *UNFINISHED])
def test_nothing_in_a_draft_hides_or_imitates_the_pages_text(draft: str) -> None:
    own, theirs = [], []
    inside = 0
    for token in READER.parse(question(draft, round_number=3, max_rounds=3).body):
        inside += (token.type == "blockquote_open") - (token.type == "blockquote_close")
        (theirs if inside else own).append((token.type, token.content))
    plain = [(each.type, each.content) for each in READER.parse(question("x", round_number=3, max_rounds=3).body)]
    after = [each for each in own if "draft `" not in each[1]]
    assert after[1:] == [each for each in plain[5:] if "draft `" not in each[1]], "all of it, as it is, outside"
    assert "hr" in [kind for kind, _ in own[:2]]


def test_the_draft_comes_first_and_the_hash_last() -> None:
    body = question("Draft 2.", round_number=2, previous={"is_approve": False, "human_feedback": "Shorter"}).body
    places = ["> Draft 2.", "\n---\n", "**Round 2.**", "> Shorter", "**approve**", "Execution `e-1`, draft `"]
    assert [body.index(each) for each in places] == sorted(body.index(each) for each in places)
    assert body.startswith(places[0])


def test_characters_that_no_database_takes_are_shown_as_unknown() -> None:
    assert question("a\x00b\ud800c").body.startswith("> a\N{REPLACEMENT CHARACTER}b?c\n\n---\n")


def test_an_object_is_shown_as_indented_json() -> None:
    assert '```json\n{\n  "title": "Tée"\n}\n```' in question({"title": "Tée"}).body


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_long_drafts_are_cut_on_the_page_but_hashed_whole(size: int) -> None:
    draft = ("word " * 20 + "\n") * (size // 101)
    asked = question(draft, whole="the XCom `return_value` of task `wait`")
    assert len(asked.body) < SHOWN_CHARACTERS + 2 * asked.body.count("\n") + 2_000
    assert f"first 60,000 of {len(draft):,} characters" in asked.body
    assert "the XCom `return_value` of task `wait`" in asked.body
    assert asked.signs == ["`e-1`", f"`{output_sha256(draft)[:16]}`"]


def test_the_page_names_round_task_agent_execution_and_draft() -> None:
    asked = question(round_number=1, max_rounds=3, pending={"agent": "Writer"})
    assert asked.subject == "Review draft_task by Writer (round 1 of 3)"
    for each in ("Round 1 of 3", "`draft_task`", "`Writer`", "`e-1`", f"`{output_sha256('Draft 1.')[:16]}`"):
        assert each in asked.body


def test_a_uuid_only_task_id_is_not_shown_as_name() -> None:
    asked = question(pending={"crew_task_id": "0b2e8508-ae72-4f6f-9f4f-cb65eed46f4f"})
    assert asked.subject == "Review the crew's text"
    assert "0b2e8508" not in asked.body


def test_the_next_round_shows_what_was_asked_and_by_whom() -> None:
    previous = {
        "is_approve": False,
        "human_feedback": "Shorter,\n<b>please</b>",
        "reviewer": {"id": "7", "name": "Ann"},
    }
    body = question("Draft 2.", round_number=2, max_rounds=3, previous=previous).body
    assert "**Requested in round 1**, by `Ann`:\n\n> Shorter,\n> &lt;b>please&lt;/b>" in body


def test_after_an_approved_gate_the_next_one_says_so() -> None:
    previous = {"is_approve": True, "crew_task_id": "outline_task", "human_feedback": ""}
    assert "In round 1 the draft of `outline_task` was approved." in question(round_number=2, previous=previous).body


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("fail", "this task fails and the execution stays paused"),
        ("approve", "**the draft is approved**, unless somebody has rejected the draft."),
        ({"revise": "Say less."}, "> Say less."),
    ],
)
def test_the_page_says_what_happens_at_the_deadline(policy: Any, sentence: str) -> None:
    body = question(until=datetime(2026, 11, 20, 12, tzinfo=UTC), terms=Terms(on_timeout=policy)).body
    assert "No answer by 2026-11-20 12:00 UTC" in body
    assert sentence in body


OF_FLOW = {"question": "May this go out?", "outcomes": ["approve", "revise"]}


@pytest.mark.parametrize(
    ("pending", "round_number", "is_sent"), [({}, 2, True), ({}, 3, False), (OF_FLOW, 3, True)], ids=str
)
def test_the_page_announces_a_deadline_revision_only_if_sendable(
    pending: Any, round_number: int, is_sent: bool
) -> None:
    rounds = {"round_number": round_number, "max_rounds": 3}
    until, terms = datetime(2026, 11, 20, 12, tzinfo=UTC), Terms(on_timeout={"revise": "Say less."})
    body = question(pending=pending, until=until, terms=terms, **rounds).body
    assert ("> Say less." in body) is is_sent
    assert ("UTC: this task fails and the execution stays paused." in body) is not is_sent


REVISED = {"is_approve": False, "crew_task_id": "draft_task", "human_feedback": "Shorter."}


def changes(before: Any, now: Any, **previous: Any) -> str:
    return question(now, round_number=2, previous={**REVISED, "output": before, **previous}).body


def test_the_second_round_shows_changes_as_a_code_diff() -> None:
    body = changes("Tea is old. It is hot.\n\nThe end.", "Tea is old. It is very hot.\n\nThe end.")
    [block] = [each for each in READER.parse(body) if each.type == "fence"]
    assert block.info == "diff"
    assert block.content.splitlines() == [
        "--- round 1",
        "+++ round 2",
        "@@ -1,3 +1,3 @@",
        " Tea is old.",
        "-It is hot.",
        "+It is very hot.",
        " ",
    ]
    assert body.index("\n\n---\n\n") < body.index("Changes since round 1") < body.index("**approve**")


def test_an_object_is_compared_as_it_is_shown() -> None:
    body = changes({"title": "Tea. Hot.", "words": 10}, {"title": "Tea. Hot.", "words": 9})
    assert '-  "words": 10' in body
    assert '+  "words": 9' in body


def test_the_same_text_again_is_said_to_be_the_same() -> None:
    assert "None: the text is the same." in changes("Draft 1.", "Draft 1.")


@pytest.mark.parametrize(("before", "now"), [("Do not.\nPay now.", "Do not. Pay now."), ("a\u2028b", "a\nb")])
def test_drafts_that_differ_are_never_said_to_be_the_same(before: str, now: str) -> None:
    assert "*Only spaces or line endings differ.*" in changes(before, now)


def test_texts_differing_beyond_the_compared_part_are_not_called_same() -> None:
    shown = difference("Clause. " * 8_000 + "Price: 10.", "Clause. " * 8_000 + "Price: 10,000.", ("round 1", "round 2"))
    assert "within the first 60,000 characters" in shown
    assert "same" not in shown
    line = "lorem ipsum " * 5_200
    assert "within the first 60,000 characters" in difference(line + "10.", line + "10,000.", ("round 1", "round 2"))


def test_a_draft_is_compared_only_within_the_same_task() -> None:
    assert "Changes since" not in changes("Outline.", "Draft.", is_approve=True, crew_task_id="outline_task")
    assert "Changes since" in changes("Outline.", "Draft.", is_approve=None, crew_task_id="draft_task")
    # Live deployments give each question a task id of its own.
    assert "Changes since" in changes("Outline.", "Draft.", crew_task_id="another")
    assert "Changes since" not in question("Draft.", round_number=2, previous=REVISED).body


@pytest.mark.parametrize("draft", [*HOSTILE, "```\n~~~\n````\n![beacon](https://evil.example/pixel.png)"])
def test_nothing_in_the_difference_is_loaded_or_run(draft: str) -> None:
    shown = difference(draft, "The end.", ("round 1", "round 2"))
    assert kinds(shown) == {"fence"}
    assert kinds(difference("The end.", draft, ("round 1", "round 2"))) == {"fence"}


def test_a_long_difference_is_cut_and_says_so() -> None:
    shown = difference("a" * 50_000, "b" * 50_000, ("round 1", "round 2"))
    assert len(shown) < SHOWN_DIFFERENCE + 200
    assert "Only the first 10,000 of 100,0" in shown
    [block] = [each for each in READER.parse(shown) if each.type == "fence"]
    assert "are shown" not in block.content


def test_the_page_says_when_only_the_first_lines_are_compared() -> None:
    many = "\n".join(str(each) for each in range(MOST_PASSAGES + 1))
    shown = difference(many, many + "!", ("round 1", "round 2"))
    assert shown == (
        "*Only the first 1,000 sentences and lines, within the first 60,000 characters, of each draft were compared.*"
    )


# --- each paragraph, word by word ---

ANN = {"id": "7", "name": "Ann"}


def paragraphs(**given: Any) -> list[str]:
    """Return the paragraphs of a page between the opening and the choices."""
    _, _, after = question(**given).body.partition("is waiting for your answer.\n\n")
    return [each for each in after.split("\n\n* **approve**")[0].split("\n\n") if not each.startswith("Execution ")]


@pytest.mark.parametrize(
    ("previous", "said"),
    [
        ({"is_approve": False, "human_feedback": "No.", "reviewer": ANN}, "**Requested in round 1**, by `Ann`:"),
        (
            {"is_approve": False, "human_feedback": "No.", "reviewer": {"name": "A" * 201}},
            f"**Requested in round 1**, by `{'A' * 200}`:",
        ),
        ({"is_approve": False, "human_feedback": "No.", "reviewer": {"id": "7"}}, "**Requested in round 1**, by `7`:"),
        ({"is_approve": False, "human_feedback": "No."}, "**Requested in round 1**, at the deadline:"),
    ],
    ids=["name", "long name", "id", "deadline"],
)
def test_the_next_round_says_who_asked_for_more(previous: dict[str, Any], said: str) -> None:
    assert paragraphs(round_number=2, previous=previous) == [said, "> No."]


EDIT = {
    "is_approve": True,
    "crew_task_id": "draft_task",
    "edited_output": "Mine.",
    "human_feedback": "",
    "reviewer": ANN,
}
NOT_APPLIED = (
    "**Edited in round 1**, by `Ann`, but not applied, because the draft had changed in the meantime. The edited text "
    "was:"
)


@pytest.mark.parametrize(
    ("previous", "said"),
    [
        (EDIT, [NOT_APPLIED, "> Mine."]),
        (
            {**EDIT, REFUSAL: "Too long."},
            ["**Edited in round 1**, by `Ann`, but not applied:", "> Too long.", "The edited text was:", "> Mine."],
        ),
        ({**EDIT, "crew_task_id": "other"}, ["In round 1 the draft of `other` was approved."]),
        ({**EDIT, "edited_output": None}, ["In round 1 the draft of `draft_task` was approved."]),
    ],
    ids=["same task", "refused", "other task", "no edit"],
)
def test_the_next_round_shows_an_edit_of_its_task(previous: dict[str, Any], said: list[str]) -> None:
    assert paragraphs(round_number=2, previous=previous) == said


def test_the_next_round_says_why_an_answer_changed_nothing() -> None:
    said = paragraphs(round_number=2, previous={"human_feedback": "No.", "reviewer": ANN, REFUSAL: "Too late."})
    assert said == ["**Requested in round 1**, by `Ann`:", "> No.", "This answer changed nothing:", "> Too late."]


def test_a_page_without_rounds_compares_with_now() -> None:
    body = question("Draft 2.", previous={**REVISED, "output": "Draft 1."}).body
    assert "**Changes since the previous round:**\n\n```diff\n--- the previous round\n+++ now\n" in body


def test_an_earlier_question_in_the_middle_is_no_draft() -> None:
    assert "Changes since" not in changes("Text.", "Draft.", ask={"kind": "question"}, outcome="answer")


def test_the_page_tells_how_a_draft_breaks_its_schema() -> None:
    said = "**The draft does not match the output schema.** If you approve it as is, the run fails. Violations:"
    shown = f"> Draft 1.\n\n---\n\n{said}\n\n> a: &lt;b>\n\nTask `draft_task` produced"
    assert question(pending={"violations": "a: <b>"}).body.startswith(shown)


def test_the_page_lists_the_files_with_their_sizes() -> None:
    first = {"name": "a", "size": 1, "url": "https://crew.example/a"}
    assert paragraphs(pending={"files": [first, {"name": "b", "size": 2048}]}) == [
        "**Files:** [a](https://crew.example/a) (1 byte), `b` (2.0 KiB)"
    ]


@pytest.mark.parametrize(("url", "shown"), [("https://crew.example/a", "[{}](https://crew.example/a)"), ("", "`{}`")])
def test_long_names_of_files_and_executions_are_cut(url: str, shown: str) -> None:
    file = {"name": "a" * 201, "size": 1, "url": url}
    asked = question(pending={"execution_id": "e" * 201, "files": [file]})
    assert f"**Files:** {shown.format('a' * 200)} (1 byte)" in asked.body
    assert f"\n\nExecution `{'e' * 200}`, draft `" in asked.body


def test_a_page_without_a_deadline_names_none() -> None:
    assert "No answer by" not in question().body


@pytest.mark.parametrize(("size", "is_cut"), [(SHOWN_CHARACTERS, False), (SHOWN_CHARACTERS + 1, True)])
def test_only_a_longer_draft_is_said_to_be_cut(size: int, is_cut: bool) -> None:
    assert ("**Only the first 60,000 of " in question("x" * size).body) is is_cut


@pytest.mark.parametrize(("hour", "lines"), [(None, 1), (12, 1), (11, 2)])
def test_a_deadline_of_the_service_is_named_once(hour: int | None, lines: int) -> None:
    until = datetime(2026, 11, 20, 12, tzinfo=UTC)
    ask = {"kind": "question", "deadline": until.isoformat(), "metadata": None}
    asked = question(pending={"ask": ask, "crew_task_id": "ask#1"}, until=hour and until.replace(hour=hour))
    assert asked.body.count("* No answer by 2026-11-20 ") == lines
