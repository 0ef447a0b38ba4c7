"""The Crew Execution API as values, without Airflow or I/O.

A `Call` describes one exchange: the request, and how to read the response. `endpoints.read` returns the response's
value, or raises a specific error. Responses may use either dialect, the specification's or that of live deployments,
and each request works with both. One table in `status` maps the services' words for states to `ExecutionState`.

A reader is strict about success and lenient about everything else: a body that claims completion but contains a wrong
type anywhere is an error, never a result. Secrets are masked (`responses.masker`) in errors and in names to display,
but not in values that are compared, hashed or sent back.
"""
