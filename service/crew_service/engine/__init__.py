"""The core of the crew service: executions and their states, running crews, delivering webhooks, retention."""
