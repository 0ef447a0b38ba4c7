"""The answers to questions in the middle of a task, and their effect on the call: `approve` and `run_again` run it."""

from __future__ import annotations

from typing import Any

from crew_service.engine.crew import AskKind, JournalEntry

ASK_PERSON = "ask_person"  # the tool that lets an agent ask
TOOL: AskKind = "tool"
QUESTION: AskKind = "question"
UNKNOWN: AskKind = "unknown_outcome"
APPROVE, DENY, ANSWER, DONE, RUN_AGAIN, FAIL = "approve", "deny", "answer", "done", "run_again", "fail"
EXPIRED = "expired"  # the answer of the service itself, once nobody has answered in time
APPROVING = frozenset((APPROVE, ANSWER, DONE, RUN_AGAIN))
RUNNING = frozenset((APPROVE, RUN_AGAIN))  # outcomes that run the tool


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
    return outcome_of(entry) not in (APPROVE, DENY, ANSWER, EXPIRED) and entry.name != ASK_PERSON


def arguments_of(entry: JournalEntry | None) -> dict[str, Any] | None:
    """Return a person's replacement for the call's arguments, if any."""
    return (entry.decision or {}).get("arguments") if entry else None


def result_of(entry: JournalEntry) -> str | None:
    """Return the result that the agent gets for a call that was not run because of a person's decision."""
    decision = entry.decision or {}
    text: str = decision["text"]
    if decision["outcome"] == EXPIRED:
        return None
    if decision["outcome"] != DENY:
        return text
    denied = f"A person denied this call of the tool {entry.name}, so it was not run."
    return f"{denied} Reason: {text}" if text.strip() else denied
