"""A generated family of Flows behind the service: the same methods in the same order as by CrewAI itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_family
import pytest

from scripts.stack.waiting import FACTOR

SHAPES = flow_family.shapes()
CHOSEN = [
    "or/1/chain",
    "or/3/gate",
    "persist/2",
    "router in the loop/1/or",
    "redo/1/named",
    "start/1/chain",
    "start and listen/1/end",
    "and/1/chain",
    "beside side gate/1",
    "beside side race/2",
    "back to the first of two gates",
    "gate that starts and listens",
    "start gate by name and by outcome",
    "a loop in each of two branches",
    "a start again after a start gate",
]
FAMILIES: dict[str, list[str]] = {}
for each in SHAPES:
    FAMILIES.setdefault(each.rpartition("/")[0] or "others", []).append(each)


def play(*names: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Play Flows in one process, which imports CrewAI once."""
    command = [sys.executable, str(Path(flow_family.__file__)), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550 * FACTOR)
    assert done.returncode == 0, done.stderr[-3000:]
    for line in done.stdout.splitlines():
        result = json.loads(line)
        yield result.pop("name"), result


@pytest.fixture(scope="module")
def chosen() -> dict[str, dict[str, Any]]:
    return dict(play(*CHOSEN))


def check(name: str, result: dict[str, Any]) -> None:
    shape = SHAPES[name]
    if "refused" in result:
        calls = result["one process"]["calls"]
        assert any(calls.count(gate) < rounds for gate, rounds in shape.rounds().items()), "no reason to refuse it"
        assert "also listens, which CrewAI" in result["refused"]
        return
    served = result["served"]
    if shape.goes_as == flow_family.NOWHERE:
        here, resumed = result["one process"], result[flow_family.AFTER_A_RESUME]
        assert here["calls"] == resumed["calls"], "no reason to differ from CrewAI"
        expected = {"calls": list(shape.goes), "output": shape.goes[-1]}
    else:
        expected = reference(shape, result)
    assert all(served["calls"].count(gate) == rounds for gate, rounds in shape.rounds().items()), "an answer was lost"
    assert ordered(name, served["calls"]) == ordered(name, expected["calls"])
    assert served["output"] == expected["output"]
    earlier = result["stored by an earlier release"]
    assert (ordered(name, earlier["calls"]), earlier["output"]) == (ordered(name, served["calls"]), served["output"])
    for place, killed in enumerate(result["killed"], 1):
        assert ordered(name, killed["finished"]) == ordered(name, served["finished"]), f"killed at {place}"
        assert killed["output"] == served["output"], f"killed at {place}"
        assert shape.parallel or killed["calls"] == served["calls"], f"killed at {place}"


def reference(shape: flow_family.Shape, result: dict[str, Any]) -> dict[str, Any]:
    """Return what CrewAI does.

    Some loops it leaves in one process. After a resume it goes round, but calls nobody who listens to the gate's name.
    """
    here, resumed = result["one process"], result[flow_family.AFTER_A_RESUME]
    if shape.goes_as != flow_family.AFTER_A_RESUME:
        return dict(here)
    calls = [each for call in resumed["calls"] for each in (call, *shape.hearing(call))]
    left = calls[: len(here["calls"])]
    assert sorted(left) == sorted(here["calls"]) if shape.parallel else left == here["calls"]
    assert len(calls) > len(left), "no reason to differ from CrewAI in one process"
    return {**resumed, "calls": calls}


def ordered(name: str, calls: list[str]) -> list[str]:
    return sorted(calls) if SHAPES[name].parallel else calls


@pytest.mark.row("F7")
def test_a_twice_revised_flow_runs_as_in_crewai_itself() -> None:
    ((name, result),) = play("redo/2/chain")
    check(name, result)


@pytest.mark.long
@pytest.mark.row("F7")
@pytest.mark.parametrize("name", CHOSEN)
def test_a_flow_runs_as_in_crewai_itself_despite_kills(name: str, chosen: dict[str, dict[str, Any]]) -> None:
    check(name, chosen[name])


@pytest.mark.row("F7")
@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_flow_family_runs_as_in_crewai_despite_kills(family: str) -> None:
    names = FAMILIES[family]
    played = dict(play("--apart", *names))
    assert sorted(played) == sorted(names)
    for name, result in played.items():
        check(name, result)
