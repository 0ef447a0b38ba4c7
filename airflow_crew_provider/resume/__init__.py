"""Sends an answer to the waiting execution once, and only for the draft that the person saw.

An execution may have moved on since the person answered. Its state right before the POST decides what happens
(`draft_check`)::

    the same draft is waiting ─> send
    another draft is waiting ──> refuse: the new draft needs a review
    no draft is waiting ───────> taken, if an earlier try may have sent the answer; otherwise, refuse
    the state is not shown ────> send nothing; a retry checks again

A live deployment shows no draft, but each of its questions has its own id, so an answer cannot reach another draft.

`sending` implements one try of a resume. Later tries and waits read the `record`: it shows whether the answer may still
arrive, and which draft was answered, so that a wait does not mistake the old pause for a new question.
"""
