"""The rules, without Airflow and without I/O: requests, answers, state words, polling, feedback."""
