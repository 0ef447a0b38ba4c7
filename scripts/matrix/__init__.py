"""What `make test-matrix` runs beside the tests: a DAG in real processes, and the table of results."""
