"""The base class of `@task.crew`."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import BaseOperator
from airflow.providers.common.compat.sdk import DecoratedOperator as AnyDecoratedOperator


class DecoratedOperator(AnyDecoratedOperator):
    """Airflow 3.0 passes a method on, without using it, that operators of Airflow 3 do not have."""

    if not hasattr(BaseOperator, "xcom_push"):
        xcom_push = None
