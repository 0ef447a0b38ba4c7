"""Why an event of Airflow is no answer to a review, and how what others wrote is shown to the next person."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_crew_provider.questions.drafts import JOINER, code, parted
from airflow_crew_provider.review.answer import notice, problem_with

OPTIONS, FIELDS = ("Approve", "Revise"), ("human_feedback", "more")
NO_WORDS = "it requests a revision without saying what to change"
GOOD = {"chosen_options": ["Approve"], "params_input": {"human_feedback": "", "more": 1}}


@pytest.mark.parametrize(
    "event",
    [
        GOOD,
        {"chosen_options": ["Approve"]},
        {"chosen_options": ["Approve"], "params_input": None},
        {"chosen_options": ["Approve"], "params_input": {"human_feedback": None, "more": 1}},
        {"chosen_options": ["Revise"], "params_input": {"human_feedback": "Shorter", "more": 1}},
        {**GOOD, "error_type": "other"},
    ],
)
def test_an_answer(event: Any) -> None:
    assert problem_with(event, OPTIONS, FIELDS, "Revise") is None


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"error_type": "validation", "error": "too long"}, "it does not fit the form: `too long`"),
        ({}, "it chose nothing, but the form has `Approve`, `Revise`"),
        ({"chosen_options": None}, "it chose nothing, but the form has `Approve`, `Revise`"),
        ({"chosen_options": ["Other"]}, "it chose `Other`, but the form has `Approve`, `Revise`"),
        (
            {"chosen_options": ["Approve", "Revise"]},
            "it chose `Approve`, `Revise`, but the form has `Approve`, `Revise`",
        ),
        (
            {"chosen_options": ["Approve"], "params_input": {"other": 1}},
            "its fields are `other`, but the form has `human_feedback`, `more`",
        ),
        (
            {"chosen_options": ["Approve"], "params_input": {"human_feedback": 5, "more": 1}},
            "its field `human_feedback` must be a string",
        ),
        *(
            (
                {"chosen_options": ["Revise"], "params_input": params},
                "it requests a revision without saying what to change",
            )
            for params in ({}, {"human_feedback": None, "more": 1}, {"human_feedback": " \n", "more": 1})
        ),
    ],
)
def test_what_is_no_answer_is_told_why(event: Any, problem: str) -> None:
    assert problem_with(event, OPTIONS, FIELDS, "Revise") == problem


def test_where_no_option_needs_words_none_are_asked_for() -> None:
    assert problem_with({"chosen_options": ["Revise"]}, OPTIONS, FIELDS, None) is None


def test_of_many_names_ten_are_shown() -> None:
    said = problem_with({"chosen_options": [f"{number}" for number in range(11)]}, OPTIONS, FIELDS, None)
    assert said == f"it chose {', '.join(f'`{number}`' for number in range(10))}, but the form has `Approve`, `Revise`"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "`plain`"),
        (5, "`5`"),
        ("two\n  lines", "`two lines`"),
        ("a`b", "`a'b`"),
        ("x" * 101, f"`{'x' * 100}`"),
        ("![a](https://x.example)", f"`!{JOINER}[a](https://x.example)`"),
    ],
)
def test_what_others_wrote_is_shown_as_code_on_one_line(value: Any, shown: str) -> None:
    assert code(value) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("![a](b)", f"!{JOINER}[a](b)"),
        ("<img> </b> <!-- <?x", f"<{JOINER}img> <{JOINER}/b> <{JOINER}!-- <{JOINER}?x"),
        ("[^1]", f"[{JOINER}^1]"),
        ("1 < 2! [a](b) ^", "1 < 2! [a](b) ^"),
    ],
)
def test_no_image_html_or_footnote_begins_in_what_others_wrote(text: str, shown: str) -> None:
    assert parted(text) == shown


@given(st.text("![<a^/?]` \n" + JOINER))
def test_text_that_was_parted_reads_the_same(text: str) -> None:
    assert parted(text).replace(JOINER, "") == text.replace(JOINER, "")
    assert parted(parted(text)) == parted(text)


def test_the_next_question_says_whose_answer_was_not_accepted() -> None:
    said = notice("Ada `x`", "it chose nothing")
    assert said == "The last answer by `Ada 'x'` was not accepted because it chose nothing."
