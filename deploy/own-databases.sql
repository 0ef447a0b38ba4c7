-- One database for each crew in deploy/own-crews.yaml.
CREATE DATABASE crew_report OWNER airflow;
CREATE DATABASE crew_briefing OWNER airflow;
