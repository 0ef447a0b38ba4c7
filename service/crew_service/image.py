"""`airflow-crew-service init`: write the files for an image of a CrewAI project, but never overwrite any."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path

from crew_service import __version__
from crew_service.crewai import project
from crew_service.crewai.errors import UnsupportedCrew
from crew_service.engine.crew import BadTarget

DOCKERFILE = """\
ARG PYTHON={python}
FROM python:${{PYTHON}}-slim
ENV CREWAI_STORAGE_DIR=/var/lib/crew/crewai CREW_SERVICE_DB=/var/lib/crew/crew-service.db UV_NO_CACHE=1
RUN useradd --uid 50000 --gid 0 -m crew && install --directory --owner=crew --mode=0775 /project /var/lib/crew
WORKDIR /project
COPY {files} ./
RUN pip install --no-cache-dir uv && {install} "airflow-crew-service[crewai,postgresql]=={version}"
COPY --chown=crew:0 . .
USER crew
CMD ["airflow-crew-service", "serve", "--host", "0.0.0.0", "--crew", "/project"]
"""
DOCKERIGNORE = """\
# Model keys belong in the container, not in the image.
**/.env
**/.env.*
**/.git
**/.venv
**/__pycache__
**/*.db*
.crewai
Dockerfile
.dockerignore
"""
LEFT = "Left "
INSTALL = "uv pip install --python python"
LOCKED = (
    "uv export --frozen --no-dev --no-emit-project --quiet --output-file /tmp/requirements.txt "
    f"&& {INSTALL} --requirement /tmp/requirements.txt"
)
REQUIREMENTS = {  # the first that exists is used
    "pyproject.toml uv.lock": LOCKED,
    "pyproject.toml": f"{INSTALL} --requirement pyproject.toml",
    "requirements.txt": f"{INSTALL} --requirement requirements.txt",
}


def write(folder: Path) -> list[str]:
    """Write the missing files and return the lines to print; raise `BadTarget` if that fails."""
    what = _what_is_served(folder)
    ignoring = folder / ".dockerignore"
    if ignoring.exists() and not _keeps_out(ignoring.read_text(encoding="utf-8").splitlines(), ".env"):
        raise BadTarget(
            f"{str(ignoring)!r} does not keep .env, with the model keys, out of the image: add the line "
            "**/.env to it. Nothing was written."
        )
    wanted = {ignoring: DOCKERIGNORE, folder / "Dockerfile": _dockerfile(folder)}
    return [f"{what} {folder.resolve()}."] + [_placed(path, text) for path, text in wanted.items()]


def _what_is_served(folder: Path) -> str:
    if not folder.is_dir():
        raise BadTarget(f"There is no folder {str(folder)!r}.")
    try:
        crew_project = project.of_folder(folder)
        declaration = crew_project.declaration()
        kind, place = ("", declaration.name) if declaration else crew_project.module()
    except UnsupportedCrew as error:
        raise BadTarget(f"{str(folder)!r} is not a CrewAI project: {error}") from None
    return f"Found {f'the {kind} of {place}' if kind else place} in"


def _dockerfile(folder: Path) -> str:
    there = [files for files in REQUIREMENTS if all((folder / name).is_file() for name in files.split())]
    if not there:
        raise BadTarget(
            f"{str(folder)!r} has neither pyproject.toml nor requirements.txt, so its requirements are unknown."
        )
    python = ".".join(str(part) for part in sys.version_info[:2])
    return DOCKERFILE.format(python=python, files=there[0], install=REQUIREMENTS[there[0]], version=__version__)


def _keeps_out(patterns: list[str], name: str) -> bool:
    """Return whether a .dockerignore excludes a top-level file: the last matching pattern decides."""
    kept_out = False
    for pattern in (line.strip() for line in patterns):
        if fnmatch(name, pattern.removeprefix("!").removeprefix("/").removeprefix("**/")):
            kept_out = not pattern.startswith("!")
    return kept_out


def _placed(path: Path, text: str) -> str:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return f"{LEFT}{path.name} as it is."
    except OSError as error:
        raise BadTarget(f"{str(path)!r} cannot be written: {error.strerror}.") from None
    return f"Wrote {path.name}."
