"""Prices by default: the catalogue that CrewAI ships, kept in the database so that all machines price alike."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crew_client import Command, eventually

from crew_service.crewai import price_catalogue
from crew_service.engine import pricing
from crew_service.prices import CACHED, LONG, WRITTEN, Catalogue, Prices
from crew_service.storage.database import Database

TOKEN = "a-token-for-tests-only"
OPENAI = {"provider": "openai", "input": 1.0, "output": 4.0, "cached": 0.5}
ENTRIES: dict[str, Any] = {
    "gpt": OPENAI,
    "azure/gpt": {**OPENAI, "provider": "azure", "cached": 0.6},
    "azure/eu/gpt": {**OPENAI, "provider": "azure", "input": 1.1},
    "flash": {"provider": "google", "input": 2.0, "output": 2.0, "tiered": True},
    "other/flash": {"provider": "other", "input": 3.0, "output": 2.0},
    "claude": {"provider": "anthropic", "input": 3.0, "output": 15.0, "cached": 0.3, "written": 3.75},
}
A_MILLION = 1_000_000
KNOWN = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6}


def cost(model: str, prompt: int = A_MILLION, completion: int = 0, **more: int) -> float | None:
    prices = Prices(default=Catalogue("crewai 1.0", dict))
    prices.take("crewai 1.0", ENTRIES)
    figures = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return prices.cost(model, {**figures, **more})


@pytest.mark.parametrize(
    ("model", "usd"),
    [
        ("gpt", 1.0),
        ("openai/gpt", 1.0),
        ("azure/gpt", 1.0),
        ("azure/eu/gpt", 1.1),
        ("eu/gpt", None),
        ("somebody/gpt", None),
        ("flash", None),
        ("google/flash", 2.0),
        ("other/flash", 3.0),
        ("unknown", None),
        ("", None),
    ],
)
def test_a_model_name_alone_is_priced_only_if_providers_agree(model: str, usd: float | None) -> None:
    assert cost(model) == usd


def test_cached_and_written_tokens_have_their_own_prices_or_none() -> None:
    assert cost("claude", **{CACHED: 400_000, WRITTEN: 200_000}) == pytest.approx(0.4 * 3 + 0.4 * 0.3 + 0.2 * 3.75)
    assert cost("openai/gpt", **{CACHED: A_MILLION}) == 0.5
    assert cost("gpt", **{CACHED: 1}) is None, "its providers do not agree"
    assert cost("openai/gpt", **{WRITTEN: 1}) is None


def test_a_tiered_models_long_prompt_has_no_known_price() -> None:
    assert cost("google/flash", **{LONG: 1}) is None
    assert cost("openai/gpt", **{LONG: 1}) == 1.0


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        (KNOWN, {"input": 1.0, "output": 4.0}),
        ({**KNOWN, "input_cost_per_token": 0.0}, None),
        ({"input_cost_per_token": 1e-6}, None),
        ({**KNOWN, "input_cost_per_token": "1e-6"}, None),
        ({**KNOWN, "mode": "embedding"}, None),
        ({**KNOWN, "input_cost_per_token_above_200k_tokens": 2e-6}, {"input": 1.0, "output": 4.0, "tiered": True}),
        ({**KNOWN, "input_cost_per_token_above_100k_tokens": 2e-6}, None),
    ],
)
def test_an_entry_without_known_prices_is_none(given: dict[str, Any], entry: dict[str, Any] | None) -> None:
    found = price_catalogue._entry({"mode": "chat", "litellm_provider": "x", **given})
    assert found == (entry and {"provider": "x", **entry})


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": []}', '{"a": {"mode": []}}'])
def test_a_catalogue_of_another_shape_has_no_prices(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    assert price_catalogue._read(tmp_path / "x.json") == {}


def test_the_installed_catalogue_is_found_without_importing_crewai() -> None:
    pytest.importorskip("crewai.crew")  # without CrewAI, the folder of its tests has its name
    code = (
        "import sys; from crew_service.crewai import price_catalogue; from crew_service.prices import Prices\n"
        "found = price_catalogue.installed(); prices = Prices(default=found); prices.take(found.source, found.read())\n"
        "figures = {'prompt_tokens': 10**6, 'completion_tokens': 10**6, 'total_tokens': 2 * 10**6}\n"
        "costs = [prices.cost(model, figures) for model in ('gpt-4o-mini', 'openai/gpt-4o', 'claude-sonnet-4-5')]\n"
        "print(found.source, all(costs), 'crewai' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["crewai", importlib.metadata.version("crewai"), "True", "False"]


def test_the_newer_of_two_releases_sets_prices_on_every_machine(database: str) -> None:
    def catalogue(version: str, price: float) -> Prices:
        table = {"gpt": {**OPENAI, "input": price}}
        return Prices(default=Catalogue(f"crewai {version}", lambda: table))

    figures = {"prompt_tokens": A_MILLION, "completion_tokens": 0, "total_tokens": A_MILLION}
    older, newer, oldest = catalogue("1.15.9", 1.0), catalogue("1.15.30", 2.0), catalogue("1.9.40", 3.0)
    with contextlib.closing(Database(database)) as opened:
        for prices, usd in ((older, 1.0), (newer, 2.0), (oldest, 2.0), (older, 2.0)):
            pricing.settle(opened, prices)
            assert prices.cost("gpt", figures) == usd
    assert repr(older) == repr(newer) == "Prices('crewai 1.15.30')"


def test_a_release_replaces_the_prices_of_its_prereleases(database: str) -> None:
    versions = ("1.15.30.dev20261027", "1.15.30a1", "1.15.30rc1", "1.15.30", "1.15.30rc2")
    with contextlib.closing(Database(database)) as opened:
        for version, newest in zip(versions, (*versions[:4], "1.15.30"), strict=True):
            prices = Prices(default=Catalogue(f"crewai {version}", lambda: {"gpt": OPENAI}))
            pricing.settle(opened, prices)
            assert prices.source == f"crewai {newest}"


def test_a_post_release_replaces_the_prices_of_its_release(database: str) -> None:
    with contextlib.closing(Database(database)) as opened:
        for version, newest in (("1.15.30", ""), ("1.15.30.post1", ".post1"), ("1.15.30", ".post1")):
            prices = Prices(default=Catalogue(f"crewai {version}", lambda: {"gpt": OPENAI}))
            pricing.settle(opened, prices)
            assert prices.source == f"crewai 1.15.30{newest}"


@pytest.mark.slow
@pytest.mark.parametrize(("options", "priced"), [((), True), (("--prices", "none"), False)])
def test_the_command_prices_by_default_unless_told_otherwise(
    command: Callable[..., Command], tmp_path: Path, options: tuple[str, ...], priced: bool
) -> None:
    pytest.importorskip("crewai.crew")  # without CrewAI, the folder of its tests has its name
    task = {"id": "a", "tokens": A_MILLION, "model": "gpt-4o-mini", "output": "x"}
    (tmp_path / "crew.json").write_text(json.dumps({"inputs": ["topic"], "tasks": [task]}))
    client = command("--crew", "crew.json", "--token", TOKEN, *options).client(TOKEN)
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    used = eventually(lambda: json.loads(client.get(f"/status/{kickoff_id}").headers["Crew-Usage"]), "the usage")
    assert ("cost_usd" in used) == priced
    assert client.get("/usage").json()["rows"][0]["cost_usd"] == (used["cost_usd"] if priced else None)
