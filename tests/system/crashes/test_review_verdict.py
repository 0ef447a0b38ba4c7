"""The verdict on reviews finds each kind of harm: a count of 0 that cannot be another number proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from review_verdict import Call, Decided, Verdict
from reviewer import Given

MORE = "more of 1 in round 1"
REVISED = f"Draft 2 on tea, {MORE}"


def detail(number: int, body: str, option: str, feedback: str = "") -> dict[str, Any]:
    return {
        "task_instance": {"dag_run_id": "run", "task_id": f"crew.round_{number}.review", "map_index": -1},
        "body": f"The headline\n\n> {body}\n\nThe instructions",
        "chosen_options": [option],
        "params_input": {"human_feedback": feedback},
    }


FIRST, SECOND = detail(1, "Draft 1 on tea", "revise", MORE), detail(2, REVISED, "approve")


@pytest.mark.parametrize(
    ("details", "output", "problems"),
    [
        ([FIRST, SECOND], REVISED, set()),
        ([SECOND, FIRST], REVISED, set()),
        ([FIRST, SECOND], f"Draft 3 on tea, {MORE}", {"doubled"}),
        ([FIRST, SECOND], "Draft 1 on tea", {"lost", "wrong_draft"}),
        ([FIRST, detail(2, "Draft 1 on tea", "approve")], REVISED, {"wrong_draft"}),
        ([FIRST, SECOND], "Draft 2 on tea, something else", {"wrong_draft"}),
        ([FIRST], REVISED, {"wrong_draft"}),
        ([], "Draft 1 on tea", {"wrong_draft"}),
    ],
)
def test_answers_are_compared_with_what_the_crew_made_of_them(
    details: list[dict[str, Any]], output: str, problems: set[str]
) -> None:
    verdict = Verdict()
    verdict.judge_execution("tea", details, output)
    assert set(verdict.problems) == problems


def given(option: str, feedback: str = "") -> Given:
    return Given(("run", "crew.round_1.review", -1), option, feedback, "running")


@pytest.mark.parametrize(
    ("answers", "held", "wiped"),
    [
        ([given("revise", MORE)], FIRST, 0),
        ([given("approve")], FIRST, 1),
        ([given("revise", MORE)], None, 1),
        ([given("approve"), given("revise", MORE)], FIRST, 1),
    ],
)
def test_an_answer_airflow_lacks_or_asks_for_again_was_wiped(
    answers: list[Given], held: dict[str, Any] | None, wiped: int
) -> None:
    verdict = Verdict()
    verdict.judge_questions({answers[0].question: held} if held else {}, answers)
    assert (verdict.answers, len(verdict.wiped)) == (1, wiped)


def call_detail(number: int, subject: str, option: str, feedback: str = "") -> dict[str, Any]:
    return {**detail(number, "", option, feedback), "body": f'Approve it:\n\n    "for": "{subject}"'}


def decided(subject: str, outcome: str, feedback: str = "") -> Decided:
    return Decided({"arguments": {"for": subject}}, "May it run?", outcome, feedback)


def paid(subject: str, result: str = "paid", state: str = "done") -> Call:
    return Call("pay", {"for": subject}, state, result)


APPROVED, DENIED = call_detail(1, "tea", "approve"), call_detail(2, "milk", "deny", "no")
AGAIN = call_detail(2, "tea", "run_again")


@pytest.mark.parametrize(
    ("details", "decisions", "calls", "problems"),
    [
        (
            [DENIED, APPROVED],
            [decided("tea", "approve", "Approved."), decided("milk", "deny", "no")],
            [paid("tea"), paid("milk", "Reason: no")],
            set(),
        ),
        ([APPROVED, AGAIN], [decided("tea", "approve"), decided("tea", "run_again")], [paid("tea")], set()),
        ([APPROVED], [decided("tea", "approve")], [paid("tea"), paid("tea")], {"wrong_draft"}),
        ([APPROVED], [decided("tea", "approve")], [paid("tea", state="unknown")], {"wrong_draft"}),
        ([APPROVED], [decided("tea", "deny", "no")], [paid("tea", "Reason: no")], {"lost"}),
        ([DENIED], [decided("milk", "deny", "no")], [paid("milk")], {"wrong_draft"}),
        ([DENIED], [decided("milk", "deny", "later")], [paid("milk", "Reason: later")], {"lost"}),
        ([APPROVED], [decided("milk", "approve")], [paid("milk")], {"wrong_draft"}),
        ([APPROVED, AGAIN], [decided("tea", "approve")], [paid("tea")], {"lost"}),
        ([APPROVED], [decided("tea", "approve")] * 2, [paid("tea")], {"doubled"}),
    ],
)
def test_mid_task_answers_are_compared_with_decisions_and_calls(
    details: list[dict[str, Any]], decisions: list[Decided], calls: list[Call], problems: set[str]
) -> None:
    verdict = Verdict()
    verdict.judge_questions_in_the_middle("tea", details, decisions, calls)
    assert set(verdict.problems) == problems
