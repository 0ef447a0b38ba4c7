"""Tools of the project: run them with `python -m scripts.<name>`, or by `make`."""
