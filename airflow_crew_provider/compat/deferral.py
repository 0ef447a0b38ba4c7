"""The time that Airflow may take to notice that a task has left its worker.

Airflow fails a task that is queued again before the scheduler has recorded that it left its worker, as if its process
had died. The scheduler's `process_executor_events` does this to tasks in these states:

* 2.11.2, 3.0.6, 3.1.8: scheduled, queued and running (apache/airflow issue 66374);
* 3.2.2, 3.3.0, 3.3.2: queued (issue 67287) and running (72716);
* 3.4: running, unless it was queued again elsewhere.

So every released version needs a pause. A supervisor may notice the end of its task process only at its next heartbeat;
the rest of the pause allows for the scheduler's own loop. With the settings of 3.3.2, noticing took up to 6.6 s. The
scheduler stores nothing at that point, so neither a trigger nor a worker can tell when the pause may end.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf

NOTICED_AFTER = conf.getint("workers", "min_heartbeat_interval", fallback=5) + 3.0  # seconds
