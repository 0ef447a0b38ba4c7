"""The only place that sends and receives: `client.Client` performs calls, `deployment.Deployment` is a value.

Invariants, whatever the libraries do:

* Connecting may be retried. A POST that may have arrived is never sent again, and its error says so.
* Every exchange ends within its total time, and every body within `LARGEST_BODY`.
* The token goes to the connection's own origin only, and appears in no error.
* Both sides, blocking on requests and awaiting on aiohttp, read responses in the same way. Only the blocking side
  retries connecting, opens spans and accepts the `secrets` of one call: a trigger only polls and stops.
"""
