"""Which strings count as an approval, and which of a Flow's outcomes an approval or rejection means. Pure functions.

The provider implements the same rule; the tests run one corpus through both.
"""

from __future__ import annotations

import unicodedata

MOST_MARKS = 30  # as in Unicode's Stream-Safe Text Format
# Texts that a service accepts as an approval if it decides by the text alone.
APPROVING_WORDS = frozenset(
    ("approved", "approve", "ok", "okay", "yes", "looks good", "looks good to me", "lgtm", "accept", "accepted")
)


def reads_like_approval(text: str) -> bool:
    """Return whether the whole text is an approving word or phrase, regardless of case, Unicode form or punctuation."""
    if _heaps_marks(text):
        return False
    # Case folding can introduce characters that must be normalized again.
    plain = _normal(_normal(text).casefold())
    return " ".join(_trimmed(plain).split()) in APPROVING_WORDS


def outcome_meant(is_approve: bool, outcomes: list[str]) -> str | None:
    """Return the only outcome of a Flow that an approval or a rejection can mean; None if ambiguous."""
    approving = [outcome for outcome in outcomes if reads_like_approval(outcome.replace("_", " "))]
    others = [outcome for outcome in outcomes if outcome not in approving]
    if len(approving) != 1 or (not is_approve and len(others) != 1):
        return None
    return approving[0] if is_approve else others[0]


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _heaps_marks(text: str) -> bool:
    """Return whether text has more combining marks in a row than any language; sorting them takes quadratic time."""
    run = 0
    for character in text:
        # Some characters are not marks themselves, but normalize to marks only.
        is_mark = not character.isascii() and unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
        run = run + 1 if is_mark else 0
        if run > MOST_MARKS:
            return True
    return False


def _trimmed(text: str) -> str:
    """Remove everything but letters and digits from both ends, in linear time."""
    places = range(len(text))
    first = next((at for at in places if text[at].isalnum()), len(text))
    last = next((at for at in reversed(places) if text[at].isalnum()), -1)
    return text[first : last + 1]
