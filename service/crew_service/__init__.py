"""The crew service: serves crews and Flows over the Crew Execution API. Executions survive a killed process."""

__version__ = "0.3.0.dev0"
