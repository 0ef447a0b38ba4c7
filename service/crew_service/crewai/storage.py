"""The folder in which CrewAI keeps a crew's memory, knowledge and Flow states. It runs in the crew's process.

A crew that is served alone uses CrewAI's folder: `CREWAI_STORAGE_DIR`, or one named after the working directory. Where
several crews would share a folder, each has its own inside it, named after the crew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from crewai.utilities.paths import db_storage_path

from crew_service.crewai import internals

VARIABLE = "CREWAI_STORAGE_DIR"
BEGUN = ".crew-service"  # a file in each crew's own folder
MEMORY = "memory"
STATES = "flow_states.db"


def use(place: dict[str, Any]) -> list[str]:
    """Set the folder of this process; return what users should know if the crew begins a new one.

    :param place: from `world.Place.message`
    """
    shared = Path(db_storage_path())
    memory = Path(os.environ.get(VARIABLE) or shared).absolute() / MEMORY  # CrewAI resolves it in another way
    own = shared / place["name"]
    has_begun = bool(place["name"]) and (own / BEGUN).exists()
    is_own = place["is_shared"] or VARIABLE in os.environ if place["is_one_of_several"] else has_begun
    told = [] if has_begun or not is_own else _begin(own, shared / STATES, memory, place)
    if is_own:
        os.environ[VARIABLE] = str(own)
    internals.keep_knowledge_in(str(own if is_own else shared), is_required=is_own)
    return told


def _begin(own: Path, states: Path, memory: Path, place: dict[str, Any]) -> list[str]:
    """Begin a crew's own folder with what lies in the shared one; complete the folder before it appears."""
    own.parent.mkdir(parents=True, exist_ok=True)
    if own.exists() and any(own.iterdir()):
        (own / BEGUN).touch()
        return []
    takes_memory = place["takes_memory"] and memory.exists()
    with tempfile.TemporaryDirectory(dir=own.parent, prefix=f".{own.name}-") as place_for_both:
        new = Path(place_for_both, own.name)
        new.mkdir()
        if states.exists():
            with (
                contextlib.closing(sqlite3.connect(f"{states.as_uri()}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(new / STATES)) as copy,
            ):
                source.backup(copy)
        if takes_memory:
            with internals.locked_memory(memory):
                shutil.copytree(memory, new / MEMORY)
        (new / BEGUN).touch()
        try:
            new.rename(own)
        except OSError:
            if not (own / BEGUN).exists():  # otherwise, another process was faster
                raise
            return []
    kept = [*(["memory"] if takes_memory else []), *(["Flow states"] if states.exists() else [])]
    told = f"the crew {place['name']!r} now has a storage folder of its own, {own}"
    if kept:
        told += f", which begins with a copy of the {' and '.join(kept)} that it shared with other crews"
    if takes_memory:
        return [f"{told}; to begin without that memory, stop the service and delete {own / MEMORY}"]
    if memory.exists():
        told += f"; its memory is empty, because {memory} may hold what other crews remember"
        return [f"{told}; to keep that, stop the service and copy it to {own / MEMORY}"]
    return [told] if kept else []
