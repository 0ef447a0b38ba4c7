"""The Crew Execution API as values, without Airflow and without I/O.

A `Call` describes one exchange: what to send, and how to read the answer. `endpoints.read` returns its value, or raises
the one error that names what happened. Two dialects are read, the specification's and that of live deployments, and
each request fits both. The words of a service for a state stand in one table, in `status`.

A reader is strict about what it calls a success and lenient about everything else: a body that claims completion and
has a wrong type anywhere is an error, never a result. No text that it returns shows a secret: see `responses.masker`.
"""
