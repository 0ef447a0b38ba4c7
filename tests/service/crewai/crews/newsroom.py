"""A CrewBase class as `crewai create crew` lays it out: its agents and tasks stand in YAML files beside it."""

from __future__ import annotations

from crewai import Agent, Crew, Task
from crewai.project import CrewBase, agent, crew, task
from scribe import Scribe


@CrewBase
class Newsroom:
    agents_config = "config/agents.yaml"
    tasks_config = "config/tasks.yaml"

    @agent
    def writer(self) -> Agent:
        return Agent(config=self.agents_config["writer"], llm=Scribe(model="scribe"))

    @agent
    def checker(self) -> Agent:
        return Agent(config=self.agents_config["checker"], llm=Scribe(model="scribe"))

    @task
    def write_task(self) -> Task:
        return Task(config=self.tasks_config["write_task"])

    @task
    def check_task(self) -> Task:
        return Task(config=self.tasks_config["check_task"])

    @task
    def print_task(self) -> Task:
        return Task(config=self.tasks_config["print_task"])

    @crew
    def crew(self) -> Crew:
        return Crew(agents=self.agents, tasks=self.tasks)
