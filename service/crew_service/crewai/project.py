"""A CrewAI project on disk: its `[tool.crewai]` table in pyproject.toml and the import path that its processes need."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from crew_service.crewai.errors import UnsupportedCrew
from crew_service.engine.tool_rules import BadRule, ToolRule, flow_tools_of_project
from crew_service.engine.tool_rules import of_project as tool_rules_of

JSON = (".jsonc", ".json")
DECLARATIONS: dict[str | None, tuple[str, ...]] = {
    "crew": ("crew.jsonc", "crew.json"),
    "flow": ("flow.yaml", "flow.yml"),
    "agent": ("agent.jsonc", "agent.json"),
}
DECLARATIONS[None] = DECLARATIONS["crew"] + DECLARATIONS["flow"]
OF_AGENT = ("role", "from_repository")  # one of them is in every agent's file
OWN = "airflow-crew-service"  # the table of this service in pyproject.toml
SETTINGS = ("tools", "flow_tools", "ask_person")
MODULES = {"crew": "crew.py", "flow": "main.py", "agent": "agent.py"}  # where the templates put the class


@dataclass(frozen=True)
class Project:
    root: Path
    kind: str | None = None  # crew, flow or agent, from `type`
    definition: str | None = None
    scripts: tuple[str, ...] = ()

    def enter(self) -> None:
        """Set up this process for the project: working directory and import path."""
        os.chdir(self.root)
        for folder in (self.root, self.root / "src"):
            if folder.is_dir() and str(folder) not in sys.path:
                sys.path.insert(0, str(folder))

    def declaration(self) -> Path | None:
        """Return the file that describes the crew, Flow or agent, if any."""
        if self.definition:
            path = (self.root / self.definition).resolve()
            if not path.is_relative_to(self.root) or not path.is_file():
                raise UnsupportedCrew(
                    f"[tool.crewai] specifies the definition {self.definition!r}, which is not a file in the project."
                )
            return path
        paths = [path for name in DECLARATIONS.get(self.kind, ()) if (path := self.root / name).is_file()]
        if not paths and self.kind == "agent":
            paths = sorted(path for path in self.root.glob("agents/*") if path.suffix in JSON)
            if len(paths) > 1:
                names = ", ".join(path.name for path in paths)
                raise UnsupportedCrew(f"its folder agents has several files ({names}); specify which one to serve.")
        return next(iter(paths), None)

    def module(self) -> tuple[str, str]:
        """Return a Python project's kind and the name of the module that contains its class."""
        for kind in (self.kind,) if self.kind else ("crew", "flow"):
            for file in self._modules(MODULES.get(kind, "")):
                return kind, ".".join(file.relative_to(self._source()).with_suffix("").parts)
        raise UnsupportedCrew(self._nothing_found())

    def _source(self) -> Path:
        return self.root / "src" if (self.root / "src").is_dir() else self.root

    def _modules(self, name: str) -> list[Path]:
        """List the modules with that name, those in packages named in the project's scripts first."""
        paths = sorted(path for path in (*self._source().glob(f"*/{name}"), self._source() / name) if path.is_file())
        packages = {script.partition(":")[0].partition(".")[0] for script in self.scripts}
        return sorted(paths, key=lambda path: path.parent.name not in packages)

    def _nothing_found(self) -> str:
        wanted = {
            "crew": "crew.jsonc or module crew.py in src/<package>",
            "flow": "module main.py in src/<package> or definition in [tool.crewai]",
            "agent": "agent.jsonc, file in the folder agents, module agent.py or definition in [tool.crewai]",
        }
        what = wanted.get(self.kind or "", "crew.jsonc, flow.yaml, src/<package>/crew.py or src/<package>/main.py")
        says = f"[tool.crewai] has type {self.kind!r}" if self.kind else "there is no [tool.crewai] type"
        names = ", ".join(sorted(path.name for path in self.root.iterdir() if not path.name.startswith("."))[:10])
        return f"{says}, and no {what} was found; the folder contains {names or 'no files'}."


def is_path(target: str) -> bool:
    """Whether a target is a project's folder or the file that describes a crew or Flow."""
    return Path(target).is_dir() or Path(target).suffix in (*JSON, ".yaml", ".yml")


def is_agent(content: Any) -> bool:
    """Whether a file with this content describes an agent, rather than a crew or a scenario."""
    names = content.keys() if isinstance(content, dict) else set()
    return not names.isdisjoint(OF_AGENT) and names.isdisjoint(("agents", "tasks"))


def of_folder(folder: Path) -> Project:
    """Read the project in a folder; without `[tool.crewai]`, the folder's files determine its kind."""
    root = folder.resolve()
    settings = _settings(root / "pyproject.toml")
    crewai = settings.get("tool", {}).get("crewai", {})
    kind, definition = crewai.get("type"), crewai.get("definition")
    if kind not in (None, *MODULES):
        raise UnsupportedCrew(f"[tool.crewai] has type {kind!r}; it must be crew, flow or agent.")
    scripts = settings.get("project", {}).get("scripts", {})
    return Project(root, kind, definition, tuple(value for value in scripts.values() if isinstance(value, str)))


def around(path: Path) -> Project | None:
    """Return the CrewAI project that contains a file or folder, if the nearest pyproject.toml has `[tool.crewai]`."""
    path = path.resolve()
    for folder in (path, *path.parents):
        if (folder / "pyproject.toml").is_file():
            crewai = _settings(folder / "pyproject.toml").get("tool", {}).get("crewai")
            return of_folder(folder) if crewai is not None else None
    return None


def tool_rules(target: str) -> list[ToolRule]:
    """Read `[tool.airflow-crew-service.tools]` from the nearest pyproject.toml."""
    try:
        return tool_rules_of(_declared(target).get("tools", {}))
    except BadRule as problem:
        raise BadRule(f"[tool.airflow-crew-service.tools]: {problem}") from None


def flow_tools(target: str) -> list[str]:
    """Read `flow_tools` in `[tool.airflow-crew-service]` from the nearest pyproject.toml."""
    return flow_tools_of_project(_declared(target).get("flow_tools", []))


def has_ask_person(target: str) -> bool:
    """Whether `[tool.airflow-crew-service]` gives every agent of the target the `AskPerson` tool."""
    value = _declared(target).get("ask_person", False)
    if not isinstance(value, bool):
        raise UnsupportedCrew("[tool.airflow-crew-service] ask_person must be true or false.")
    return value


def requirements(target: str) -> Path | None:
    """Return the file that lists what a target needs, if any."""
    return _nearest(target, "pyproject.toml") or _nearest(target, "requirements.txt")


def _nearest(target: str, name: str) -> Path | None:
    """Return the file with this name that is nearest above a target."""
    place = Path(target.rpartition(":")[0])
    path = Path(target) if Path(target).exists() else place if place.suffix == ".py" else Path()
    folders = (path.resolve(), *path.resolve().parents)
    return next((file for folder in folders if (file := folder / name).is_file()), None)


def _declared(target: str) -> dict[str, Any]:
    """Read the service's own table; a name that is not known may be a misspelled rule, which would not apply."""
    nearest = _nearest(target, "pyproject.toml")
    tables = _settings(nearest).get("tool", {}) if nearest else {}
    if other := next((name for name in tables if name != OWN and name.lower().replace("_", "-") == OWN), None):
        raise UnsupportedCrew(f"[tool.{other}] in pyproject.toml must be named [tool.{OWN}].")
    declared: dict[str, Any] = tables.get(OWN, {})
    if (unknown := next((name for name in declared if name not in SETTINGS), None)) is not None:
        raise UnsupportedCrew(f"[tool.{OWN}] has no setting {unknown!r}; it may have {', '.join(SETTINGS)}.")
    return declared


def _settings(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedCrew(f"{file.name} is not valid TOML: {error}.") from None
