"""The location of the crew service up to release 0.1; it is now a separate distribution that does not need Airflow."""

raise ImportError("The crew service is now the package crew_service; install it with: pip install airflow-crew-service")
