"""Stop everything that `make up` started, and return once it has stopped."""

from __future__ import annotations

import psutil

from scripts.up import running


def main() -> None:
    process = running()
    if process is None:
        print("Nothing is running.")
        return
    process.terminate()
    try:
        process.wait(timeout=30)
    except psutil.TimeoutExpired:
        process.kill()  # its watchdog still stops everything that it started
        process.wait(timeout=30)
    print("Stopped.")


if __name__ == "__main__":
    main()
