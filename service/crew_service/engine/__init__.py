"""What the crew service does: executions and their states, running crews, delivering webhooks, retention."""
