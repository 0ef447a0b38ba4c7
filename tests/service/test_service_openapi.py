"""The service against its own OpenAPI document, and the document against what the service says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
from crew_client import GATED, SLOW, Client, Command, Serve

from scripts.stack.waiting import PATIENCE

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).parent / "schemathesis.toml"
TOKEN = "a-token-of-20-letters"
CODES = {
    "spec": {
        "/inputs": {"200", "401", "503"},
        "/files": {"200", "400", "401", "408", "413", "429", "503", "507"},
        "/kickoff": {"200", "400", "401", "404", "408", "409", "413", "422", "429", "503"},
        "/status/{kickoff_id}": {"200", "401", "404", "503"},
        "/resume": {"200", "400", "401", "404", "408", "413", "422", "429", "503"},
        "/stop/{kickoff_id}": {"200", "400", "401", "404", "503"},
        "/usage": {"200", "400", "401", "429", "503"},
        "/executions": {"200", "400", "401", "429", "503"},
        "/statuses": {"200", "400", "401", "503"},
        "/executions/{id}": {"200", "304", "401", "404", "429", "503"},
        "/executions/{id}/steps": {"200", "400", "401", "404", "429", "503"},
        "/executions/{id}/files": {"200", "401", "404", "429", "503"},
        "/executions/{id}/files/{name}": {"200", "304", "400", "401", "404", "429", "503"},
        "/executions/{id}/logs": {"200", "401", "403", "404", "429", "503"},
        "/healthz": {"200", "503"},
        "/livez": {"200", "503"},
        "/readyz": {"200", "503"},
        "/metrics": {"200", "401", "403", "503"},
    },
}
CODES["live"] = {
    **CODES["spec"],
    "/status/{kickoff_id}": {"200", "401", "503"},
    "/executions": {"200", "401", "422", "429", "503"},
    "/statuses": {"200", "401", "422", "503"},
    "/files": CODES["spec"]["/files"] - {"400"} | {"422"},
    "/resume": CODES["spec"]["/resume"] - {"404"},
}


SEVERAL = ("--crew", "report=demo", "--crew", "brief=demo")


@pytest.mark.parametrize(
    ("dialect", "crews"),
    [
        ("spec", ()),
        ("live", SEVERAL),
        pytest.param("spec", SEVERAL, marks=pytest.mark.long),
        pytest.param("live", (), marks=pytest.mark.long),
    ],
)
def test_schemathesis_finds_no_failure_with_all_checks_on(
    command: Callable[..., Command], tmp_path: Path, dialect: str, crews: tuple[str, ...]
) -> None:
    url = command("--token", TOKEN, "--dialect", dialect, *crews).url
    assert url.endswith("/crews/report") == bool(crews)
    client = Client(url, TOKEN)
    waiting = client.kickoff()
    client.until(waiting, {"spec": "pending", "live": "NOT FOUND"}[dialect])
    run = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            f"--config-file={CONFIG}",
            "--no-color",
            "run",
            f"{url}/openapi.json",
            f"--header=Authorization: Bearer {TOKEN}",
            "--checks=all",
            "--generation-deterministic",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert "No issues found" in run.stdout or "passed" in run.stdout
    assert requests.get(f"{url}/healthz", timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_the_document_names_every_path_and_code_of_the_dialect(serve: Serve, dialect: str) -> None:
    document = serve(dialect=dialect).get("/openapi.json").json()
    documented = {
        path: set(documented["responses"])
        for path, methods in document["paths"].items()
        for documented in methods.values()
    }
    assert documented == CODES[dialect]


def test_the_document_asks_for_the_inputs_of_this_crew(serve: Serve) -> None:
    schema = serve({**GATED, "inputs": ["topic", "audience"]}).get("/openapi.json").json()["components"]["schemas"]
    body = schema["KickoffBody"]
    assert body["required"] == ["inputs"]
    assert body["properties"]["inputs"]["required"] == ["topic", "audience"]


def test_every_answer_of_a_whole_run_has_the_documented_shape(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    document = client.get("/openapi.json").json()

    def fits(method: str, path: str, answer: requests.Response) -> dict[str, Any]:
        documented = document["paths"][path][method]["responses"][str(answer.status_code)]
        schema = {**documented["content"]["application/json"]["schema"], "components": document["components"]}
        jsonschema.validate(answer.json(), schema)
        return answer.json()

    def status_row(kickoff_id: str) -> str:
        return fits("get", "/status/{kickoff_id}", client.get(f"/status/{kickoff_id}"))["status"]

    fits("get", "/inputs", client.get("/inputs"))
    fits("post", "/kickoff", client.post("/kickoff", {}))
    kickoff_id = fits("post", "/kickoff", client.post("/kickoff", {"inputs": {"topic": "AI"}}))["kickoff_id"]
    slow = serve(SLOW, db=tmp_path / "slow.db")
    seen = {fits("get", "/status/{kickoff_id}", slow.get(f"/status/{slow.kickoff()}"))["status"]}
    for approve, word in ((False, "pending"), (True, "completed")):
        client.until(kickoff_id, "pending")
        seen.add(status_row(kickoff_id))
        fits("post", "/resume", client.resume(kickoff_id, approve=approve, feedback="x"))
        fits("post", "/resume", client.resume(kickoff_id, task_id="research_task"))
        client.until(kickoff_id, word)
    seen.add(status_row(kickoff_id))
    fits("post", "/stop/{kickoff_id}", client.post(f"/stop/{kickoff_id}"))
    stopped = client.kickoff()
    fits("post", "/stop/{kickoff_id}", client.post(f"/stop/{stopped}"))
    assert seen | {status_row(stopped)} == {"running", "pending", "completed", "error"}


@pytest.mark.parametrize("with_meta", [False, True])
def test_live_answers_of_a_whole_run_have_the_documented_shape(serve: Serve, with_meta: bool) -> None:
    client = serve(dialect="live")
    document = client.get("/openapi.json").json()
    answer = document["paths"]["/status/{kickoff_id}"]["get"]["responses"]["200"]["content"]["application/json"]
    schema = {**answer["schema"], "components": document["components"]}
    kickoff_id = client.kickoff(meta={"a": 1} if with_meta else None)
    seen = set()
    while "NOT FOUND" not in seen:
        record = client.status(kickoff_id)
        jsonschema.validate(record, schema)
        seen.add(record["state"])
    assert seen <= {"PENDING", "STARTED", "RUNNING", "NOT FOUND"}


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_every_example_of_the_document_fits_its_schema(serve: Serve, dialect: str) -> None:
    document = serve(dialect=dialect).get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    examples = [(name, example) for name, schema in schemas.items() for example in schema.get("examples", ())]
    assert len(examples) >= 8
    for name, example in examples:
        jsonschema.validate(example, {**schemas[name], "components": document["components"]})
