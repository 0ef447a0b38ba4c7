"""Webhooks that come in: the crew service tells Airflow that a person is waited for, or that a crew has succeeded.

Airflow mounts a plugin without authentication, and a webhook names nothing but an address. So::

    task: register ──> POST with the addresses ──> service ──> webhook ──> inbox: prove, store, wake
                                                                              └──> the wait polls what is stored

* A registration belongs to one kickoff or resume. Our side keeps hashes of its credentials only (`messages`).
* What is acknowledged is stored first; waking a task may fail, since its next poll finds the message.
* Nothing here approves anything: a question ends a wait as pending, and progress makes a worker poll the status.
* The application is given its routes, a wait its sources; neither knows what else the inbox receives.
* Where things are stored, and why there, is the subject of `store`.
"""
