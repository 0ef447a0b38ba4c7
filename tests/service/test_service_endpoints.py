"""The table of endpoints is the one place where an endpoint stands: nothing is served, shown or said beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from crew_client import Client, Serve
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.routing import Route

from crew_service.engine.container import Process
from crew_service.engine.paths import ROOT
from crew_service.http import page, swagger_ui
from crew_service.http.api import Api
from crew_service.http.app import crew_app
from crew_service.http.dialects import DIALECTS
from crew_service.http.endpoints import Endpoint, table
from crew_service.http.slots import Slots
from crew_service.http.uploads import Uploads
from crew_service.scripted_crew import DEMO, ScriptedCrew
from crew_service.settings import Settings
from scripts.stack.waiting import PATIENCE

GUIDE = Path(__file__).parents[2] / "docs" / "service.md"
KINDS: tuple[Literal["crew", "flow"], ...] = ("crew", "flow")


@dataclass(frozen=True)
class Served:
    """One service: a dialect and what it serves."""

    dialect: str
    kind: Literal["crew", "flow"]

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return table(DIALECTS[self.dialect](), flow=self.kind == "flow")

    @property
    def crew(self) -> ScriptedCrew:
        crew = ScriptedCrew(DEMO)
        crew.kind = self.kind
        return crew

    def app(self, folder: Path) -> FastAPI:
        settings = Settings(token="a-token-of-20-letters", dialect=self.dialect, database=str(folder / "service.db"))
        dialect = DIALECTS[self.dialect]()
        process = Process(settings, {ROOT: self.crew}, dialect)
        uploads = Uploads(process.files, seconds=settings.body_seconds, most_text=settings.max_body)
        return crew_app(process.crews[ROOT], dialect, Slots(), uploads)


SERVED = [Served(dialect, kind) for dialect in sorted(DIALECTS) for kind in KINDS]
ENDPOINTS = [(served, endpoint) for served in SERVED for endpoint in served.endpoints]
EACH_SERVICE = pytest.mark.parametrize("served", SERVED, ids=lambda served: f"{served.dialect} {served.kind}")


@EACH_SERVICE
def test_every_application_route_is_in_the_table_or_a_page(served: Served, tmp_path: Path) -> None:
    added = (
        route for route in served.app(tmp_path).routes if isinstance(route, Route) and route.path != "/openapi.json"
    )
    routes = {(method, route.path) for route in added for method in (route.methods or {"GET"}) - {"HEAD"}}
    pages = {(method, path) for method, path, _ in page.ROUTES} | {("GET", path) for path in swagger_ui.PATHS}
    known = pages | {(endpoint.method, endpoint.route) for endpoint in served.endpoints}
    assert routes - {("GET", "/openapi.json")} == known


@EACH_SERVICE
def test_the_document_shows_every_endpoint_in_table_order(served: Served, tmp_path: Path) -> None:
    paths = served.app(tmp_path).openapi()["paths"]
    shown = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert shown == [(endpoint.method, endpoint.path) for endpoint in served.endpoints]


@EACH_SERVICE
def test_every_documented_operation_has_summary_tag_body_and_refusals(served: Served, tmp_path: Path) -> None:
    document = served.app(tmp_path).openapi()
    for endpoint in served.endpoints:
        documented = document["paths"][endpoint.path][endpoint.method.lower()]
        assert (documented["summary"], documented["tags"]) == (endpoint.summary, [endpoint.tag])
        codes = {"200", *map(str, endpoint.refusals)}
        assert set(documented["responses"]) == codes, endpoint.path
        assert ("requestBody" in documented) == bool(endpoint.body or endpoint.form), endpoint.path
        assert {part["name"] for part in documented.get("parameters", ())} >= names_in(endpoint.path), endpoint.path


def test_every_answer_in_json_has_a_model_with_an_example() -> None:
    for _, endpoint in ENDPOINTS:
        models = getattr(endpoint.answer, "__args__", (endpoint.answer,))
        assert (endpoint.answer is None) == (endpoint.media is not JSONResponse), endpoint.path
        for model in models if endpoint.answer else ():
            examples = model.model_config["json_schema_extra"]["examples"]
            assert [model.model_validate(example) for example in examples], endpoint.path


def test_every_public_api_method_is_an_endpoint_or_a_refusal() -> None:
    handlers = {endpoint.handler.__name__ for _, endpoint in ENDPOINTS}
    assert {name for name in vars(Api) if not name.startswith("_")} - handlers == {"refused"}


def test_the_guide_names_every_endpoint() -> None:
    guide = GUIDE.read_text("utf-8")
    assert [each.path for _, each in ENDPOINTS if f"`{each.method} {each.path}`" not in guide] == []


@EACH_SERVICE
def test_an_endpoint_needs_a_token_unless_the_table_says_otherwise(serve: Serve, served: Served) -> None:
    client = serve(dialect=served.dialect, crew=served.crew)
    for endpoint in served.endpoints:
        codes = {who: ask(client.holding(token), endpoint) for who, token in tokens(client).items()}
        if 401 in endpoint.problems:  # it asks for a token of its own
            assert set(codes.values()) <= {401, 404, 422}, endpoint.path
        else:
            assert (codes["nobody"] == 401) == endpoint.needs_token, endpoint.path
            assert codes["organization"] != 401, endpoint.path


def test_only_the_pages_and_what_the_table_names_are_open() -> None:
    in_table = {endpoint.path for _, endpoint in ENDPOINTS if not endpoint.needs_token}
    assert in_table == {"/healthz", "/livez", "/readyz", "/human_feedback_requests/{request_id}/respond"}
    assert {path for _, path, _ in page.ROUTES} == page.OPEN_PATHS
    assert {"/docs", "/openapi.json", *swagger_ui.ASSETS} == swagger_ui.OPEN_PATHS
    assert {path.rpartition("/")[2] for path in swagger_ui.ASSETS} == {
        "swagger-ui.css",
        "swagger-ui-bundle.js",
        "start.js",
    }


def tokens(client: Client) -> dict[str, str]:
    return {"nobody": "not-a-token-of-this-service", "organization": client.token}


def ask(client: Client, endpoint: Endpoint) -> int:
    path = endpoint.path.format(kickoff_id="x", request_id="x", id="x", name="x")
    return client.session.request(endpoint.method, client.url + path, json={}, timeout=PATIENCE).status_code


def names_in(path: str) -> set[str]:
    return {part[1:-1] for part in path.split("/") if part.startswith("{")}
