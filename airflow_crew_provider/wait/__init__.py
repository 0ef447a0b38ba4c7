"""Waiting for an execution: what a poll means, the loop around it, and what its end means to a task.

A wait begins in a worker, mostly goes on in a triggerer, and always ends in a worker::

    worker: first poll ──not over──> triggerer: polls ──an event──> worker: reads the event, fetches the result
         └──over, or not deferrable─────────────────────────────────────┘

* `watch` decides, without I/O: wait on, or an `Outcome`. Worker and triggerer perform the same steps (`poller`).
* A poller asks the status, and then each of the sources of questions that it is given. A wait knows no kind of them.
* Only an id and figures cross between processes (`Outcome`). An event that is missing or malformed is a failure.
* A wait never starts, resumes or repeats anything. Whether an execution is stopped when its task ends is decided in
  `outcomes`: only a user's action or a timeout stops one, never the end of a process.
* Rules about an output (`output`, `schema`) are applied before the task notes its end, so a retry finds the execution.
"""
