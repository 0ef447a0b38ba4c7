# Two images: Airflow with this provider (`airflow`), and the crew service with CrewAI (`crew-service`), whose many
# dependencies Airflow's own components do without.
ARG AIRFLOW_VERSION=3.3.2
FROM apache/airflow:${AIRFLOW_VERSION} AS airflow

USER root
RUN install --directory --owner=airflow --group=0 --mode=0775 /var/lib/crew-service
USER airflow

COPY --chown=airflow:0 pyproject.toml README.md LICENSE /opt/crew-provider/
COPY --chown=airflow:0 airflow_crew_provider /opt/crew-provider/airflow_crew_provider
# Airflow's own version stands in the same command, so that pip refuses rather than changes it.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/crew-provider[service]"

FROM airflow AS crew-service
# Beside Airflow's own environment: CrewAI and Airflow need not agree on a version of anything.
ENV PATH="/home/airflow/crew-service/bin:${PATH}"
RUN python -m venv /home/airflow/crew-service \
    && /home/airflow/crew-service/bin/pip install --no-cache-dir "/opt/crew-provider[crewai]" psycopg2-binary
WORKDIR /var/lib/crew-service
