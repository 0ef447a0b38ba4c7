"""What became of people's answers: Airflow's questions and the reviewer's own list against the service's database."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reviewer import Given, Question, question_of

from scripts.stack import DagRun
from scripts.stack.reviews import FEEDBACK, draft_shown, is_approval, round_of


@dataclass(frozen=True)
class Decided:
    """A question in the middle of a task, and what the service took for its answer."""

    ask: Mapping[str, Any]
    question: str
    outcome: str | None
    feedback: str | None

    def decides(self, call: Call) -> bool:
        """Whether a call has the result that this decision, the last one about it, leads to."""
        result = call.result or ""
        if self.outcome in ("approve", "run_again"):
            return result == "paid"
        return self.outcome in ("deny", "done", "answer") and bool(self.feedback) and str(self.feedback) in result


@dataclass(frozen=True)
class Call:
    """A call of a tool as the service reports it."""

    tool: str
    arguments: Mapping[str, Any]
    state: str
    result: str | None


@dataclass
class Verdict:
    """What must not happen, each with the questions or executions in which it did."""

    answers: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong_draft: list[str] = field(default_factory=list)
    wiped: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, list[str]]:
        named = {name: getattr(self, name) for name in ("lost", "doubled", "wrong_draft", "wiped")}
        return {name: found for name, found in named.items() if found}

    def row(self) -> str:
        """Return the figures as cells of a table."""
        cells = (self.answers, len(self.lost), len(self.doubled), len(self.wrong_draft), len(self.wiped))
        return " | ".join(str(each) for each in cells)

    def judge_questions(self, details: Mapping[Question, Mapping[str, Any]], given: Iterable[Given]) -> None:
        """Find answers that Airflow accepted and does not hold any more, or that were asked for once more."""
        for question, answers in _by_question(given).items():
            self.answers += 1
            last, detail = answers[-1], details.get(question)
            if len(answers) > 1:
                self.wiped.append(f"{question} was answered {len(answers)} times: {answers}")
            elif not detail or _answer_in(detail) != (last.option, last.feedback):
                self.wiped.append(f"{question} was answered {last}, Airflow holds {detail and _answer_in(detail)}")

    def judge_execution(self, who: str, details: Iterable[Mapping[str, Any]], output: str) -> None:
        """Compare the answers to one completed execution with what the crew made of them, told by its output.

        Draft n + 1 holds the feedback on draft n, so the output tells how many revisions were applied, and the last.
        """
        rounds = sorted(details, key=lambda each: round_of(each["task_instance"]["task_id"]))
        revisions = 0
        for detail in rounds:
            if draft_shown(detail) != revisions + 1:
                self.wrong_draft.append(f"{who}: round with draft {revisions + 1} showed {detail['body'][-300:]!r}")
            revisions += not is_approval(_answer_in(detail)[0])
        found = re.match(r"Draft (\d+) on ", output)
        applied = int(found[1]) - 1 if found else -1
        self._compare(who, [_answer_in(each) for each in rounds], revisions, applied)
        last = next((text for option, text in map(_answer_in, reversed(rounds)) if not is_approval(option)), "")
        if last not in output:
            self.wrong_draft.append(f"{who}: the last feedback {last!r} is not in {output!r}")

    def judge_questions_in_the_middle(
        self, who: str, details: Iterable[Mapping[str, Any]], decided: Sequence[Decided], calls: Sequence[Call]
    ) -> None:
        """Compare the answers to one completed execution with the service's decisions, and these with its calls."""
        rounds = sorted(details, key=lambda each: round_of(each["task_instance"]["task_id"]))
        answers = [_answer_in(each) for each in rounds]
        taken = [(each.outcome or "", each.feedback or "") for each in decided]
        if len(answers) != len(taken):
            found = self.doubled if len(taken) > len(answers) else self.lost
            found.append(f"{who}: answers {answers}, decisions {taken}")
            return
        for detail, answer, decision in zip(rounds, answers, decided, strict=True):
            if answer != (decision.outcome, decision.feedback if answer[1] else ""):
                self.lost.append(f"{who}: answer {answer}, decision {decision}")
            if _subject_of(decision) not in detail["body"]:
                self.wrong_draft.append(f"{who}: {decision} is not what was shown: {detail['body'][-600:]!r}")
        for subject in {_subject_of(each): None for each in decided}:
            last = [each for each in decided if _subject_of(each) == subject][-1]
            of_call = [each for each in calls if subject in each.arguments.values()]
            if [(each.state, last.decides(each)) for each in of_call] != [("done", True)]:
                self.wrong_draft.append(f"{who}: {last}, calls {of_call}")

    def _compare(self, who: str, answers: list[tuple[str, str]], revisions: int, applied: int) -> None:
        if not answers or not is_approval(answers[-1][0]):
            self.wrong_draft.append(f"{who}: completed without an approval: {answers}")
        if applied != revisions:
            (self.doubled if applied > revisions else self.lost).append(f"{who}: {applied} of {revisions}: {answers}")


def answered(run: DagRun) -> dict[Question, dict[str, Any]]:
    """Return the questions of a run that hold an answer."""
    details = run.api.pages(f"{run.path}/hitlDetails", "hitl_details", response_received=True)
    return {question_of(each): each for each in details}


def moments(given: Iterable[Given]) -> Counter[str]:
    """Count the answers by the state of their task."""
    return Counter(each.task_state for each in given)


def _answer_in(detail: Mapping[str, Any]) -> tuple[str, str]:
    return detail["chosen_options"][0], detail["params_input"].get(FEEDBACK) or ""


def _subject_of(decided: Decided) -> str:
    """Return the text by which a call or a question differs from all others."""
    arguments = decided.ask["arguments"]
    return str(arguments["for"]) if arguments else str(decided.question)


def _by_question(given: Iterable[Given]) -> dict[Question, list[Given]]:
    found: dict[Question, list[Given]] = {}
    for each in given:
        found.setdefault(each.question, []).append(each)
    return found
