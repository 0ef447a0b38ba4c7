# Airflow with this provider and the crew service: one image for every service of docker-compose.yaml.
ARG AIRFLOW_VERSION=3.3.2
FROM apache/airflow:${AIRFLOW_VERSION}

USER root
RUN install --directory --owner=airflow --group=0 --mode=0775 /var/lib/crew-service
USER airflow

COPY --chown=airflow:0 pyproject.toml README.md LICENSE /opt/crew-provider/
COPY --chown=airflow:0 airflow_crew_provider /opt/crew-provider/airflow_crew_provider
# Airflow's own version stands in the same command, so that pip refuses rather than changes it.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/crew-provider[service]"
