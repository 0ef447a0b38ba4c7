"""How Flows differ from crews: outcomes, and the ways to answer.

A crew asks for approval or a revision, and its status shows the draft. A Flow routes on any word; its live status shows
a pause without the question, which only arrives in a webhook from the console::

    webhook ──signed──> inbox: store ──> a poll finds it ──> review: outcomes as words ──> answers

* An answer is sent through the channel of its question: the callback, `/resume_feedback`, or `/resume` on the project's
  own service. Its text is never empty, since a Flow may take that as an approval.
* A callback is used only if the connection allows its host, and never gets the deployment's token.
"""
