"""What `make test-matrix` runs beside the tests: a DAG on real processes, and the table of results."""
