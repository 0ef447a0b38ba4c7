"""Hands an answer to the execution that waits for it, once, and only to the draft it was given for.

An execution may have moved on since a person answered. What it shows right before the POST decides (`draft_check`)::

    its draft waits ─────> send
    another draft waits ─> refuse, and say that the new draft needs a review
    nothing waits ───────> taken, if an earlier try may have sent the answer; else refuse
    not shown ───────────> ask again in a retry: nothing is sent in doubt

A live deployment shows no draft; there every question has an id of its own, so no other draft can be hit.

`sending` is one try of a resume. `record` is what a later wait reads about it: which draft was answered, so that the
old pause is not taken for a new question.
"""
