"""Runs coroutines for code that is not asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any


def awaited(result: Coroutine[Any, Any, Any]) -> Any:
    """Return a coroutine's result, even to code that an event loop runs, such as a Flow's method that awaits a crew."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(result)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, asyncio.run, result).result()
