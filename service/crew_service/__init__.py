"""The crew service: crews and Flows behind the Crew Execution API, whose executions outlive their processes."""

__version__ = "0.3.0.dev0"
