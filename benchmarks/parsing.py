"""Measures the cost of a DAG file that uses the provider: `python -m benchmarks.parsing [--full]`.

First, the CPU time for importing each public module, in addition to what Airflow needs for a DAG with a BaseOperator, a
sensor and an HITLOperator. Then, the CPU time for creating and serializing a DAG of 500 kickoff and sensor tasks, and
the same DAG with bare operators.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

from benchmarks.harness import turns
from benchmarks.harness.turns import Figures

AIRFLOW = """
from airflow.providers.common.compat.sdk import DAG, BaseOperator, BaseSensorOperator, task
from airflow.providers.standard.operators.hitl import HITLOperator
"""
MODULES = ("operators.crew", "operators.review", "sensors.crew", "triggers.crew", "task_groups.crew", "decorators.crew")
IMPORT = (
    AIRFLOW
    + """
import time
began = time.process_time()
import airflow_crew_provider.{module}
print((time.process_time() - began) * 1000)
"""
)
TASKS = {
    "bare operators": """
class Bare(BaseOperator):
    template_fields = ("inputs",)
    def __init__(self, inputs, **kwargs):
        super().__init__(**kwargs)
        self.inputs = inputs
class BareSensor(BaseSensorOperator):
    template_fields = ("kickoff_id",)
    def __init__(self, kickoff_id, **kwargs):
        super().__init__(**kwargs)
        self.kickoff_id = kickoff_id
""",
    "bare operators with as many fields": """
class Fields:
    def __init__(self, conn_id="bare_default", a=None, b=None, c=None, d=None, e=None, f=None, g=None, h=False,
                 i=10.0, j=None, k=True, l=False, **kwargs):
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.a, self.b, self.c, self.d, self.e, self.f, self.g = a, b, c, d, e, f, g
        self.h, self.i, self.j, self.k, self.l = h, i, j, k, l
class Bare(Fields, BaseOperator):
    template_fields = ("inputs", "a", "b", "c", "conn_id", "d")
    def __init__(self, inputs, **kwargs):
        super().__init__(**kwargs)
        self.inputs = inputs
class BareSensor(Fields, BaseSensorOperator):
    template_fields = ("kickoff_id", "a", "conn_id", "b")
    def __init__(self, kickoff_id, **kwargs):
        super().__init__(**kwargs)
        self.kickoff_id = kickoff_id
""",
    "crew operators": """
from airflow_crew_provider.operators.crew import CrewKickoffOperator as Bare
from airflow_crew_provider.sensors.crew import CrewStatusSensor as BareSensor
""",
}
MADE = """
try:
    from airflow.serialization.serialized_objects import DagSerialization as Serialization
except ImportError:
    from airflow.serialization.serialized_objects import SerializedDAG as Serialization
def made(pairs=250):
    with DAG("measured", schedule=None) as dag:
        for number in range(pairs):
            kickoff = Bare(task_id=f"kickoff_{number}", inputs={"topic": "{{ params.topic }}"})
            BareSensor(task_id=f"wait_{number}", kickoff_id=kickoff.output)
    return Serialization.to_dict(dag)
"""
DAG_OF_500 = (
    MADE
    + """
import time
made()
best = []
for _ in range(5):
    began = time.process_time()
    made()
    best.append(time.process_time() - began)
print(min(best) * 1000)
"""
)


def cpu(code: str) -> Figures:
    """Run the code in a new Python process; return the milliseconds that it prints."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "AIRFLOW_HOME": home}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {"cpu_ms": float(done.stdout.splitlines()[-1])}


def run(full: bool) -> str:
    imports: dict[str, Callable[[], Figures]] = {name: partial(cpu, IMPORT.format(module=name)) for name in MODULES}
    of_imports = turns.in_turn(imports, 5 if full else 1)
    dags = {name: partial(cpu, AIRFLOW + code + DAG_OF_500) for name, code in TASKS.items()}
    of_dags = turns.in_turn(dags, 7 if full else 2)
    turns.keep("parsing", {"imports": of_imports.of, "a DAG of 500 tasks": of_dags.of})
    import_rows = [[name, of_imports.shown(name, "cpu_ms")] for name in MODULES]
    bare = next(iter(TASKS))
    dag_rows = [[name, of_dags.shown(name, "cpu_ms"), of_dags.ratio(name, bare, "cpu_ms")] for name in TASKS]
    return "\n\n".join(
        (
            turns.table(["import", "CPU ms on top of Airflow's"], import_rows),
            turns.table(["a DAG of 500 tasks of", "CPU ms to make and serialize", "of the bare"], dag_rows),
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more turns")
    print(run(parser.parse_args().full))
