"""Copy the deferred task of `many_waits`: `python -m benchmarks.harness.copied_waits 5000 ours http://...`.

Starting as many real tasks would take an hour on two cores; to a triggerer, the copies are no different. With
another kind than ``ours``, all of them wait with that kind's trigger.
"""

from __future__ import annotations

import sys
import uuid

import sqlalchemy as sa
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session

from benchmarks.harness.kinds import KINDS, OURS

INTERVAL = 30.0


def main() -> None:
    number, kind, url = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    table = TaskInstance.__table__
    with create_session() as session:
        first = session.execute(sa.select(table).where(table.c.task_id == "wait")).mappings().one()
        trigger = session.get(Trigger, first["trigger_id"])
        assert trigger
        classpath, kwargs = trigger.classpath, trigger.kwargs
        for index in range(1, number):
            if kind == OURS:
                copy = Trigger(classpath=classpath, kwargs={**kwargs, "kickoff_id": f"wait-{index}"})
            else:
                described = {"number": index, "interval": INTERVAL, "url": url}
                copy = Trigger(classpath=f"{KINDS[kind].__module__}.{KINDS[kind].__name__}", kwargs=described)
            session.add(copy)
            session.flush()
            values = {"id": uuid.uuid4(), "map_index": index, "trigger_id": copy.id}
            session.execute(sa.insert(table).values({**first, **values}))


if __name__ == "__main__":
    main()
