"""Waiting for an execution: the meaning of a poll, the polling loop, and the end of a task.

A wait begins in a worker, usually continues in a triggerer, and always ends in a worker::

    worker: first poll ──not over──> triggerer: polls ──an event──> worker: reads the event, fetches the result
         └──over, or not deferrable─────────────────────────────────────┘

* `watch` decides, without I/O, whether to keep waiting or to end with an `Outcome`. Worker and triggerer perform the
  same steps (`poller`).
* A poller requests the status, then reads its source of questions. The wait itself does not depend on that source.
* Only ids, figures and a short message are passed between processes (`Outcome`). A missing or malformed event is a
  failure.
* A wait never starts, resumes or repeats anything. `outcomes` decides whether an execution is stopped when its task
  ends: a user's action, a timeout or an exceeded budget may stop it, but the exit of a process never does.
* Rules for an output (`output`, `schema`) are applied before the task records its end, so that a retry finds the
  execution again.
"""
