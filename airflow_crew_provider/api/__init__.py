"""The Crew Execution API as values, without Airflow or I/O.

A `Call` describes one exchange: the request, and how to read the response. `endpoints.read` returns the response's
value, or raises one specific error. Responses may use either dialect, the specification's or that of live deployments,
and each request fits both. One table in `status` maps the words that services use for states.

A reader is strict about success and lenient about everything else: a body that claims completion and contains a wrong
type anywhere is an error, never a result. Returned strings contain no secrets: see `responses.masker`.
"""
