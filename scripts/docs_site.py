"""Hooks for `make docs`: files outside `docs/` that the pages link to become part of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BESIDE = re.compile(r"(?<=\]\()\.\./(?=[^)#\s])([^)#\s]+)")


def linked() -> list[str]:
    """Return the paths, relative to the repository, of the files outside `docs/` that the pages link to."""
    return sorted({path for page in (ROOT / "docs").glob("*.md") for path in BESIDE.findall(page.read_text("utf-8"))})


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files to the site, at the same paths."""
    for path in linked():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adjust links out of `docs/`, and links back into it, to the paths of the files on the site."""
    inside = (ROOT / "docs" / page.file.src_uri).exists()
    return BESIDE.sub(r"\1", markdown) if inside else re.sub(r"\]\(((?:\.\./)?)docs/", r"](\1", markdown)
