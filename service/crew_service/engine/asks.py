"""Questions in the middle of a task: their text, the answers they accept, and the effect of an answer on the call.

Each question is about one call, whose journal entry stores the answer. Only `approve` and `run_again` run a tool.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from crew_service.engine import tool_rules
from crew_service.engine.crew import AskKind, JournalEntry, PendingQuestion
from crew_service.engine.printed import HIDDEN, Printed
from crew_service.storage.json_values import tidy

ASK_PERSON = "ask_person"  # the tool that lets an agent ask
TOOL: AskKind = "tool"
QUESTION: AskKind = "question"
UNKNOWN: AskKind = "unknown_outcome"
APPROVE, DENY, ANSWER, DONE, RUN_AGAIN, FAIL = "approve", "deny", "answer", "done", "run_again", "fail"
OUTCOMES: dict[str, tuple[str, ...]] = {
    TOOL: (APPROVE, DENY),
    QUESTION: (ANSWER,),
    UNKNOWN: (DONE, RUN_AGAIN, FAIL),
}
APPROVING = frozenset((APPROVE, ANSWER, DONE, RUN_AGAIN))
RUNNING = frozenset((APPROVE, RUN_AGAIN))  # outcomes that run the tool
# Characters that would reverse adjacent text, or send control codes to a terminal.
UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

LONGEST_ABOUT = 300  # characters of a tool's description


class BadArguments(ValueError):
    """The arguments are not accepted; the message completes a sentence about `edited_output`."""


def is_allowed(entry: JournalEntry | None) -> bool:
    """Return whether a person has allowed the call and it has not started since."""
    return outcome_of(entry) in RUNNING


def is_decided(entry: JournalEntry | None) -> bool:
    """Return whether a person has decided that the call must not run."""
    return outcome_of(entry) is not None and not is_allowed(entry)


def outcome_of(entry: JournalEntry | None) -> str | None:
    """Return a person's decision on a call if it has not been carried out yet."""
    return (entry.decision or {}).get("outcome") if entry and entry.answer is None else None


def may_have_run(entry: JournalEntry) -> bool:
    """Return whether the tool may have done its work; it has not if the call was waiting for a person's answer."""
    return outcome_of(entry) not in (APPROVE, DENY, ANSWER) and entry.name != ASK_PERSON


def arguments_of(entry: JournalEntry | None) -> dict[str, Any] | None:
    """Return a person's replacement for the call's arguments, if any."""
    return (entry.decision or {}).get("arguments") if entry else None


def result_of(entry: JournalEntry) -> str:
    """Return the result that the agent gets for a call that was not run because of a person's decision."""
    decision = entry.decision or {}
    text: str = decision["text"]
    if decision["outcome"] != DENY:
        return text
    denied = f"A person denied this call of the tool {entry.name}, so it was not run."
    return f"{denied} Reason: {text}" if text.strip() else denied


def failure_of(question: PendingQuestion, printed: Printed) -> str:
    """Return an execution's error if there is nobody to ask, or if a person gives up on an unknown outcome."""
    if question.kind != UNKNOWN:
        what = "answer an agent's question" if question.kind == QUESTION else "approve a tool call"
        return f"A person must {what} ({question.entry.name}), and nobody can be asked here. It was not run."
    return printed.masked(tool_rules.not_known(question.entry.name, printed.masked(question.shown), question.text))


def gate_of(question: PendingQuestion, number: int, printed: Printed, before: Any) -> dict[str, Any]:
    """Return the gate for a waiting execution; `before` is its previous gate, which applies again afterwards."""
    entry = question.entry
    arguments = None if question.kind == QUESTION else tidy(question.arguments or {})
    ask = {
        "kind": question.kind,
        "agent": question.agent,
        "tool": None if question.kind == QUESTION else entry.name,
        "arguments": None if arguments is None else _masked(arguments, printed),
        "number": number,
        "earlier_calls": question.earlier_calls,  # shown beside the text, which is all that an answer's hash covers
    }
    sentence = printed.masked(_sentence(question))  # an exception's text may contain a secret
    gate = {
        "task_id": entry.task_id,
        "key": f"{entry.task_id}#{number}",
        "output": _shown(ask, sentence),
        "agent": question.agent,
        "state": question.state,
        "question": sentence,
        "outcomes": list(OUTCOMES[question.kind]),
        "question_id": None,
        "rounds": [],
        "ask": ask,
        "arguments": arguments,
        "entry": entry.number,
        "failure": failure_of(question, printed) if question.kind == UNKNOWN else None,
        "before": before,
    }
    return {name: tidy(value) for name, value in gate.items()}


def _sentence(question: PendingQuestion) -> str:
    if question.kind == QUESTION:
        return question.text
    # Only whole words are left out: the beginning of a secret would not be recognized.
    about = _without_unseen(textwrap.shorten(question.about, LONGEST_ABOUT, break_on_hyphens=False))
    tool = f"{question.entry.name} ({about})" if about else question.entry.name
    if question.kind == UNKNOWN:
        return f"It is unknown whether the tool {tool} did its work: {question.text}. Did it succeed?"
    return f"{question.agent or 'The crew'} wants to call the tool {tool}. May it run?"


def _shown(ask: Mapping[str, Any], sentence: str) -> str:
    """Return the text shown to people; an answer refers to it by its hash."""
    text = f"Question {ask['number']}: {sentence}"
    if ask["kind"] == QUESTION:
        return text
    arguments = json.dumps(ask["arguments"], sort_keys=True, indent=2, ensure_ascii=False)
    return f"{text}\n\nTool: {ask['tool']}\nArguments:\n{_without_unseen(arguments)}"


def _without_unseen(text: str) -> str:
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def changed_arguments(text: str, gate: Mapping[str, Any]) -> dict[str, Any]:
    """Parse arguments changed by a person; masked values that are left unchanged keep their real values.

    :raises BadArguments: if they are not a JSON object, or would send a mask instead of a value
    """
    try:
        return _changed_arguments(text, gate)
    except RecursionError:
        raise BadArguments("its arguments are nested too deeply") from None


def _changed_arguments(text: str, gate: Mapping[str, Any]) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise BadArguments("the arguments of a tool must be a JSON object")
    found: dict[str, Any] = _unmasked(tidy(given), gate["ask"]["arguments"], gate["arguments"])
    json.dumps(found, indent=2)  # also done later, to show the call if its outcome is unknown
    return found


def _masked(value: Any, printed: Printed) -> Any:
    """Return a JSON value with each secret masked in place."""
    text = _json(value)
    shown = printed.masked(text)
    if shown == text:
        return value
    if isinstance(value, dict):
        masked: dict[str, Any] = {}
        for name, each in value.items():
            shown_name = _masked(name, printed)
            while shown_name in masked:
                shown_name += "*"
            masked[shown_name] = _masked(each, printed)
        return masked
    if isinstance(value, list):
        return [_masked(each, printed) for each in value]
    try:
        return json.loads(shown) if isinstance(value, str) else HIDDEN
    except ValueError:
        return HIDDEN


def _unmasked(given: Any, shown: Any, original: Any) -> Any:
    if isinstance(given, dict):
        known = dict(zip(shown, original.items(), strict=True)) if isinstance(shown, dict) else {}
        found = {}
        for name, each in given.items():
            real, value = known.get(name, (_without_mask(name), None))
            found[real] = _unmasked(each, shown[name] if name in known else None, value)
        return found
    if isinstance(given, list):
        pairs = list(zip(shown, original, strict=True)) if isinstance(shown, list) else []
        rest = [(None, None)] * max(0, len(given) - len(pairs))
        return [_unmasked(each, *pair) for each, pair in zip(given, [*pairs, *rest], strict=False)]
    if isinstance(given, str):
        return original if given == shown else _without_mask(given)
    return given


def _without_mask(text: str) -> str:
    if HIDDEN in text:
        raise BadArguments(f"{HIDDEN} can stand for a secret only where the question shows it")
    return text


def _json(value: Any) -> str:
    return json.dumps(value).replace("\x7f", "\\u007f")
