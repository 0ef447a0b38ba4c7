"""Start an execution at most once, across crashes, lost responses, retries and clears.

A POST cannot be undone, and its response can be lost. So each try of a task first finds out what earlier tries did, and
stores its intent before it sends anything (`task.record` has the states of a POST).

* `request`: the user's request as one value (`models.Kickoff`), validated before it can cost money.
* `post_record`: the POSTs of earlier tries, identified by the request's fingerprint. Fields that the operator adds are
  not part of the fingerprint, but a resent POST repeats them unchanged.
* `webhooks`: the webhooks of a POST, a kickoff's or an answer's, with credentials or at the inbox's addresses.
* `start`: the steps of this try, up to its end. It never starts a second execution unless a user requests one by
  clearing the task or by setting ``on_unknown_outcome="retry"``, and it rejects an invalid request before it stops an
  earlier execution.
"""
