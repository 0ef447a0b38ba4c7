"""Why a target cannot be served."""

from __future__ import annotations


class UnsupportedCrew(Exception):
    """The target cannot be served; the text says what was found and what would do, as the end of a sentence."""
