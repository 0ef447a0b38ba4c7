"""Run crews of AI agents from Apache Airflow."""

__version__ = "0.3.0.dev0"
