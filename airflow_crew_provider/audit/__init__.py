"""People's decisions, read from Airflow's public REST API. Imports neither Airflow nor code that contacts a crew."""
