"""The crew service's location up to release 0.1: it is now a separate distribution without Airflow."""

raise ImportError("The crew service is the package crew_service now; install it with: pip install airflow-crew-service")
