-- A database for each crew of deploy/own-crews.yaml.
CREATE DATABASE crew_report OWNER airflow;
CREATE DATABASE crew_briefing OWNER airflow;
