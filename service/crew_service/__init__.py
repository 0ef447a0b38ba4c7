"""The crew service: serves crews and Flows over the Crew Execution API; executions survive a loss of their process."""

__version__ = "0.3.0.dev0"
