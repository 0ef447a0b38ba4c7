from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_stub import CREWS, EngineStub
from fork_template import forked_crews

from crew_service.crewai import load


@pytest.fixture(scope="session", autouse=True)
def _crewai_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what CrewAI stores out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CREWAI_STORAGE_DIR", str(tmp_path_factory.mktemp("crewai")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_crews() -> Iterator[None]:
    """Spare each worker the import of CrewAI, for crews that run without a command."""
    with forked_crews():
        yield


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., EngineStub]:
    """Plays a crew of `crews/`, as the engine would, with a log of what its model and callbacks did."""
    return lambda name, file="samples.py": EngineStub(load(f"{CREWS / file}:{name}"), tmp_path / "log")
