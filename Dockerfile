# Two images: Airflow with the provider (`airflow`), and the crew service with CrewAI (`crew-service`), without Airflow.
ARG AIRFLOW_VERSION=3.3.2
FROM apache/airflow:${AIRFLOW_VERSION} AS airflow

COPY --chown=airflow:0 pyproject.toml README.md LICENSE /opt/crew-provider/
COPY --chown=airflow:0 airflow_crew_provider /opt/crew-provider/airflow_crew_provider
# Airflow's version is part of the command, so that pip fails instead of changing it.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" /opt/crew-provider

FROM python:3.12-slim-bookworm AS crew-service
COPY service /opt/crew-service
# libmagic tells CrewAI the types of files.
RUN apt-get update && apt-get install --yes --no-install-recommends libmagic1 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "/opt/crew-service[crewai,files,postgresql]" \
    && useradd --uid 50000 --gid 0 --create-home crew \
    && install --directory --owner=crew --group=0 --mode=0775 /var/lib/crew-service
USER crew
WORKDIR /var/lib/crew-service
