"""What is different about Flows: questions that arrive as signed webhooks, outcomes, and the ways to answer them.

A crew asks for approval or a revision, and its status shows the draft. A Flow routes on any words; its live status
shows a pause and no question, which only a webhook of the console carries::

    webhook ──signed──> receiving: store ──> source: a poll finds it ──> review: outcomes as words ──> answers

* A question and the way to answer it are stored apart: the callback is a secret, and is used once.
* The answer goes by the way the question came: the callback, `/resume_feedback`, or `/resume` at the project's own
  service. It never is an empty text, which a Flow may take as an approval.
* An answer leaves for hosts of the connection only, without the deployment's own token.
"""
