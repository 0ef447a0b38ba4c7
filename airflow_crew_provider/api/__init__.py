"""The Crew Execution API as values, without Airflow and without I/O.

A `Call` describes one exchange: what to send, and how to read the response. `endpoints.read` returns its value, or
raises the one error that names what happened. Both dialects are read, the specification's and that of live
deployments, and each request fits both. One table in `status` maps the services' words for states.

A reader is strict about success and lenient about everything else: a body that claims completion and contains a wrong
type anywhere is an error, never a result. Returned texts show no secrets: see `responses.masker`.
"""
