"""Drafts in the renderer of Airflow's UI (react-markdown with GFM) and a real browser: nothing is loaded or run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from airflow_crew_provider.questions import Terms
from airflow_crew_provider.questions.drafts import JOINER, inert
from airflow_crew_provider.review.form import ReviewForm
from scripts.stack.waiting import PATIENCE
from tests.browsers import browser_or_skip

pytestmark = pytest.mark.slow
RENDERER = Path(__file__).parent / "renderer"
SEED, DOCUMENTS, BATCH = 20261120, 1_000, 250
BEACON = "![beacon](https://evil.example/pixel.png)"
CODE_SPAN_IN_TABLE = f"`a\n|-|\n{BEACON}`"
AFTER_LINK_DEFINITION = f"[a]: https://x.example\n    {BEACON}"
# Texts in which one parser sees code and another an image, beside plain ones.
LEAKS = [
    BEACON,
    CODE_SPAN_IN_TABLE,
    f"`a\n-|\n{BEACON}`\n",
    f"| `a\n|:-\n| {BEACON} `",
    AFTER_LINK_DEFINITION,
    f"[a]: https://x.example 'title'\n\t{BEACON}",
    f"[a]:\n```\n{BEACON}\n```",
    f"text\n```\ncode\n\n```\n\n{BEACON}\n\n```",
    f"* item\n\n  ```\n\n```\n\n{BEACON}",
    f"[^1]\n\n[^1]: note\n\n    {BEACON}",
    f"- [ ] task\n\n      {BEACON}",
    f"1. ~~~\n~~~\n\n{BEACON}",
    f"<!--\n\n```\n-->\n\n{BEACON}\n```",
    "![beacon][1]\n\n[1]: https://evil.example/pixel.png",
    "![beacon]\n\n[beacon]: https://evil.example/pixel.png",
    "<img src=https://evil.example/pixel.png>",
    "[x](javascript:alert(1)) <javascript:alert(1)>",
    "\\![beacon](https://evil.example/pixel.png) \\\\![beacon](https://evil.example/pixel.png)",
]
PIECES = [
    *("`", "``", "```", "~~~", "\n", "\n\n", "\n    ", "\n\t", "\n> ", "\n* ", "\n1. ", "\n- [ ] ", "\n---\n", "\\"),
    *("|", "\n|-|\n", "\n|:-\n", "\n-|-\n", "\n-\n", "[a]: https://x.example", "\n[a]: ", "[^1]", "\n[^1]: ", "text"),
    *("[", "](https://evil.example/p)", "<!--", "-->", "<b>", "<div>\n", "</div>", "<pre>", "<?", "<![CDATA[", "&#33;"),
    *(
        BEACON,
        BEACON,
        "![beacon][a]",
        "![a]",
        "<img src=https://evil.example/p>",
        "\r",
        "\x0c",
        "\u2028",
        "~~",
        " ",
        "!",
    ),
]


@pytest.fixture(scope="session")
def page_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    npm = shutil.which("npm")
    if not npm:
        pytest.skip("needs npm")
    folder = tmp_path_factory.mktemp("renderer")
    for file in RENDERER.iterdir():
        shutil.copy(file, folder)
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
    if subprocess.run(install, cwd=folder, capture_output=True, timeout=PATIENCE).returncode:
        pytest.skip("the packages of the renderer cannot be installed here")
    bundle = ["node_modules/.bin/esbuild", "page.js", "--bundle", "--minify", "--outfile=out.js", "--log-level=error"]
    subprocess.run([*bundle, '--define:process.env.NODE_ENV="production"'], cwd=folder, check=True, timeout=PATIENCE)
    return folder / "out.js"


@pytest.fixture(scope="module")
def render(page_script: Path) -> Iterator[Callable[[list[str]], list[Any]]]:
    """Render texts in a browser; return for each what acts in it and what is read, and the addresses it asked for."""
    with browser_or_skip() as browser:
        page = browser.new_page()
        asked: list[str] = []
        page.route("**/*", lambda route: (asked.append(route.request.url), route.abort())[1])
        page.set_content("<!doctype html><body></body>")
        page.add_script_tag(path=str(page_script))

        def render(texts: list[str]) -> list[Any]:
            asked.clear()
            shown = page.evaluate("texts => window.render(texts)", texts)
            page.wait_for_timeout(50)
            return [*shown, list(asked)]

        yield render


def documents() -> list[str]:
    random = Random(SEED)
    return ["".join(random.choices(PIECES, k=random.randint(1, 14))) for _ in range(DOCUMENTS)]


def bodies(texts: list[str]) -> list[str]:
    """Return the pages that reviewers see: the text as a draft, as feedback, and in the difference of two drafts."""
    pending = {"execution_id": "e-1", "crew_task_id": "draft_task"}
    before = {"is_approve": False, "reviewer": {"id": "7", "name": BEACON}}
    drafts = [ReviewForm(pending={**pending, "output": text}).body for text in texts]
    rounds = [{**before, "human_feedback": text} for text in texts]
    rounds += [{**before, "human_feedback": "", "output": f"{text}\nx"} for text in texts]
    shown, terms = {**pending, "output": "x"}, Terms(round_number=2)
    return drafts + [ReviewForm(pending=shown, terms=terms, previous=each).body for each in rounds]


def test_the_renderer_does_load_what_is_not_made_inert(render: Callable[[list[str]], list[Any]]) -> None:
    *shown, asked = render([BEACON, CODE_SPAN_IN_TABLE, AFTER_LINK_DEFINITION])
    assert all("<img" in str(each["acting"]) for each in shown)
    assert "https://evil.example/pixel.png" in asked


def test_nothing_a_crew_or_person_wrote_is_loaded_or_run(
    render: Callable[[list[str]], list[Any]],
) -> None:
    texts = LEAKS + documents()
    pages = [inert(text) for text in texts] + bodies(texts)
    for start in range(0, len(pages), BATCH):
        batch = pages[start : start + BATCH]
        *shown, asked = render(batch)
        assert [(page, each["acting"]) for page, each in zip(batch, shown, strict=True) if each["acting"]] == []
        assert asked == []


def test_a_reader_sees_html_and_the_names_of_images(render: Callable[[list[str]], list[Any]]) -> None:
    [shown, _] = render([inert(f"<b>bold</b> {BEACON}\n\n```html\n<b>in code</b>\n```\n\n    <i>indented</i>")])
    text = shown["text"].replace(JOINER, "")
    for each in ("<b>bold</b>", "!beacon", "<b>in code</b>", "<i>indented</i>"):
        assert each in text
