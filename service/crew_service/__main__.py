"""The command's entry point, which prints one sentence if a required package is missing."""

from __future__ import annotations

import sys

from crew_service import restart
from crew_service.http import starting


def main() -> int:
    arguments = restart.arguments()
    early = starting.started(arguments)  # before slow imports
    try:
        from crew_service.cli import main as run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "crew_service":
            raise
        sentence = f"The crew service needs {package!r}: pip install airflow-crew-service."
        print(sentence, file=sys.stderr)  # noqa: T201
        return 2
    return run(arguments, early)


if __name__ == "__main__":
    sys.exit(main())
