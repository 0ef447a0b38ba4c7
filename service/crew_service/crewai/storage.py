"""The folder in which CrewAI keeps a crew's memory, knowledge and Flow states. It runs in the crew's process.

Knowledge and states are the crew's. So is the memory of the organization's executions; each user's is in a folder of
that user inside the crew's.

A crew that is served alone uses CrewAI's folder: `CREWAI_STORAGE_DIR`, or one named after the working directory. Where
several crews would share a folder, each has its own inside it, named after the crew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from crew_service.crewai.errors import UnsupportedCrew
from crew_service.crewai.internals import stored_memory

VARIABLE = "CREWAI_STORAGE_DIR"
BEGUN = ".crew-service"  # a file in each crew's own folder
MEMORY = "memory"
OWNERS = "owners"
STATES = "flow_states.db"
NEEDS_FOLDERS = "a crew with a name, or with users of its own memory, needs a folder of its own, which cannot be set"


def use(place: dict[str, Any], *, owner: str | None = None) -> list[str]:
    """Set the folder of this process; return what users should know if the crew begins a new one.

    :param place: from `world.Place.message`
    :param owner: the user whose execution this process runs
    """
    if stored_memory.FOLDERS.missing:
        has_users = place["has_users"] or owner is not None  # `work` has no tokens, but runs users' executions
        if place["name"] or (has_users and not place["shares_memory"]):
            raise UnsupportedCrew(f"{NEEDS_FOLDERS}: {stored_memory.FOLDERS.reason}.")
        return []
    shared = stored_memory.folder()
    memory = Path(os.environ.get(VARIABLE) or shared).absolute() / MEMORY  # CrewAI resolves it in another way
    own = shared / place["name"]
    has_begun = bool(place["name"]) and (own / BEGUN).exists()
    is_own = place["is_shared"] or VARIABLE in os.environ if place["is_one_of_several"] else has_begun
    notes = [] if has_begun or not is_own else _begin(own, shared / STATES, memory, place)
    folder = own if is_own else shared
    if is_own:
        os.environ[VARIABLE], memory = str(own), own / MEMORY
    stored_memory.keep_knowledge_in(str(folder))
    stored_memory.embed_once(folder)
    if place["has_users"] and not place["shares_memory"]:
        notes += _begin_owners(folder / OWNERS, memory)
    if owner is not None and not place["shares_memory"]:
        os.environ[VARIABLE] = str(_of_owner(folder, owner))
    return notes


def forget(before: float) -> None:
    """Delete what the crew, for any of its owners, remembered before this time."""
    folder = stored_memory.folder()
    own = Path(os.environ.get(VARIABLE) or folder).absolute() / MEMORY
    for memory in (own, *(folder / OWNERS).glob(f"*/{MEMORY}")):
        if memory.exists():
            stored_memory.forget_memory(memory, before)


def _begin_owners(owners: Path, memory: Path) -> list[str]:
    """Make the folder of users' memory; return what they should know if they shared the crew's memory until now."""
    if owners.exists():
        return []
    owners.mkdir(parents=True)
    if not memory.exists() or not any(memory.iterdir()):
        return []
    return [
        f"each user's executions now have a memory of their own, in {owners}, which is empty at first; {memory} "
        "remains that of the organization's. To let a user go on with it, stop the service and copy it to "
        f"{owners}/SHA-256 of the user's name/{MEMORY}; with --shared-memory, users share it as before"
    ]


def _of_owner(folder: Path, owner: str) -> Path:
    """Return a user's folder, in which the crew's Flow states appear, too: a state is found only by its id."""
    own = folder / OWNERS / hashlib.sha256(owner.encode("utf-8", "surrogateescape")).hexdigest()
    own.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (own / STATES).symlink_to(Path("..", "..", STATES))
    return own


def _begin(own: Path, states: Path, memory: Path, place: dict[str, Any]) -> list[str]:
    """Begin a crew's own folder with what lies in the shared one; complete the folder before it appears."""
    own.parent.mkdir(parents=True, exist_ok=True)
    if own.exists() and any(own.iterdir()):
        (own / BEGUN).touch()
        return []
    is_memory = memory.exists() and any(memory.iterdir())
    takes_memory = place["takes_memory"] and is_memory
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
            with stored_memory.locked_memory(memory):
                shutil.copytree(memory, new / MEMORY)
        (new / BEGUN).touch()
        try:
            new.rename(own)
        except OSError:
            if not (own / BEGUN).exists():  # otherwise, another process was faster
                raise
            return []
    copied = [*(["memory"] if takes_memory else []), *(["Flow states"] if states.exists() else [])]
    note = f"the crew {place['name']!r} now has a storage folder of its own, {own}"
    if copied:
        note += f", which begins with a copy of the {' and '.join(copied)} that it shared with other crews"
    if takes_memory:
        return [f"{note}; to begin without that memory, stop the service and delete {own / MEMORY}"]
    if is_memory:
        note += f"; its memory is empty, because {memory} may hold what other crews remember"
        return [f"{note}; to keep that, stop the service and copy it to {own / MEMORY}"]
    return [note] if copied else []
