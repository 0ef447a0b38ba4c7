"""An agent of common-ai that may consult a crew, as one of its tools.

Needs `airflow-crew-provider[common-ai]`; without it this file has no DAG. Serve the crew with
`airflow-crew-service serve --crew example_dags/crews/newsroom.json`; the connection `crew_newsroom_agent` leads there.
The connection `pydanticai_test` is one of the type `pydanticai` and needs nothing but its id: the model `test`, which
comes with common-ai's library, calls each tool once and asks no provider.
"""

from __future__ import annotations

from importlib.util import find_spec

import pendulum
from airflow.providers.common.compat.sdk import DAG

from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.hooks.crew import CrewHook

if find_spec("airflow.providers.common.ai"):
    from airflow.providers.common.ai.managed_agents import FailoverManagedAgentClient
    from airflow.providers.common.ai.operators.agent import AgentOperator
    from airflow.providers.common.ai.toolsets.managed_agent import ManagedAgentToolset

    with DAG(
        dag_id="crew_agent",
        schedule=None,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        catchup=False,
        tags=["crew", "agent"],
        doc_md=__doc__,
    ):
        newsroom = CrewHook("crew_newsroom_agent", prompt_input="topic").agent("newsroom")
        # Another deployment of the same crew belongs here. With a narrow `failover_on`, a question that may have
        # started the first crew does not start the other one too.
        standby = CrewHook("crew_newsroom_agent", prompt_input="topic").agent("newsroom-standby")
        AgentOperator(
            task_id="ask",
            prompt="What did we write about tea?",
            llm_conn_id="pydanticai_test",
            model_id="test",
            toolsets=[
                ManagedAgentToolset(
                    FailoverManagedAgentClient([newsroom, standby], failover_on=(CrewError,)),
                    tool_name="ask_newsroom",
                    description="Knows what was written so far. Takes a topic.",
                    timeout=300,
                )
            ],
        )
