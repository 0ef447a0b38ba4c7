"""Starting an execution at most once, through crashes, lost answers, retries and clears.

A POST cannot be taken back, and its answer can be lost. So each try of a task moves through these states, and what it
knows is stored before it goes on::

    open ──> checked ──> intended ──> sent ──> started
               │            │           └──> unknown: the answer is lost
               │            └──> refused: certain to have done nothing, and removed from the record
               └──> goes on: an earlier try has started the execution

* `request`: what the user asks for, as one value (`models.Kickoff`), checked before money is spent.
* `post_record`: what earlier tries did, by the name of the request. What an operator adds by itself never enters that
  name, and is sent again as it was.
* `start`: what this try does. Never a second execution beside the first, unless a user asks for it by a clear or by
  ``on_unknown_outcome="retry"``; what is refused is found before an earlier execution is stopped.
"""
