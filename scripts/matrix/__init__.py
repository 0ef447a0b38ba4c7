"""Additional code for `make test-matrix`: a DAG run in real processes, and the table of results."""
