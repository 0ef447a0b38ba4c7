"""What each kind of question makes of choices, deadlines, edits, several people and the previous round."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.questions import Question, Terms, answered_in, question_in
from airflow_crew_provider.questions.drafts import SHOWN_CHARACTERS, SHOWN_FEEDBACK
from airflow_crew_provider.questions.kinds import (
    KINDS_IN_THE_MIDDLE,
    AgentQuestion,
    Draft,
    FlowQuestion,
    MethodQuestion,
    ToolCall,
    UnknownOutcome,
    Unreadable,
    asked_in,
    question_of,
)

DEADLINE = datetime(2026, 11, 20, 12, tzinfo=UTC)
TOOL = {"kind": "tool", "agent": "Ann", "tool": "pay", "arguments": {"sum": 1}, "number": 1}
DRAFT: Json = {"execution_id": "e-1", "crew_task_id": "draft", "output": "Text."}
FLOW: Json = {**DRAFT, "question": "Good?"}
IN_THE_MIDDLE: Json = {**DRAFT, "crew_task_id": "draft#1", "question": "Now?"}
KINDS: dict[str, Json] = {
    "draft": DRAFT,
    "outcomes": {**FLOW, "outcomes": ["approve", "rework"]},
    "three outcomes": {**FLOW, "outcomes": ["print", "rework", "drop"]},
    "text": {**FLOW, "outcomes": []},
    "tool": {**IN_THE_MIDDLE, "ask": TOOL},
    "question": {**IN_THE_MIDDLE, "ask": {**TOOL, "kind": "question", "tool": None}},
    "method": {**IN_THE_MIDDLE, "ask": {**TOOL, "kind": "question", "deadline": DEADLINE.isoformat()}},
    "method without a deadline": {**IN_THE_MIDDLE, "ask": {**TOOL, "kind": "question", "metadata": {"b": 1, "a": "é"}}},
    "unknown outcome": {**IN_THE_MIDDLE, "ask": {**TOOL, "kind": "unknown_outcome"}},
}


def of(kind: str, **more: Any) -> Question:
    return question_in({**KINDS[kind], **more})


# --- which kind it is ---


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (DRAFT, Draft),
        ({}, Draft),
        ({"outcomes": []}, Draft),
        ({"question": ""}, FlowQuestion),
        ({"outcomes": ["a"]}, FlowQuestion),
        (KINDS["tool"], ToolCall),
        (KINDS["question"], AgentQuestion),
        (KINDS["method"], MethodQuestion),
        (KINDS["method without a deadline"], MethodQuestion),
        ({"ask": {**TOOL, "metadata": {}}}, ToolCall),
        (KINDS["unknown outcome"], UnknownOutcome),
        ({"ask": {"kind": "song"}}, Unreadable),
        ({"ask": "?", "question": "Good?"}, Unreadable),
    ],
    ids=str,
)
def test_a_record_has_the_kind_that_its_fields_name(record: Json, kind: type[Question]) -> None:
    found = question_in(record)
    assert type(found) is kind
    assert found.shown == record


def test_kinds_in_the_middle_are_found_by_name() -> None:
    found = {"tool": ToolCall, "question": AgentQuestion, "unknown_outcome": UnknownOutcome, "unreadable": Unreadable}
    assert found == KINDS_IN_THE_MIDDLE


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, Draft),
        ({"ask": TOOL}, ToolCall),
        ({"question": "Good?"}, FlowQuestion),
        ({"outcomes": ["a", "b"]}, FlowQuestion),
    ],
    ids=str,
)
def test_an_execution_has_the_kind_of_its_question(more: Json, kind: type[Question]) -> None:
    seen = Execution(kickoff_id="k-1", state=ExecutionState.PENDING, raw_state="pending", **more)
    found = question_of(seen)
    assert type(found) is kind
    assert {name: value for name, value in found.shown.items() if value} == more


@pytest.mark.parametrize(
    ("review", "kind"),
    [
        ({"is_approve": True}, Draft),
        ({"is_approve": None, "outcome": None}, FlowQuestion),
        ({"is_approve": True, "outcome": "approve", "ask": TOOL}, ToolCall),
        ({"question": "Good?", "outcome": "print"}, FlowQuestion),
    ],
    ids=str,
)
def test_a_review_names_the_kind_that_it_answered(review: Json, kind: type[Question]) -> None:
    found = answered_in(review)
    assert (type(found), found.shown) == (kind, review)


def test_only_fields_of_a_question_are_kept_with_it() -> None:
    fields = {"question": "Good?", "outcomes": [], "flow_id": "f", "ask": TOOL}
    assert asked_in({**DRAFT, **fields}) == fields
    assert asked_in({**DRAFT, **dict.fromkeys(fields)}) == {}
    assert asked_in(DRAFT) == {}


# --- the choices ---

# Of each kind: its choices with their meanings, the one that approves, and the one that needs a text.
CHOICES: dict[str, tuple[dict[str, Json], list[str] | None, str | None]] = {
    "draft": ({"yes": {"is_approve": True}, "no": {"is_approve": False}}, ["yes"], "no"),
    "text": (
        {"yes": {"is_approve": True, "outcome": None}, "no": {"is_approve": False, "outcome": None}},
        ["yes"],
        "no",
    ),
    "outcomes": (
        {
            "approve": {"is_approve": True, "outcome": "approve"},
            "rework": {"is_approve": False, "outcome": "rework"},
        },
        ["approve"],
        None,
    ),
    "three outcomes": (
        {each: {"is_approve": None, "outcome": each} for each in ("print", "rework", "drop")},
        None,
        None,
    ),
    "tool": (
        {"approve": {"is_approve": True, "outcome": "approve"}, "deny": {"is_approve": False, "outcome": "deny"}},
        ["approve"],
        None,
    ),
    "question": ({"answer": {"is_approve": True, "outcome": "answer"}}, None, "answer"),
    "method": ({"answer": {"is_approve": True, "outcome": "answer"}}, None, "answer"),
    "unknown outcome": (
        {
            "done": {"is_approve": True, "outcome": "done"},
            "run_again": {"is_approve": True, "outcome": "run_again"},
            "fail": {"is_approve": False, "outcome": "fail"},
        },
        None,
        None,
    ),
}
WORDS = Terms(words=("yes", "no"))
LAST = Terms(words=("yes", "no"), round_number=2, max_rounds=2)


@pytest.mark.parametrize("kind", CHOICES)
def test_each_choice_of_a_kind_has_its_meaning(kind: str) -> None:
    meanings, approving, needs_text = CHOICES[kind]
    asked = of(kind)
    assert asked.choices(WORDS) == [*meanings]
    assert {each: asked.meaning(each, WORDS) for each in meanings} == meanings
    assert asked.approving(WORDS) == approving
    assert asked.needs_text(WORDS) == needs_text


def test_nobodys_answer_is_neither_an_approval_nor_a_rejection() -> None:
    assert of("method").meaning("expired", WORDS) == {"is_approve": None, "outcome": "expired"}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("tool", {"characters": SHOWN_CHARACTERS + 1}),
        ("tool", {"ask": {**TOOL, "arguments": None}}),
        ("tool", {"ask": {**TOOL, "tool": None}}),
        ("unknown outcome", {"characters": SHOWN_CHARACTERS + 1}),
    ],
)
def test_a_call_that_is_not_shown_whole_cannot_run(kind: str, more: Json) -> None:
    whole = of(kind).choices(WORDS)
    assert of(kind, **more).choices(WORDS) == [each for each in whole if each not in ("approve", "run_again")]
    assert of(kind, characters=SHOWN_CHARACTERS).choices(WORDS) == whole


AGAIN = (
    "the task runs again. Use *Feedback* to say what to change; a revision without feedback is not accepted, and you "
    "are asked again."
)
DENIED = "* **deny**: the tool does not run. The agent reads your *Feedback* as the reason, and continues."


@pytest.mark.parametrize(
    ("kind", "more", "lines"),
    [
        ("draft", {}, ["* **yes**: the crew continues with this draft.", f"* **no**: {AGAIN}"]),
        (
            "draft",
            {"dialect": "live"},
            ["* **yes**: the crew continues with this draft. It does not read your *Feedback*.", f"* **no**: {AGAIN}"],
        ),
        (
            "three outcomes",
            {},
            ["* `print`, `rework` or `drop`: the Flow continues with your choice. Your *Feedback* is sent with it."],
        ),
        (
            "three outcomes",
            {"outcomes": ["drop"]},
            ["* `drop`: the Flow continues with your choice. Your *Feedback* is sent with it."],
        ),
        (
            "text",
            {"dialect": "live"},
            [
                "* **yes**: the Flow continues with your *Feedback*, or with `Approved.` if you enter none.",
                "* **no**: the Flow continues with your *Feedback*, and decides what to do next. Feedback is required.",
            ],
        ),
        (
            "tool",
            {},
            [
                "* **approve**: the tool runs with these arguments, or with those under *Arguments*, a JSON object.",
                DENIED,
            ],
        ),
        (
            "method",
            {},
            [
                "* **answer**: the Flow reads your *Feedback*. An empty answer is not accepted, and you are asked "
                "again.",
                "* No answer by 2026-11-20 12:00:00 UTC: the Flow continues without one.",
            ],
        ),
        (
            "method without a deadline",
            {},
            ["* **answer**: the Flow reads your *Feedback*. An empty answer is not accepted, and you are asked again."],
        ),
    ],
)
def test_each_choice_says_what_it_does(kind: str, more: Json, lines: list[str]) -> None:
    assert of(kind, **more).effects(WORDS) == lines


def test_arguments_that_several_must_approve_are_not_edited() -> None:
    terms = Terms(approvals=2)
    assert of("tool").effects(terms) == ["* **approve**: the tool runs with these arguments.", DENIED]


def test_a_last_round_keeps_the_line_about_the_deadline() -> None:
    *_, last, deadline = of("method").effects(LAST)
    assert last == (
        "* **This is the last round**: if the Flow asks again, this run fails and the execution stays paused."
    )
    assert deadline == "* No answer by 2026-11-20 12:00:00 UTC: the Flow continues without one."


@pytest.mark.parametrize(
    ("more", "notes"),
    [
        ({}, ["**The question:**\n\n> Now?"]),
        ({"output": "Now? Yes."}, []),
        ({"question": None}, []),
        ({"ask": {**TOOL, "earlier_calls": 0}}, ["**The question:**\n\n> Now?"]),
        (
            {"ask": {**TOOL, "earlier_calls": 2}, "question": None},
            [
                "The crew continues in a new process: what 2 earlier tool calls of this task kept in memory, such as a "
                "login, is lost."
            ],
        ),
    ],
    ids=str,
)
def test_notes_on_a_call_tell_what_its_text_omits(more: Json, notes: list[str]) -> None:
    assert [*of("tool", **more).notes()] == notes


def test_what_a_method_adds_is_shown_in_order() -> None:
    assert [*of("method without a deadline", question="").notes()] == [
        'What the Flow adds to the question:\n\n```json\n{\n  "a": "é",\n  "b": 1\n}\n```'
    ]
    assert [*of("method", question="").notes()] == []
    assert [*of("text").notes()] == ["**The question:**\n\n> Good?"]
    assert [*of("outcomes", question=None).notes()] == []


@pytest.mark.parametrize(
    ("ask", "summary"),
    [
        (TOOL, "the agent Ann needs approval to run the tool pay"),
        ({**TOOL, "agent": None, "tool": None}, "an agent needs approval to run a tool"),
        ({**TOOL, "kind": "song"}, "the question cannot be read"),
    ],
)
def test_a_question_in_the_middle_is_told_in_few_words(ask: Json, summary: str) -> None:
    assert of("tool", ask=ask).summary == summary


# --- several people ---


@pytest.mark.parametrize(
    ("kind", "needed", "said"),
    [
        (
            "draft",
            {"yes": 3, "no": 1},
            "* **3 different people** must approve; a revision request from any of them is enough.",
        ),
        (
            "outcomes",
            {"approve": 3, "rework": 1},
            "* **3 different people** must approve; a revision request from any of them is enough.",
        ),
        (
            "tool",
            {"approve": 3, "deny": 1},
            "* **3 different people** must approve; any other answer from any of them is enough.",
        ),
        ("question", {"answer": 1}, ""),
        (
            "unknown outcome",
            {"done": 1, "run_again": 3, "fail": 1},
            "* **3 different people** must choose **run_again**; any other answer from any of them is enough.",
        ),
    ],
)
def test_only_a_choice_that_approves_needs_several_people(kind: str, needed: dict[str, int], said: str) -> None:
    terms, asked = Terms(words=("yes", "no"), approvals=3), of(kind)
    assert {each: asked.needed(asked.meaning(each, terms), terms) for each in asked.choices(terms)} == needed
    assert asked.several_needed(terms) == said
    assert asked.several_needed(Terms()) == ""


def test_a_question_without_choices_needs_one_person() -> None:
    assert of("tool", ask={"kind": "song"}).several_needed(Terms(approvals=3)) == ""


def test_two_people_are_several() -> None:
    assert of("draft").several_needed(Terms(approvals=2)).startswith("* **2 different people**")


@pytest.mark.parametrize(
    ("kind", "approvals"),
    [("three outcomes", 1), ("outcomes", 2), ("text", 2), ("draft", 2), ("tool", 2), ("question", 2)],
)
def test_several_approvals_may_be_required_where_a_choice_approves(kind: str, approvals: int) -> None:
    of(kind).refuse_approvals(approvals)


@pytest.mark.parametrize(("outcomes", "shown"), [(["print", "rework", "drop"], "print, rework, drop"), (["ok"], "ok")])
def test_several_approvals_of_unclear_outcomes_are_refused(outcomes: list[str], shown: str) -> None:
    with pytest.raises(CrewInvalidInput) as refused:
        of("outcomes", outcomes=outcomes).refuse_approvals(2)
    assert str(refused.value) == (
        f"2 approvals are required, but the outcomes of the Flow ({shown}) are not an approving and a revising one; "
        "nobody was asked and nothing was sent"
    )


# --- the deadline ---

FAILS = "this task fails and the execution stays paused."
APPROVED = "**the draft is approved**, unless somebody has rejected the draft."
REVISE = {"revise": "Less."}


@pytest.mark.parametrize(
    ("kind", "terms", "choice", "text", "effect"),
    [
        ("draft", {}, None, "", FAILS),
        ("draft", {"on_timeout": "approve"}, ["yes"], "", APPROVED),
        ("draft", {"on_timeout": REVISE}, ["no"], "Less.", "a revision is requested, with this text:\n\n> Less."),
        ("text", {"on_timeout": REVISE}, ["no"], "Less.", "a revision is requested, with this text:\n\n> Less."),
        ("text", {"on_timeout": "approve"}, ["yes"], "", APPROVED),
        ("outcomes", {}, None, "", FAILS),
        (
            "outcomes",
            {"on_timeout": "approve"},
            ["approve"],
            "",
            "**`approve` is chosen**, unless somebody has rejected the draft.",
        ),
        ("outcomes", {"on_timeout": REVISE}, ["rework"], "Less.", "`rework` is chosen, with this text:\n\n> Less."),
        ("three outcomes", {}, None, "", FAILS),
        ("tool", {"on_timeout": "approve"}, None, "", FAILS),
        (
            "tool",
            {"on_tool_timeout": "approve"},
            ["approve"],
            "",
            "**the call is approved**, unless somebody has rejected the call.",
        ),
        (
            "tool",
            {"on_tool_timeout": "deny"},
            ["deny"],
            "Denied, because nobody approved the call in time.",
            "**the call is denied.**",
        ),
        ("question", {"on_timeout": "approve", "on_tool_timeout": "approve"}, None, "", FAILS),
        ("method", {"on_timeout": "approve", "on_tool_timeout": "approve"}, None, "", FAILS),
        ("method without a deadline", {"on_timeout": REVISE}, None, "", FAILS),
        ("unknown outcome", {"on_timeout": REVISE, "on_tool_timeout": "approve"}, None, "", FAILS),
    ],
)
def test_a_deadline_decides_as_its_policy_says(
    kind: str, terms: Json, choice: list[str] | None, text: str, effect: str
) -> None:
    given, asked = Terms(words=("yes", "no"), **terms), of(kind)
    assert asked.at_deadline(given) == choice
    assert asked.text_at_deadline(given) == text
    assert asked.effect_of_deadline(given) == effect


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("draft", "approve"), ("tool", "deny"), ("method", "expired"), ("method without a deadline", "fail")],
)
def test_the_policy_of_a_deadline_is_that_of_the_kind(kind: str, policy: str) -> None:
    assert of(kind).policy(Terms(on_timeout="approve", on_tool_timeout="deny")) == policy


@pytest.mark.parametrize(("policy", "shown"), [("approve", "'approve'"), (REVISE, "{'revise': 'Less.'}")])
def test_a_policy_that_names_no_outcome_is_refused(policy: str | Json, shown: str) -> None:
    with pytest.raises(CrewInvalidInput) as refused:
        of("three outcomes").at_deadline(Terms(on_timeout=policy))
    assert str(refused.value) == (
        f"on_timeout={shown} does not determine which outcome of the Flow is meant (print, rework, drop); nobody was "
        "asked and nothing was sent. Use on_timeout='fail' with this Flow"
    )


def test_the_deadline_approves_no_draft_with_violations() -> None:
    draft = of("draft", violations="$.total: missing")
    assert draft.effect_of_deadline(Terms(on_timeout="approve")) == FAILS
    assert draft.effect_of_deadline(Terms(on_timeout=REVISE)).startswith("a revision is requested")


def test_a_revision_at_the_last_deadline_is_for_flows() -> None:
    terms = Terms(on_timeout=REVISE, round_number=2, max_rounds=2)
    assert of("draft").effect_of_deadline(terms) == FAILS
    assert of("text").effect_of_deadline(terms).startswith("a revision is requested")


# --- the previous round ---

REJECTED, ACCEPTED = {"is_approve": False}, {"is_approve": True}


@pytest.mark.parametrize(
    ("kind", "previous", "may_revise"),
    [
        ("draft", {**ACCEPTED, "crew_task_id": "draft"}, True),
        ("draft", {**REJECTED, "crew_task_id": "other"}, True),
        ("draft", {**ACCEPTED, "crew_task_id": "other"}, False),
        ("draft", {"crew_task_id": "other"}, False),
        ("text", {**REJECTED, "crew_task_id": "other"}, False),
        ("text", {**REJECTED, "crew_task_id": "draft"}, True),
        ("tool", {**REJECTED, "crew_task_id": "draft#1"}, False),
    ],
)
def test_a_draft_may_revise_the_one_before(kind: str, previous: Json, may_revise: bool) -> None:
    assert of(kind).may_revise(previous) is may_revise


SAID = {"crew_task_id": "draft", "human_feedback": "So."}


@pytest.mark.parametrize(
    ("kind", "review", "told"),
    [
        ("draft", {**SAID, **ACCEPTED}, "In round 1 the draft of `draft` was approved."),
        ("draft", {**SAID, **REJECTED}, "**Requested in round 1**, by Bo:\n\n> So."),
        ("draft", REJECTED, "**Requested in round 1**, by Bo:\n\n> "),
        ("outcomes", {**SAID, "outcome": "rework"}, "**Chosen in round 1**, by Bo: `rework`\n\n> So."),
        ("outcomes", {**SAID, "outcome": "", "human_feedback": None}, "**Chosen in round 1**, by Bo: ``"),
        ("text", {**SAID, "outcome": None}, "**Answered in round 1**, by Bo:\n\n> So."),
        ("text", {"human_feedback": " ", "outcome": None}, "**Approved in round 1**, by Bo"),
        ("tool", {**SAID, "outcome": "deny"}, "**Chosen in round 1**, by Bo: `deny` for `pay`\n\n> So."),
        ("unknown outcome", {"outcome": "done"}, "**Chosen in round 1**, by Bo: `done` for `pay`"),
        ("question", {**SAID, "outcome": "answer"}, "**Answered in round 1**, by Bo:\n\n> So."),
        ("method", {**SAID, "outcome": "answer"}, "**Answered in round 1**, by Bo:\n\n> So."),
        ("method", {"outcome": "expired"}, "**Nobody answered in round 1**, so the Flow continued without an answer."),
    ],
)
def test_the_next_round_tells_the_answer_to_this(kind: str, review: Json, told: str) -> None:
    assert of(kind).answer_told(review, "round 1", ", by Bo") == told


def test_an_answer_about_an_unnamed_tool_names_none() -> None:
    told = of("tool", ask={**TOOL, "tool": None}).answer_told({"outcome": "deny"}, "round 1", "")
    assert told == "**Chosen in round 1**: `deny`"


def test_the_next_round_shows_an_edit_that_was_not_applied() -> None:
    assert of("draft").lost_edit("Mine.", "round 1", ", by Bo") == (
        "**Edited in round 1**, by Bo, but not applied, because the draft had changed in the meantime. The edited text "
        "was:\n\n> Mine."
    )
    assert of("draft").lost_edit("Mine.", "round 1", ", by Bo", "Too <short>") == (
        "**Edited in round 1**, by Bo, but not applied:\n\n> Too &lt;short>\n\nThe edited text was:\n\n> Mine."
    )
    said = (
        "**Approved in round 1**, by Bo, but the service did not accept the changed arguments, and the tool has not "
        "run:\n\n```text\n{}\n```"
    )
    assert of("tool").lost_edit('{"a": "\u200b"}', "round 1", ", by Bo") == said.format('{"a": "\\u200b"}')
    refused = of("tool").lost_edit("{}", "round 1", ", by Bo", "Too short")
    assert refused == said.format("{}") + "\n\nIts reason:\n\n> Too short"
    long = "x" * SHOWN_FEEDBACK
    assert of("tool").lost_edit(long + "y", "round 1", ", by Bo") == said.format(long)


# --- edits ---


def left(text: Any) -> Json:
    return {"params_input": {"edited_draft": text}, "chosen_options": ["approve"]}


@pytest.mark.parametrize(
    ("kind", "terms", "may_edit"),
    [
        ("draft", Terms(allow_edit=True), True),
        ("draft", Terms(), False),
        ("text", Terms(allow_edit=True), False),
        ("question", Terms(allow_edit=True), False),
        ("unknown outcome", Terms(allow_edit=True), False),
        ("tool", Terms(), True),
        ("tool", Terms(allow_edit=True, approvals=2), False),
    ],
)
def test_a_kind_of_question_may_offer_an_edit(kind: str, terms: Terms, may_edit: bool) -> None:
    assert of(kind).edits(terms) is may_edit


@pytest.mark.parametrize(
    ("more", "is_last", "said"),
    [
        ({"characters": SHOWN_CHARACTERS + 1}, False, "* This draft cannot be edited here."),
        (
            {"takes_edited_output": True},
            False,
            "* If you edit the text under *Draft*: with **yes** your text becomes the output of the task; with **no** "
            "it is sent as feedback.",
        ),
        (
            {"takes_edited_output": True},
            True,
            "* If you edit the text under *Draft*: with **yes** your text becomes the output of the task.",
        ),
        (
            {},
            False,
            "* If you edit the text under *Draft*: this service accepts it only as feedback: even with **yes**, the "
            "task runs again with your text.",
        ),
        (
            {},
            True,
            "* If you edit the text under *Draft*: this service accepts it only as revision feedback, and **none is "
            "sent in the last round**.",
        ),
    ],
)
def test_the_form_says_what_becomes_of_an_edit(more: Json, is_last: bool, said: str) -> None:
    assert of("draft", **more).effect_of_edit(LAST if is_last else WORDS) == said


def test_the_choices_of_a_call_say_it_themselves() -> None:
    assert of("tool").effect_of_edit(WORDS) == ""


@pytest.mark.parametrize(
    ("kind", "more", "given", "edited"),
    [
        ("draft", {}, "Mine.", "Mine."),
        ("draft", {}, "Text.\n", None),
        ("draft", {}, None, None),
        ("draft", {"characters": SHOWN_CHARACTERS + 1}, "Mine.", None),
        ("draft", {"output": '{"a": 1}'}, '```json\n{"a": 2}\n```', '{"a": 2}'),
        ("draft", {"output": '{"a": 1}'}, '```json\n{"a":  1}\n```', None),
        ("draft", {}, "```json\nMine.\n```", "```json\nMine.\n```"),
        ("tool", {}, '```json\n{"sum": 2}\n```', '{"sum": 2}'),
        ("tool", {}, '{"sum": 1}', None),
    ],
)
def test_an_edit_is_what_differs_from_the_form(kind: str, more: Json, given: Any, edited: str | None) -> None:
    assert of(kind, **more).edited_text(left(given)) == edited


def test_a_form_without_fields_has_no_edit() -> None:
    assert of("draft").edited_text({}) is None
    assert of("draft").edited_text({"params_input": None}) is None


def test_an_edit_is_read_as_a_text() -> None:
    assert of("draft").read_edit(left(None)) == left("")
    assert of("draft", output='{"a": 1}').read_edit(left({"a": 2})) == left('{\n  "a": 2\n}')
    assert of("draft", characters=SHOWN_CHARACTERS + 1).read_edit(left(None)) == left(None)


@pytest.mark.parametrize(
    ("kind", "outcome", "edited", "problem"),
    [
        ("draft", None, " ", "the edited draft is empty"),
        ("draft", None, "Mine.", None),
        ("tool", "deny", "no object", None),
        ("tool", "approve", "no object", "the changed arguments are not a JSON object"),
        ("tool", "approve", '{"sum": 2}', None),
        (
            "tool",
            "approve",
            '{"sum": "***"}',
            "arguments.sum contains ***, which stands for a hidden value only where it was shown",
        ),
    ],
)
def test_an_edit_that_cannot_be_used_is_told_why(
    kind: str, outcome: str | None, edited: str, problem: str | None
) -> None:
    assert of(kind).edit_problem({"outcome": outcome}, edited) == problem


def test_a_hidden_value_may_stay_where_it_was_shown() -> None:
    hidden = of("tool", ask={**TOOL, "arguments": {"key": "***", "sum": 1}})
    assert hidden.edit_problem({"outcome": "approve"}, '{"key": "***", "sum": 2}') is None


def test_an_object_is_only_replaced_by_an_object() -> None:
    problem = "the draft is a JSON object, but the edited one is not"
    assert of("draft", output={"a": 1}).edit_problem({}, "Mine.") == problem


AS_FEEDBACK = "Use this text, edited by the reviewer, unchanged:\n\nMine."


@pytest.mark.parametrize(
    ("kind", "more", "review", "sent"),
    [
        (
            "draft",
            {"takes_edited_output": True},
            {"is_approve": True, "human_feedback": "Ok"},
            {"is_approve": True, "human_feedback": "Ok", "edited_output": "Mine."},
        ),
        (
            "draft",
            {"takes_edited_output": True},
            {"is_approve": False, "human_feedback": " No. "},
            {"is_approve": False, "human_feedback": f"No.\n\n{AS_FEEDBACK}"},
        ),
        (
            "draft",
            {},
            {"is_approve": True, "human_feedback": ""},
            {"is_approve": False, "human_feedback": AS_FEEDBACK},
        ),
        ("tool", {}, {"outcome": "approve"}, {"outcome": "approve", "edited_output": "Mine."}),
        ("tool", {}, {"outcome": "deny"}, {"outcome": "deny"}),
    ],
)
def test_an_edit_is_sent_where_it_is_taken(kind: str, more: Json, review: Json, sent: Json) -> None:
    assert of(kind, **more).with_edit(review, "Mine.") == sent


@pytest.mark.parametrize(
    ("kind", "review", "said"),
    [
        (
            "draft",
            {"edited_output": "Mine."},
            "The draft was edited (now 5 characters); the text becomes the output of the task",
        ),
        ("draft", {}, "The draft was edited (now 5 characters); the text is sent as revision feedback"),
        ("tool", {"edited_output": "Mine."}, "The arguments were changed (now 5 characters); they are sent"),
        ("tool", {}, "The arguments were changed (now 5 characters); they are not sent with this answer"),
    ],
)
def test_the_log_says_what_becomes_of_an_edit(kind: str, review: Json, said: str) -> None:
    assert of(kind).said_of_edit(review, "Mine.") == said
