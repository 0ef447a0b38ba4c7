"""The local crew service: one crew behind the Crew Execution API, for development, demonstrations and tests."""

__version__ = "0.2.0"
