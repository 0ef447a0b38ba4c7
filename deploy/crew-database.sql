-- The crew services share their own database, separate from Airflow's.
CREATE DATABASE crew OWNER airflow;
