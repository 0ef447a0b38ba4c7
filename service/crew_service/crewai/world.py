"""What is a crew's own: the process that it is forked from, the folder in which it runs, its variables, its storage.

CrewAI reads the folder of its vector store and a `.env` file when it is imported, so crews that are forked from one
process share both. Crews with equal worlds may share that process.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from crew_service.crewai import project
from crew_service.crewai.errors import UnsupportedCrew

LIBRARIES = {"site-packages", "dist-packages"}
NAME = ".env"


@dataclass(frozen=True)
class World:
    """
    :param project: the crew's project, or the folder of its file
    :param folder: where its processes run
    :param dotenv: the project's own file of variables
    :param owner: identifies the crew's own tokens; empty if it has none
    """

    project: Path
    folder: Path
    dotenv: Path | None
    owner: str = field(default="", repr=False)


@dataclass(frozen=True)
class Place:
    """A crew's world, and its place in CrewAI's storage folder.

    :param name: the crew's name, and that of its folder in a storage folder that it would share with others
    :param is_one_of_several: whether the service serves other crews
    :param is_shared: whether another crew has the same storage folder even if `CREWAI_STORAGE_DIR` is not set
    :param takes_memory: whether the crew's memory may begin with a copy of the shared one
    :param has_users: whether users have tokens for it
    :param shares_memory: whether all users share the organization's memory
    """

    world: World
    name: str = ""
    is_one_of_several: bool = False
    is_shared: bool = False
    takes_memory: bool = True
    has_users: bool = False
    shares_memory: bool = False

    def message(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "world"}


def places_of(
    targets: Mapping[str, str],
    tokens: Collection[tuple[str, str | None, str]] | None,
    *,
    has_users: bool = False,
    shares_memory: bool = False,
) -> dict[str, Place]:
    """Return the place of each crew.

    :param tokens: the crews' own tokens, as (crew, user, token); None if this process does not know them
    :param has_users: whether users have tokens for all crews
    """
    own = {name: _digest(each for each in tokens or () if each[0] == name) for name in targets}
    worlds = {name: world_of(target, own[name]) for name, target in targets.items()}
    folders = [world.folder.name for world in worlds.values()]
    return {
        name: Place(
            world,
            name,
            is_one_of_several=len(targets) > 1,
            is_shared=folders.count(world.folder.name) > 1,  # CrewAI names its own after the working directory
            takes_memory=tokens is not None and not own[name],
            has_users=has_users or any(crew == name and user for crew, user, _ in tokens or ()),
            shares_memory=shares_memory,
        )
        for name, world in worlds.items()
    }


def world_of(target: str, owner: str = "") -> World:
    """Return the world of a crew; a target that cannot be loaded has one, too."""
    here, path = Path.cwd(), Path(target)
    is_path = project.is_path(target)
    if not is_path:
        path = Path(target.rpartition(":")[0])
    own = path.resolve() if path.is_dir() else path.resolve().parent if is_path or path.suffix == ".py" else here
    try:
        crew_project = project.of_folder(path) if is_path and path.is_dir() else project.around(own)
    except UnsupportedCrew:  # loading it says why
        crew_project = None
    if crew_project or is_path:
        root = crew_project.root if crew_project else own
        return World(root, root, root / NAME, owner)
    above = _above_libraries()
    return World(own, here, above if above and above.parent in (own, here) else None, owner)


def absolute(target: str) -> str:
    """Return a target that means the same in every folder."""
    place, _, name = target.rpartition(":")
    if project.is_path(target):
        return str(Path(target).absolute())
    return f"{Path(place).absolute()}:{name}" if place.endswith(".py") else target


def _digest(tokens: Iterable[tuple[str, str | None, str]]) -> str:
    """Identify a set of tokens without keeping them."""
    pairs = sorted((user or "", token) for _, user, token in tokens)
    return hashlib.sha256(repr(pairs).encode()).hexdigest() if pairs else ""


def _above_libraries() -> Path | None:
    """Return the file that CrewAI reads when it is imported: the first `.env` above its package."""
    crewai = find_spec("crewai")
    return _first_above(Path(crewai.origin)) if crewai and crewai.origin else None


def _first_above(file: Path) -> Path | None:
    return next((folder / NAME for folder in file.absolute().parents if (folder / NAME).is_file()), None)


def load_variables(dotenv: Path | None) -> dict[str, str]:
    """Set the variables in the project's `.env` that are not set, and return them."""
    before = dict(os.environ)
    if dotenv:
        from dotenv import load_dotenv  # a dependency of CrewAI; projects are recognized even without it

        load_dotenv(dotenv, override=False)
    return {name: value for name, value in os.environ.items() if name not in before}


def keep_out_others(dotenv: Path | None) -> None:
    """Give libraries that search for a `.env`, as CrewAI and LiteLLM do on import, only the project's own.

    They search the folders above their own package: those of whichever project the service is installed in.
    """
    import dotenv as package
    from dotenv import main

    original = main.load_dotenv

    def load_dotenv(dotenv_path: Any = None, stream: Any = None, *arguments: Any, **options: Any) -> bool:
        if not (dotenv_path or stream):
            caller = Path(sys._getframe(1).f_code.co_filename)
            dotenv_path = dotenv if LIBRARIES & set(caller.parts) else _first_above(caller)
            if dotenv_path is None:
                return False
        return original(dotenv_path, stream, *arguments, **options)

    package.load_dotenv = main.load_dotenv = load_dotenv
