"""Incoming webhooks: the crew service notifies Airflow that a crew is waiting for a person or has succeeded.

Airflow mounts a plugin without authentication, and only its address proves where a webhook comes from. So::

    task: register ──> POST with the addresses ──> service ──> webhook ──> inbox: check, store, wake
                                                                              └──> the wait polls the stored messages
    console: a Flow's question, signed ──> the same

* A registration belongs to one kickoff or resume. Airflow stores only hashes of its credentials (`messages`).
* A Flow's question is authenticated by a signature, and stored separately from the way to answer it: the callback is a
  secret and used only once (`flow_webhooks`).
* A message is stored before it is acknowledged; a failure to wake a task does no harm, since its next poll finds the
  message.
* Nothing here approves anything: a question ends a wait as pending, and progress makes a worker poll the status.
* All data is stored in Variables, named in `rows`; `store` explains why, and also removes them. A wait reads them
  through one `source`.
"""
