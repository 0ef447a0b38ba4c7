"""The only place that sends and receives: `client.Client` performs calls, `Deployment` is a value without libraries.

Law: connecting may be retried, a POST that may have arrived is never sent again. Every exchange ends within its
total time, every body within `LARGEST_BODY`, and the token goes to the connection's own origin only.
"""

from airflow_crew_provider.client.deployment import LARGEST_BODY, Deployment, check_header

__all__ = ["LARGEST_BODY", "Deployment", "check_header"]
