"""An execution's life: callers' requests, crews that run, people who are asked, webhooks that go out.

`storage.states` is the table of states and moves. Who makes which move::

    kickoff ──> queued ──claim──> running ──> completed, failed         runner: segments
                  ^ ^               │  └────> waiting ──> failed        executions: a person gives up
                  │ └── requeue ────┘            │
                  └────────── resume ────────────┘                      executions
    stop: from every state before the end                               executions

* An execution runs in segments, from a claim to its end, a question, or the loss of its process. A segment owns its
  execution by the claim's number: each of its writes checks it (`segment_writes`), so one whose process was declared
  dead too early, or that was stopped, changes nothing.
* What is acknowledged is stored. A crew continues after a task, or before the effect of a call that needs it, only when
  that is stored; a caller gets a response only with its effect; a webhook is stored with the event that it announces
  (`outbox`) and sent at least once.
* A segment continues from finished tasks, the journal of the unfinished ones, and the answer to the last question
  (`run_state`). What the crew passes on between segments is its own: the engine stores it without reading it.
* A question is open once and answered once, and the answer belongs to the text that was shown (`questions`).
* An outage of the database delays executions and fails none (`retrying`); an unreadable row ends its execution alone.
* Crews are known only by the protocol in `crew`; the dialect, only by the three values in `container`.
* Nobody waits for a large or slow neighbour: owners take turns in the queue, at receivers, and for expensive requests.
"""
