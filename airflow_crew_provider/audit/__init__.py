"""The record of what people decided, read from Airflow's public REST API. Imports neither Airflow nor the core."""
