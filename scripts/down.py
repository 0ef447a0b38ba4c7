"""Stop what `make up` started, and return when it is gone."""

from __future__ import annotations

import psutil

from scripts.up import running


def main() -> None:
    process = running()
    if process is None:
        print("Nothing is up.")
        return
    process.terminate()
    try:
        process.wait(timeout=30)
    except psutil.TimeoutExpired:
        process.kill()  # its watchdog still ends all that it started
        process.wait(timeout=30)
    print("Stopped.")


if __name__ == "__main__":
    main()
