"""What code and pages cite of the specification and of the observed dialects can be looked up in `docs/`.

And the parameters that a docstring describes are there.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CITED = {
    "specification": DOCS / "api.md",
    "observed dialect": DOCS / "api.md",
    "observed flows": DOCS / "api.md",
}
CITATION = re.compile(r"\((specification|observed dialect|observed flows)(?:, (?:section )?([^)]*?))?[;)]")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#([^)\s]+))?\)")
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])
SOURCES = sorted(path for folder in ("airflow_crew_provider", "service") for path in (ROOT / folder).rglob("*.py"))


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)


def citations() -> list[tuple[Path, str, str]]:
    texts = [(path, " ".join(path.read_text("utf-8").split())) for path in (*SOURCES, *PAGES)]
    return [(path, found[1], found[2] or "") for path, text in texts for found in CITATION.finditer(text)]


def test_every_section_that_is_cited_stands_in_the_page() -> None:
    for path, name, part in citations():
        numbered = re.match(r"[\d.]+$", part)
        start = (f"{part} ", f"{part}. ") if numbered else (part,)
        assert any(heading.startswith(start) for heading in headings(CITED[name])), f"{path.name}: {name}, {part}"


def test_the_specification_is_cited_wherever_requests_are_described() -> None:
    assert {"4.1", "4.2", "4.3", "4.4"} <= {part for _, name, part in citations() if name == "specification"}
    assert any(name == "observed dialect" for _, name, _ in citations())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


def links() -> list[tuple[Path, Path, str]]:
    """Return each link between pages: from where, to where, and the anchor there."""
    texts = ((page, page.read_text("utf-8")) for page in PAGES)
    return [
        (page, (page.parent / target).resolve(), anchor)
        for page, text in texts
        for target, anchor in LINK.findall(text)
    ]


def test_every_link_between_pages_leads_somewhere() -> None:
    assert len(links()) > len(PAGES)
    for page, target, anchor in links():
        assert target.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {target}#{anchor}"


def test_every_page_is_linked_and_ends_with_a_next_step() -> None:
    linked = {target for page, target, _ in links() if page != target}
    for page in DOCS.glob("*.md"):
        assert page in linked, f"no page links to {page.name}"
        last = page.read_text("utf-8").rstrip().rpartition("\n\n")[2]
        assert last.startswith("Next: "), f"{page.name} ends without saying where to go next"
        assert LINK.search(last), f"{page.name} ends without a link"


def test_the_files_and_names_in_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    code = "".join(path.read_text("utf-8") for path in SOURCES)
    files = set(re.findall(r"\b[a-z_]+(?:/[a-z_]+)+\.py\b", text))
    names = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|\b_?[a-z]+(?:_[a-z]+)+\b(?!\.py)", text))
    assert len(files) > 10
    assert len(names) > 30
    assert [each for each in files if not any(str(path).endswith(f"/{each}") for path in SOURCES)] == []
    assert [each for each in names if not re.search(rf"\b{each}\b", code)] == []


def described(code: str) -> list[tuple[str, str]]:
    """Return each parameter in the docstring of a function or class that has none of this name, nor any others."""
    wrong = []
    for each in ast.walk(ast.parse(code)):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names, is_open = parameters(each)
            missing = set(re.findall(r":param (\w+):", ast.get_docstring(each) or "")) - names
            wrong += [] if is_open else [(each.name, name) for name in sorted(missing)]
    return wrong


def parameters(of: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> tuple[set[str], bool]:
    """Return the names of the parameters, or of the fields of a class, and whether it may take others."""
    if isinstance(of, ast.ClassDef):
        fields = {
            each.target.id for each in of.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        own = [parameters(each) for each in of.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        inherits = bool(of.bases) and not own
        return fields.union(*(names for names, _ in own)), inherits or any(is_open for _, is_open in own)
    taken = of.args
    single = [each for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg) if each]
    return {each.arg for each in single}, taken.kwarg is not None


def test_every_parameter_that_a_docstring_describes_is_one() -> None:
    wrong = {path.relative_to(ROOT).as_posix(): described(path.read_text("utf-8")) for path in SOURCES}
    assert {path: names for path, names in wrong.items() if names} == {}
    assert described('def f(a): """Do.\n\n:param b: it"""\nclass C:\n """A.\n\n:param x: it"""\n x: int') == [
        ("f", "b")
    ]
