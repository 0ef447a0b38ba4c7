"""Where the crew service was up to release 0.1: it is a distribution of its own now, and knows no Airflow."""

raise ImportError("The crew service is the package crew_service now; install it with: pip install airflow-crew-service")
