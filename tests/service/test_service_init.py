"""`airflow-crew-service init`: which files it puts into a project, and that no key gets into an image of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crew_service import __version__
from crew_service.cli import main

CREW = '[project]\nname = "news"\n\n[tool.crewai]\ntype = "crew"\n'
KINDS = {
    "a JSON crew": {"pyproject.toml": f'{CREW}definition = "crew.jsonc"\n', "crew.jsonc": "{}"},
    "a classic crew": {"pyproject.toml": CREW, "src/news/crew.py": "raise SystemExit('imported')"},
    "a Flow": {"pyproject.toml": CREW.replace('"crew"', '"flow"'), "src/news/main.py": ""},
    "without a table of CrewAI": {"requirements.txt": "crewai\n", "src/news/crew.py": ""},
}


def project(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("files", KINDS.values(), ids=KINDS)
def test_each_kind_of_project_gets_a_dockerfile_of_ten_lines(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, {**files, ".env": "OPENAI_API_KEY=sk-secret\n"})
    assert main(["init", str(tmp_path)]) == 0
    dockerfile = (tmp_path / "Dockerfile").read_text()
    assert len(dockerfile.splitlines()) <= 10
    assert dockerfile.startswith(f"ARG PYTHON={sys.version_info[0]}.{sys.version_info[1]}\n")
    assert f"airflow-crew-service[crewai,postgresql]=={__version__}" in dockerfile
    assert f"--requirement {next(iter(files))} " in dockerfile
    assert "**/.env" in (tmp_path / ".dockerignore").read_text().splitlines()
    assert "sk-secret" not in dockerfile
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1:] == ["Wrote .dockerignore.", "Wrote Dockerfile."]
    assert printed.err == ""


def test_the_image_has_the_versions_of_a_lock_file(tmp_path: Path) -> None:
    project(tmp_path, {**KINDS["a classic crew"], "uv.lock": "version = 1\n", "requirements.txt": "crewai\n"})
    main(["init", str(tmp_path)])
    dockerfile = (tmp_path / "Dockerfile").read_text()
    assert "COPY pyproject.toml uv.lock ./" in dockerfile
    assert "uv export --frozen" in dockerfile


def test_existing_files_are_kept_and_the_exit_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, {**KINDS["a JSON crew"], "Dockerfile": "FROM mine\n"})
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 1
    assert (tmp_path / "Dockerfile").read_text() == "FROM mine\n"
    assert capsys.readouterr().out.splitlines()[1:] == ["Wrote .dockerignore.", "Left Dockerfile as it is."]


@pytest.mark.parametrize("ignored", ["", "*.log\n", "**/.env\n!.env\n", ".env.local\n", "# .env\n"])
def test_nothing_is_written_beside_a_dockerignore_that_lets_keys_in(
    ignored: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, {**KINDS["a JSON crew"], ".dockerignore": ignored})
    assert main(["init", str(tmp_path)]) == 2
    assert not (tmp_path / "Dockerfile").exists()
    assert (tmp_path / ".dockerignore").read_text() == ignored
    assert "add the line **/.env to it" in capsys.readouterr().err


@pytest.mark.parametrize("ignored", [".env\n", "**/.env\n", "*\n!src\n", "!.env\n/.env*\n"])
def test_a_dockerignore_keeping_keys_out_is_left_unchanged(ignored: str, tmp_path: Path) -> None:
    project(tmp_path, {**KINDS["a JSON crew"], ".dockerignore": ignored})
    assert main(["init", str(tmp_path)]) == 1
    assert (tmp_path / ".dockerignore").read_text() == ignored
    assert (tmp_path / "Dockerfile").exists()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"notes.txt": ""}, "is not a CrewAI project: there is no [tool.crewai] type"),
        ({"pyproject.toml": CREW}, "is not a CrewAI project: [tool.crewai] has type 'crew'"),
        ({"pyproject.toml": "[["}, "pyproject.toml is not valid TOML"),
        ({"crew.jsonc": "{}"}, "has neither pyproject.toml nor requirements.txt"),
    ],
)
def test_where_there_is_no_project_one_sentence_says_so(
    files: dict[str, str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tmp_path, files)
    assert main(["init", str(tmp_path)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert sentence in said
    assert {path.name for path in tmp_path.iterdir()} == set(files)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"There is no folder {str(tmp_path / 'nowhere')!r}.\n"
