"""The plugin for Airflow's UI: it adds the Crew tab, and makes review forms show why an answer was refused.

Every Airflow process loads it, so it imports very little.

Airflow 3.4 shows a view only for the operators that the view names. Older versions would show it for every task in
every DAG, so on those versions the tab is off until a setting turns it on.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, conf

from airflow_crew_provider.compat.version import has_human_in_the_loop, has_views_by_operator
from airflow_crew_provider.compat.web import LazyApp

URL_PREFIX = "/crew-view"
SECTION, TASK_TAB, RUN_TAB = "crew", "task_tab", "run_tab"
# Relative, so that it also works if Airflow is served under a path.
RUN_PAGE = f"{URL_PREFIX[1:]}/dags/{{DAG_ID}}/runs/{{RUN_ID}}"
ICONS = {"icon": f"{URL_PREFIX[1:]}/icon.svg", "icon_dark_mode": f"{URL_PREFIX[1:]}/icon-dark.svg"}
OPERATORS = [
    "CrewKickoffOperator",
    "@task.crew",
    "CrewStatusSensor",
    "CrewReviewOperator",
    "CrewResumeOperator",
    "CrewUsageApprovalOperator",
    "CrewRunOperator",
]


def _app() -> Any:
    from airflow_crew_provider.view import app

    return app.view_app()


def external_views() -> list[dict[str, Any]]:
    """Return the tabs that this Airflow should show."""
    if not has_human_in_the_loop():
        return []
    task = {
        "name": "Crew",
        "href": f"{RUN_PAGE}/tasks/{{TASK_ID}}/{{MAP_INDEX}}",
        "destination": "task_instance",
        "url_route": "crew",
        "applies_to": {"operator_name": OPERATORS},
        **ICONS,
    }
    run = {"name": "Crews", "href": RUN_PAGE, "destination": "dag_run", "url_route": "crews", **ICONS}
    on_tasks = conf.getboolean(SECTION, TASK_TAB, fallback=has_views_by_operator())
    on_runs = conf.getboolean(SECTION, RUN_TAB, fallback=False)
    return [*([task] if on_tasks else []), *([run] if on_runs else [])]


class CrewViewPlugin(AirflowPlugin):
    """Shows on a task's page what its crew is doing, and in a review's form why an answer was not accepted."""

    name = "crew_view"
    fastapi_apps = (
        [{"app": LazyApp(_app), "url_prefix": URL_PREFIX, "name": "Crew view"}] if has_human_in_the_loop() else []
    )
    external_views = external_views()

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Make review forms explain why an answer was not accepted, in a process that stores the forms."""
        from airflow_crew_provider.review.refusal_notice import explain_refusals

        explain_refusals()
