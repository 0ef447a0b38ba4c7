"""Tools for this project: run them with `python -m scripts.<name>` or `make`."""
