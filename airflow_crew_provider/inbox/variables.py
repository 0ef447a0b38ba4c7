"""A task's side of what the inbox stores: Variables, reached by the Execution API in a worker or a triggerer.

A secrets backend that is configured for Variables is asked first, as for any Variable.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.common.compat.sdk import Variable
from asgiref.sync import sync_to_async

from airflow_crew_provider.compat.encryption import seal, unseal
from airflow_crew_provider.compat.supervisor import is_awaitable
from airflow_crew_provider.compat.task_state import found_or_none, is_missing
from airflow_crew_provider.core.inbox_messages import InboxMessages
from airflow_crew_provider.inbox.records import RegisteredTask, messages_key
from airflow_crew_provider.models import Json


def register(task: RegisteredTask, messages: InboxMessages) -> None:
    """Store a registration, durably; what arrived under it before stays.

    :param messages: what had arrived where that was stored before an upgrade
    """
    put(task.key, task.as_dict(), task.description)
    if get(task.messages_key) is None:
        put(task.messages_key, messages.as_dict(), task.description, sealed=True)
    if task.newest:
        put(*task.newest, task.description)


def put(key: str, value: Json, said: str, *, sealed: bool = False) -> None:
    """Store a value and read it back: Airflow only logs that it failed to store a Variable."""
    text = json.dumps(value)
    Variable.set(key, seal(text) if sealed else text, description=said)
    if get(key) != value:
        raise RuntimeError(f"Airflow's Variable {key} does not read as it was stored")


def get(key: str) -> Any:
    """Return what stands under a name; None if there is nothing."""
    text: str | None = found_or_none(lambda: Variable.get(key))
    return json.loads(unseal(text)) if text else None


async def aget(key: str) -> Any:
    """Do what `get` does without blocking the event loop."""
    read = getattr(Variable, "aget", None)  # Airflow 3.4 reads without a thread, of which a triggerer has few
    if read is None or not is_awaitable():
        return await sync_to_async(get)(key)
    try:
        text = await read(key)
    except Exception as error:
        if is_missing(error):
            return None
        raise
    return json.loads(unseal(text)) if text else None


def box(registration_id: str) -> Any:
    """Return what arrived under a registration; None if nothing is stored for it."""
    return get(messages_key(registration_id))


async def abox(registration_id: str) -> Any:
    """Do what `box` does without blocking the event loop."""
    return await aget(messages_key(registration_id))
