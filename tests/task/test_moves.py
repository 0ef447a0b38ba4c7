"""The table of moves, executed: a part of a record changes its state as the table says, or not at all."""

from __future__ import annotations

from enum import StrEnum

import pytest

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.task.record import (
    MOVES,
    AnswerState,
    Part,
    PostState,
    QuestionState,
    RunState,
    SentAnswer,
    StoredPost,
    StoredQuestion,
    StoredRun,
)

DRAFT = DraftId("e-1", "task", "hash")
# For each kind, a part in each of its states, in their order.
STANDS: dict[type[StrEnum], list[Part]] = {
    PostState: [
        StoredPost(),
        StoredPost(fingerprint="f"),
        StoredPost(fingerprint="f", kickoff_id="k-1"),
        StoredPost(fingerprint="f", kickoff_id="k-1", finished=True),
    ],
    AnswerState: [
        SentAnswer(),
        SentAnswer(resumed_at=1.0, lost_at=1.0),
        SentAnswer(resumed_at=1.0, unused=True),
        SentAnswer(lost_at=1.0),
    ],
    QuestionState: [
        StoredQuestion(),
        StoredQuestion(draft=DRAFT, doubt=True),
        StoredQuestion(draft=DRAFT),
        StoredQuestion(draft=DRAFT, doubt=True, over=True),
    ],
    RunState: [
        StoredRun(),
        StoredRun("e-1", since=1.0),
        StoredRun("e-1", draft=[*DRAFT]),
        StoredRun("e-1"),
        StoredRun("e-1", since=1.0, over=True),
    ],
}


@pytest.mark.parametrize(("kind", "move"), [(kind, move) for kind, moves in MOVES.items() for move in moves])
def test_a_move_that_is_not_drawn_is_refused(kind: type[StrEnum], move: str) -> None:
    stands = dict(zip(kind, STANDS[kind], strict=False))  # no record of an answer is `left`
    for before, part in stands.items():
        assert part.state is before
        for after, new in stands.items():
            if after in MOVES[kind][move].get(before, ()):
                assert part.moved(move, new) is new
            else:
                with pytest.raises(RuntimeError, match=f"{part.noun} that is {before} cannot become {after} by {move}"):
                    part.moved(move, new)


def test_the_moves_are_those_that_are_drawn() -> None:
    posts = ("nothing", "intended", "started", "over")
    questions = ("nothing", "in doubt", "open", "over")
    runs = ("nothing", "working", "asking", "answered", "over")
    drawn = {
        PostState: {
            "intend": dict.fromkeys(posts, ("intended",)),
            "withdraw": {"intended": posts},
            "start": {"intended": ("started",)},
            "finish": {"nothing": ("nothing",), "intended": ("over",), "started": ("over",), "over": ("over",)},
        },
        AnswerState: {"take": {"sending": ("sent", "unused")}, "lose": {"sending": ("lost",)}},
        QuestionState: {
            "ask": dict.fromkeys(questions, ("in doubt",)),
            "look": {"in doubt": ("in doubt",)},
            "asked": dict.fromkeys(questions, ("open",)),
            "send_back": dict.fromkeys(questions, ("nothing",)),
            "forget": dict.fromkeys(questions, ("nothing",)),
            "close": dict.fromkeys(questions, ("over",)),
        },
        RunState: {
            "begin": dict.fromkeys(runs, ("working",)),
            "again": {
                "working": ("working",),
                "asking": ("working",),
                "over": ("working",),
                "answered": ("answered",),
            },
            "ask": {"working": ("asking",)},
            "answer": {"asking": ("answered",)},
            "send": {"answered": ("working",)},
            "finish": {"working": ("over",), "over": ("over",)},
        },
    }
    assert drawn == MOVES


def test_what_is_unknown_is_not_stored() -> None:
    assert [each.to_json() for each in (StoredPost(), SentAnswer(), StoredQuestion(), StoredRun())] == [{}] * 4
