"""Sends an answer to the waiting execution once, and only for the draft that the person saw.

An execution may have moved on since the person answered. Its state right before the POST decides (`draft_check`)::

    its draft waits ─────> send
    another draft waits ─> refuse: the new draft needs a review
    nothing waits ───────> taken, if an earlier try may have sent the answer; else refuse
    not shown ───────────> check again in a retry: send nothing when in doubt

A live deployment shows no draft, but each of its questions has its own id, so an answer cannot reach another draft.

`sending` implements one try of a resume. Later tries and waits read the `record`: it shows whether the answer may still
arrive, and which draft was answered, so that a wait does not mistake the old pause for a new question.
"""
