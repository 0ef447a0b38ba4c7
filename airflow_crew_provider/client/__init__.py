"""The only package that contacts a crew: `client.Client` performs calls, `deployment.Deployment` is a value.

Invariants, whatever the libraries do:

* Connecting may be retried. A POST that may have arrived is never sent again, and its error says so.
* Every exchange ends within its total timeout, and no body may be larger than `LARGEST_BODY`.
* The token is sent only to the connection's own origin, and never appears in an error.
* Both sides, the blocking one with requests and the async one with aiohttp, read responses in the same way. Only the
  blocking side retries connecting, opens spans and accepts the `secrets` of one call: a trigger only polls an execution
  or stops it.
"""
