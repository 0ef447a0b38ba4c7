"""How long Airflow may take to notice that a task has left its worker.

A task that is queued again before the scheduler has recorded that it left its worker is failed, as if its process had
died. Which states the scheduler takes for that, by its `process_executor_events`:

* 2.11.2, 3.0.6, 3.1.8: scheduled, queued and running (apache/airflow issue 66374);
* 3.2.2, 3.3.0, 3.3.2: queued (issue 67287) and running (72716);
* 3.4: running, unless it was queued again elsewhere.

So no released version can go without the pause. A supervisor may notice the end of its task process as late as its next
heartbeat; the rest is for the scheduler's own loop.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf

NOTICED_AFTER = conf.getint("workers", "min_heartbeat_interval", fallback=5) + 3.0  # seconds
