"""Renders the tab's pages from the known facts. Pure: no clock, so the same facts give the same page."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import accumulate
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from airflow_crew_provider.api.values import moment
from airflow_crew_provider.models import Json
from airflow_crew_provider.questions.drafts import readable_size
from airflow_crew_provider.view import execution, markdown
from airflow_crew_provider.view.execution import Seen

STATES = {
    "running": "Running",
    "pending": "Waiting for a person",
    "completed": "Completed",
    "error": "Failed",
    "not_found": "Not found",
    "not_started": "Not started",
}

MOST_DIFFERENCES = 5  # for the latest rounds; each may take up to 20 ms


@dataclass(frozen=True)
class Share:
    """Maximum bytes of HTML for each part of a page, so that the whole always stays under 1 MB.

    For tasks, steps, rounds and inputs, the limit applies to all together; for names, to each.
    """

    main: int = 150_000  # the current draft, or the output
    tasks: int = 110_000
    steps: int = 100_000
    drafts: int = 130_000
    differences: int = 100_000
    inputs: int = 80_000
    feedback: int = 60_000
    error: int = 20_000
    question: int = 10_000
    name: int = 150
    overview: int = 800_000


SHARE = Share()


@dataclass(frozen=True)
class Page:
    """A page as sent to the browser, and its ETag."""

    is_final = False

    body: str
    etag: str

    @classmethod
    def of(cls, body: str) -> Page:
        """Return the page with this text."""
        return cls(body, etag_of(body))


@dataclass(frozen=True)
class Facts:
    """Everything that a task's fragment shows.

    :param seen: what the deployment reported; None while unknown
    :param decisions: decisions from this execution's reviews in Airflow
    :param form: the path at which to answer the open question, relative to Airflow's own URL
    """

    kickoff_id: str
    execution_id: str
    crew_conn_id: str
    seen: Seen | None
    decisions: Sequence[Json] = ()
    form: str = ""

    @property
    def is_live(self) -> bool:
        """Whether the page can still change."""
        return self.seen is None or not self.seen.is_final


def fragment(facts: Facts, *, form: str = "", run: str = "", pictures: str = "", query: str = "") -> str:
    """Return the part of the page that is updated while the execution runs.

    :param form: the URL of the open question
    :param run: the URL of the DAG run's overview
    :param pictures: the URL of the folder of the execution's pictures, and ``query`` what follows a picture's name
    """
    status = facts.seen
    details = execution.with_decisions(status.found, facts.decisions, status.mask) if status and status.found else None
    progress = execution.progress(details) if details else None
    own = {"form": form, "run": run, "pictures": pictures, "query": query}
    return _rendered("fragment.html", facts=facts, seen=status, found=details, progress=progress, **own)


def task_page(title: str, body: str, *, address: str, is_live: bool, run: str) -> str:
    """Return a task's page with its fragment."""
    markup = Markup(body)  # noqa: S704 - rendered by a template above
    return _rendered("task.html", title=title, body=markup, address=address, is_live=is_live, run=run)


def run_page(dag_id: str, run_id: str, executions: Sequence[Json], *, left_out: int) -> str:
    """Return the overview of a DAG run, with as many executions as fit on a page."""
    sizes = accumulate(sum(5 * markdown.size_of(str(value)) for value in each.values()) for each in executions)
    visible = executions[: sum(size <= SHARE.overview for size in sizes)]
    left_out += len(executions) - len(visible)
    return _rendered("run.html", dag_id=dag_id, run_id=run_id, executions=visible, left_out=left_out)


def nothing_yet(run: str) -> str:
    """Return the fragment for a task without a known execution."""
    return _rendered("nothing.html", run=run)


def message_page(title: str, text: str) -> str:
    """Return a page that explains why there is nothing to see."""
    return _rendered("message.html", title=title, text=text)


def etag_of(text: str) -> str:
    """Return a value that changes with the text."""
    return f'"{hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def policy() -> str:
    """Return the policy for all pages: a page loads only this server's pictures and runs only its own script."""
    script, style = (f"'sha256-{_digest(_file(name))}'" for name in ("page.js", "page.css"))
    own = f"script-src {script}; style-src {style}; connect-src 'self'; img-src 'self'"
    return f"default-src 'none'; {own}; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"


def icon(*, dark: bool) -> str:
    """Return the tab's icon."""
    return _file("icon.svg").replace("currentColor", "#e4e4e7" if dark else "#27272a")


def address(*parts: str | int) -> str:
    """Return a path of these parts, each quoted."""
    return "/".join(quote(str(part), safe="") for part in parts)


# --- functions for templates ---


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _brief(seconds: float | None) -> str:
    """Return a duration that may be well under a second."""
    return f"{seconds * 1000:.0f} ms" if seconds is not None and seconds < 1 else _duration(seconds)


def _tokens(usage: Json) -> str:
    count = usage["total_tokens"]
    return f"{count:,} tokens" if count else ""


def _cost(usage: Json) -> str:
    cost = usage["cost_usd"]
    return "" if not cost else f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


def _is_conversation(value: Any) -> bool:
    """Whether a value is what an agent is told, turn by turn."""
    turns = value if isinstance(value, list) else []
    texts = (list(turn.values()) for turn in turns if isinstance(turn, dict) and set(turn) == {"role", "content"})
    return 0 < len(turns) == sum(all(isinstance(text, str) for text in both) for both in texts)


def _moment(text: Any) -> Markup | str:
    """Return a time, which the page's script converts to the reader's time zone."""
    at = moment(text)
    if at is None:
        return ""
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S} UTC")


def _rendered(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    made = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    filters = {"duration": _duration, "brief": _brief, "tokens": _tokens, "cost": _cost, "moment": _moment}
    texts = {"markdown": markdown.rendered, "json": partial(json.dumps, indent=2, ensure_ascii=False)}
    sizes = {"size": readable_size, "fitted": markdown.fitted, "fits": markdown.fits}
    made.filters |= {**filters, **texts, **sizes}
    own = {"script": Markup(_file("page.js")), "style": Markup(_file("page.css"))}  # noqa: S704 - our own files
    made.globals |= {"states": STATES, "difference": markdown.difference, "share": SHARE, **own}
    made.tests["conversation"] = _is_conversation
    made.globals["most_differences"] = MOST_DIFFERENCES
    return made


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text("utf-8")


def _digest(text: str) -> str:
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()
