"""Run crews of AI agents from Apache Airflow."""

__version__ = "0.2.0"
