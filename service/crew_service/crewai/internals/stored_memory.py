"""Moves, locks, fills and prunes the folders in which CrewAI keeps knowledge and memory."""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from crew_service.crewai.internals import Seam

IN_USE = timedelta(hours=1)  # a version of the memory that another process may still read
WAITING = 86_400.0  # seconds for a lock that another execution holds; CrewAI's two minutes end executions
BATCH = 5_000  # documents in one query of the vector store
ON_IMPORT = "CrewAI determines the vector store's folder when it is imported, which all crews of a project share"
FOLDERS = Seam(
    "crews with names, and users without --shared-memory, are refused",
    {
        "crewai_core.paths:db_storage_path": "what crews stored before they had folders of their own is there",
        "crewai.rag.chromadb.constants:DEFAULT_STORAGE_PATH": ON_IMPORT,
        "crewai.rag.chromadb.config:DEFAULT_STORAGE_PATH": ON_IMPORT,
    },
)
KNOWLEDGE = Seam(
    "each execution embeds its crew's knowledge again",
    {
        "crewai.knowledge.storage.knowledge_storage:KnowledgeStorage.save": "to skip what is embedded already",
        "crewai.knowledge.storage.knowledge_storage:KnowledgeStorage._get_client": "to see what is embedded already",
    },
)


def folder() -> Path:
    """Return CrewAI's folder, which it names after the working directory."""
    return Path(FOLDERS["db_storage_path"]())


def keep_knowledge_in(folder: str) -> None:
    """Set the folder of the vector store."""
    for name in ("constants", "config"):
        sys.modules[f"crewai.rag.chromadb.{name}"].DEFAULT_STORAGE_PATH = folder  # type: ignore[attr-defined]


def embed_once(folder: Path) -> None:
    """Let this process add to the vector store only what no other execution of the crew has embedded."""
    wait_for_locks()
    if not KNOWLEDGE.missing:
        KNOWLEDGE.wrap("KnowledgeStorage.save", lambda save: _saved_once(save, folder))


def share_locks() -> None:
    """Keep CrewAI's locks in the present folder for temporary files: this process's children have one each."""
    with suppress(ImportError):  # an older CrewAI
        from crewai_core import lock_store

        common = tempfile.gettempdir()
        lock_store.tempfile = SimpleNamespace(gettempdir=lambda: common)  # type: ignore[assignment,attr-defined]


def wait_for_locks() -> None:
    """Let this process wait for CrewAI's locks, which others hold while they ask a model for embeddings."""
    with suppress(ImportError, AttributeError):  # an older CrewAI
        from crewai_core.lock_store import lock

        defaults = lock.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]
        defaults.update({"timeout": WAITING} if "timeout" in (defaults or ()) else {})


def _saved_once(save: Callable[..., None], folder: Path) -> Callable[..., None]:
    def saved(storage: Any, documents: list[str], *args: Any, **kwargs: Any) -> None:
        with _locked(folder / f".embedded-{_digest(str(storage.collection_name))}") as file:
            ids = {_digest(document) for document in documents}  # as CrewAI names them
            embedder = _identity(client := storage._get_client())
            known = _read(file)
            embedded: set[str] = set(known["ids"]) if embedder and known["embedder"] == embedder else set()
            if ids and ids <= embedded and _has(client, storage.collection_name, ids):
                return
            save(storage, documents, *args, **kwargs)
            file.seek(0)
            file.truncate()
            json.dump({"embedder": embedder, "ids": sorted(embedded | ids)}, file)

    return saved


@contextmanager
def _locked(path: Path) -> Iterator[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            file.seek(0)
            yield file
            file.flush()
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that the embedder left behind has the file open, too


def _read(file: Any) -> dict[str, Any]:
    with suppress(ValueError):  # empty, or its writer was killed
        return dict(json.load(file))
    return {"embedder": None, "ids": []}


def _identity(client: Any) -> str | None:
    """Return a digest of what determines embeddings; None if it is not known."""
    with suppress(Exception):  # of a user's class
        embedder = client.embedding_function
        return _digest(json.dumps([type(embedder).__qualname__, embedder.name(), embedder.get_config()]))
    return None


def _has(client: Any, collection: str | None, ids: set[str]) -> bool:
    """Return whether the vector store still has all of these documents."""
    with suppress(Exception):  # there is no such collection
        name = f"knowledge_{collection}" if collection else "knowledge"
        stored, wanted = client.get_or_create_collection(collection_name=name), list(ids)
        batches = (wanted[begin : begin + BATCH] for begin in range(0, len(wanted), BATCH))
        return all(len(set(stored.get(ids=batch, include=[])["ids"])) == len(batch) for batch in batches)
    return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def forget_memory(folder: Path, before: float) -> None:
    """Delete what was remembered in this folder before this time, and the files of what was deleted an hour ago."""
    from crewai.memory.storage.lancedb_storage import LanceDBStorage

    stored = LanceDBStorage(str(folder), compact_every=0)
    stored.delete(older_than=datetime.fromtimestamp(before, timezone.utc).replace(tzinfo=None))
    if stored._table is not None:
        stored._table.optimize(cleanup_older_than=IN_USE)


def locked_memory(folder: Path) -> AbstractContextManager[None]:
    """Return a lock that no process holds while it changes the memory in this folder."""
    try:
        from crewai_core.lock_store import lock
    except ImportError:  # an older CrewAI
        return nullcontext()
    return lock(f"lancedb:{folder.resolve()}")
