-- The crew services share a database of their own, beside Airflow's.
CREATE DATABASE crew OWNER airflow;
