"""Answering Flows, which differ from crews in their outcomes and in the ways to answer.

A crew asks for approval or a revision, and its status shows the draft. A Flow routes on any word; its live status shows
a pause without the question, which arrives only in a webhook from the console::

    webhook ──signed──> inbox: store ──> a poll finds it ──> review: outcomes as choices ──> answers

* An answer is sent through its question's channel: the callback, `/resume_feedback`, or `/resume` on the project's own
  service. Its text is never empty, because a Flow may treat an empty text as an approval.
* A callback is used only if the connection allows its host, and the deployment's token is never sent to it.
"""
