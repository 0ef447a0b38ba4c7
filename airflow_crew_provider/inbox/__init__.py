"""Incoming webhooks: the crew service notifies Airflow that a crew is waiting for a person or has succeeded.

Airflow mounts plugins without authentication, so each webhook must prove its origin by a credential or a signature::

    task: register ──> POST with the addresses ──> service ──> webhook ──> inbox: check, store, wake
                                                                              └──> the wait polls the stored messages
    console: a Flow's question, signed ──> the same

* A registration belongs to one kickoff or resume. Airflow stores only hashes of its credentials (`messages`).
* A signature authenticates a Flow's question. The question is stored separately from its callback, which is secret and
  used only once (`flow_webhooks`).
* A message is stored before it is acknowledged. If waking a task fails, the task's next poll finds the message.
* No webhook can approve anything: a question only ends a wait with the state pending, and a report of the crew's
  success only makes a worker poll the status.
* All data is stored in Variables. `rows` defines their names; `store` explains why Variables are used, and removes
  them. A wait reads them through `source`.
"""
