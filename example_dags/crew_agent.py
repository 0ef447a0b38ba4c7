"""A common-ai agent that can use a crew as one of its tools.

Needs `airflow-crew-provider[common-ai]`; without it, this file defines no DAG. Serve the crew with
`airflow-crew-service serve --crew example_dags/crews/newsroom.json`, and point the connection `crew_newsroom_agent` at
it. The connection `pydanticai_test` has the type `pydanticai` and needs no other fields: the model `test`, which is
part of Pydantic AI, calls each tool once without contacting a model provider.
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
        # In production, use another deployment of the same crew. With a narrow `failover_on`, a question that may have
        # started the first crew does not start the second one too.
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
                    description="Knows what has been written so far. Takes a topic.",
                    timeout=300,
                )
            ],
        )
